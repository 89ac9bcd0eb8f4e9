"""The example of Alertmanager: who is told what, what silences what, and what is said."""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from servers import free_port, missing, wait_until

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
CONFIG = yaml.safe_load((DASHBOARDS / "alertmanager.yml").read_text(encoding="utf-8"))
ALERTS = [
    rule
    for group in yaml.safe_load((DASHBOARDS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
PATIENCE_S = 20.0

NIGHTLY = {"ledger": "amber-otter", "pipeline": "nightly"}
OTHER_PIPELINE = {"ledger": "amber-otter", "pipeline": "weekly"}
OTHER_LEDGER = {"ledger": "brisk-heron", "pipeline": "nightly"}
LEDGER = {"ledger": "amber-otter"}
OF_A_CLASS = {**NIGHTLY, "error_class": "permanent:400"}
OF_ANOTHER_CLASS = {**NIGHTLY, "error_class": "permanent:404"}


def amtool(*words: str) -> str:
    program = shutil.which("amtool") or missing("amtool")
    done = subprocess.run(
        [str(program), *words], cwd=DASHBOARDS, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- routes ------------------------------------------------------------------------------------------------------


def test_amtool_has_no_complaint():
    assert "SUCCESS" in amtool("check-config", "alertmanager.yml")


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in ALERTS])
def test_pages_ring_and_tickets_wait(rule):
    severity = rule["labels"]["severity"]

    receiver = amtool(
        "config", "routes", "test", "--config.file=alertmanager.yml",
        f"alertname={rule['alert']}", f"severity={severity}", "ledger=amber-otter", "pipeline=nightly",
    )  # fmt: skip

    assert receiver.strip() == {"page": "parked-pages", "ticket": "parked-tickets"}[severity]


def test_a_notification_is_about_one_fault_of_one_pipeline_and_waits_five_seconds():
    assert CONFIG["route"]["group_by"] == ["ledger", "pipeline", "alertname"]
    assert CONFIG["route"]["group_wait"] == "5s"
    assert all("group_wait" not in route and "group_by" not in route for route in CONFIG["route"]["routes"])


# --- inhibitions -------------------------------------------------------------------------------------------------


class Alertmanager:
    """A real one on loopback, with the example's configuration unless told another."""

    def __init__(self, folder: Path, config: Path = DASHBOARDS / "alertmanager.yml") -> None:
        program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager") or missing("Alertmanager")
        self.url = f"http://127.0.0.1:{free_port()}"
        self._process = subprocess.Popen(
            [
                str(program), f"--config.file={config}", f"--storage.path={folder}",
                f"--web.listen-address={self.url.removeprefix('http://')}", "--cluster.listen-address=",
            ],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Alertmanager has ended"
        try:
            urllib.request.urlopen(f"{self.url}/-/ready", timeout=PATIENCE_S).close()
        except OSError:
            return False
        return True

    def post(self, *alerts: dict[str, str], ended: bool = False) -> None:
        at = {"endsAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 1))} if ended else {}
        body = json.dumps([{"labels": labels, **at} for labels in alerts]).encode()
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", data=body, headers={"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=PATIENCE_S).close()

    def alert(self, labels: dict[str, str]) -> dict[str, Any] | None:
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=PATIENCE_S) as answer:
            return next((alert for alert in json.load(answer) if alert["labels"] == labels), None)

    def is_held_back(self, labels: dict[str, str]) -> bool:
        found = self.alert(labels)
        return found is not None and bool(found["status"]["inhibitedBy"])

    def holds_back(self, source: dict[str, str], target: dict[str, str]) -> bool:
        """Whether the one alert silences the other, while both are there."""
        # Alerts are heeded in their order, and a moment after they are shown: once the last pair is, all are.
        last = {"alertname": "ParkedSidecarAbsent", "ledger": "last"}, {"alertname": "ParkedGrowing", "ledger": "last"}
        self.post(target, source, *last)
        wait_until(lambda: self.is_held_back(last[1]))
        held = self.is_held_back(target)
        self.post(target, source, *last, ended=True)
        wait_until(lambda: not any(self.alert(labels) for labels in (target, source, *last)))
        return held

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory):
    running = Alertmanager(tmp_path_factory.mktemp("alertmanager"))
    yield running
    running.stop()


def test_every_inhibition_holds_within_one_ledger():
    assert CONFIG["inhibit_rules"]
    for rule in CONFIG["inhibit_rules"]:
        assert "ledger" in rule["equal"]


@pytest.mark.parametrize(
    ("source", "of", "targets", "theirs", "near_miss"),
    [
        ("ParkedSidecarAbsent", LEDGER, ["ParkedConfigurationFault", "ParkedTooLong"], NIGHTLY, OTHER_LEDGER),
        ("ParkedLedgerUnreadable", LEDGER, ["ParkedUnaccountedJobs", "ParkedOrphans"], NIGHTLY, OTHER_LEDGER),
        ("ParkedLedgerNotWritable", LEDGER, ["ParkedTaskFailing"], LEDGER, {"ledger": "brisk-heron"}),
        (
            "ParkedConfigurationFault",
            NIGHTLY,
            ["ParkedGrowing", "ParkedShareTooHigh", "ParkedBacklogNotShrinking", "ParkedByConfigurationFault"],
            NIGHTLY,
            OTHER_PIPELINE,
        ),
        ("ParkedByConfigurationFault", NIGHTLY, ["ParkedStillParked", "ParkedPermanentFailure"], NIGHTLY, OTHER_LEDGER),
        ("ParkedUnwatched", LEDGER, ["ParkedSidecarAbsent"], LEDGER, {"ledger": "brisk-heron"}),
        ("ParkedDailyQuotaExhausted", NIGHTLY, ["ParkedBacklogNotShrinking"], NIGHTLY, OTHER_PIPELINE),
        ("ParkedStillParked", OF_A_CLASS, ["ParkedPermanentFailure", "ParkedOrphans"], OF_A_CLASS, OF_ANOTHER_CLASS),
        ("ParkedTooLong", OF_A_CLASS, ["ParkedStillParked"], OF_A_CLASS, OF_ANOTHER_CLASS),
    ],
)
def test_what_explains_others_silences_them_and_nothing_of_another(
    alertmanager, source, of, targets, theirs, near_miss
):
    cause = {"alertname": source, **of}
    for target in targets:
        assert alertmanager.holds_back(cause, {"alertname": target, **theirs}), target
        assert not alertmanager.holds_back(cause, {"alertname": target, **near_miss}), target


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ParkedGrowing", "ParkedConfigurationFault"),  # not the other way round
        ("ParkedConfigurationFault", "ParkedOrphans"),
        ("ParkedConfigurationFault", "ParkedUnaccountedJobs"),
        ("ParkedSidecarAbsent", "ParkedLedgerUnreadable"),
        ("ParkedSidecarAbsent", "ParkedUnwatched"),
        ("ParkedUnwatched", "ParkedUnaccountedJobs"),
        ("ParkedLedgerUnreadable", "ParkedNoLedger"),
        ("ParkedSidecarAbsent", "InstanceDown"),  # of somebody else
        ("ParkedPipelinePaused", "ParkedShareTooHigh"),
        ("ParkedTooLong", "ParkedPermanentFailure"),  # new ones of an old class
    ],
)
def test_what_does_not_follow_from_another_is_told(alertmanager, one, other):
    assert not alertmanager.holds_back({"alertname": one, **NIGHTLY}, {"alertname": other, **NIGHTLY})


# --- what is told, and how often ---------------------------------------------------------------------------------


class Notification(NamedTuple):
    key: str  # Alertmanager's of the group; PagerDuty's is its hash
    told: list[tuple[str, str]]  # each alert's name, and whether it is firing or resolved


class Phone:
    """An Alertmanager with the example's routes and inhibitions in quick motion, and what it sends, in its order."""

    def __init__(self, folder: Path) -> None:
        came = self._came = queue.SimpleQueue[Notification]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told = [(alert["labels"]["alertname"], alert["status"]) for alert in body["alerts"]]
                came.put(Notification(body["groupKey"], told))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        url = f"http://127.0.0.1:{self._server.server_port}/"
        hooks = [
            {"name": receiver["name"], "webhook_configs": [{"url": url, "send_resolved": True}]}
            for receiver in CONFIG["receivers"]
        ]
        quick = {"group_wait": "200ms", "group_interval": "500ms"}
        config = {**CONFIG, "route": CONFIG["route"] | quick, "receivers": hooks, "templates": []}
        (folder / "quick.yml").write_text(yaml.safe_dump(config), "utf-8")
        self.alertmanager = Alertmanager(folder / "data", folder / "quick.yml")

    def hears(self) -> Notification:
        return self._came.get(timeout=PATIENCE_S)

    def hears_the_rest(self) -> list[Notification]:
        """All that comes until another ledger has had its word twice, later than whatever else would be sent."""
        last = {"alertname": "ParkedGrowing", "severity": "ticket", "ledger": "last", "pipeline": "nightly"}
        rest = []
        for ended in (False, True):
            self.alertmanager.post(last, ended=ended)
            while '"last"' not in (one := self.hears()).key:
                rest.append(one)
        return rest

    def close(self) -> None:
        self.alertmanager.stop()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def phone(tmp_path):
    ready = Phone(tmp_path)
    yield ready
    ready.close()


def page(name: str) -> dict[str, str]:
    return {"alertname": name, "severity": "page", **NIGHTLY}


def ticket(name: str, of: dict[str, str] = NIGHTLY) -> dict[str, str]:
    return {"alertname": name, "severity": "ticket", **of}


def test_a_dead_key_rings_by_itself_while_a_high_share_does_and_the_share_rings_no_second_time(phone):
    share, dead_key = page("ParkedShareTooHigh"), page("ParkedConfigurationFault")

    phone.alertmanager.post(share)
    first = phone.hears()
    phone.alertmanager.post(dead_key)
    second = phone.hears()
    phone.alertmanager.post(dead_key, ended=True)
    third = phone.hears()

    assert first.told == [("ParkedShareTooHigh", "firing")]
    assert second.told == [("ParkedConfigurationFault", "firing")]
    assert second.key != first.key
    assert third == Notification(second.key, [("ParkedConfigurationFault", "resolved")])
    assert phone.hears_the_rest() == []


def test_what_is_over_is_told_once_however_much_else_comes(phone):
    growing, others = ticket("ParkedGrowing"), ("ParkedPipelineSilent", "ParkedPipelinePaused", "ParkedRunningTooLong")
    phone.alertmanager.post(growing)
    heard = [phone.hears()]
    phone.alertmanager.post(growing, ended=True)
    heard.append(phone.hears())

    for other in others:
        phone.alertmanager.post(ticket(other))
        heard.append(phone.hears())
        phone.alertmanager.post(growing, ended=True)  # Prometheus says so for a quarter of an hour
        heard += phone.hears_the_rest()

    assert [one.told for one in heard] == [
        [("ParkedGrowing", "firing")],
        [("ParkedGrowing", "resolved")],
        *([(other, "firing")] for other in others),
    ]


def test_a_ticket_that_turns_from_news_into_what_is_still_parked_is_not_told_as_over(phone):
    news, rest = ticket("ParkedPermanentFailure", OF_A_CLASS), ticket("ParkedStillParked", OF_A_CLASS)
    phone.alertmanager.post(news)
    heard = [phone.hears()]

    phone.alertmanager.post(rest)  # of one evaluation
    phone.alertmanager.post(news, ended=True)
    heard += phone.hears_the_rest()

    assert [one.told for one in heard] == [[("ParkedPermanentFailure", "firing")], [("ParkedStillParked", "firing")]]


# --- what is said ------------------------------------------------------------------------------------------------

FIRING: dict[str, Any] = {
    "status": "firing",
    "labels": {"alertname": "ParkedPermanentFailure", "severity": "ticket", "error_class": "permanent:400"}
    | {"reason": "invalid_request"}
    | NIGHTLY,
    "annotations": {
        "summary": "nightly: 3 jobs parked as permanent:400 (invalid_request)",
        "description": "They fail again until something is changed.",
        "jobs": "3",
        "shown_by": "night-1:9465, night-2:9465",
        "command": "parked causes --pipeline='nightly' --class='permanent:400'",
        "runbook_url": "https://wiki.example.com/parked/RUNBOOK.md#parkedpermanentfailure",
        "dashboard_url": "https://grafana.example.com/d/parked-triage?var-ledger=amber-otter",
    },
}
RESOLVED: dict[str, Any] = {
    "status": "resolved",
    "labels": NIGHTLY,
    "annotations": {"summary": "nightly: 8 jobs orphaned"},
}


def rendered(
    folder: Path,
    template: str,
    *alerts: dict[str, Any],
    templates: str = "parked.tmpl",
    severity: str | None = "ticket",
) -> str:
    data = {
        "receiver": "parked-tickets",
        "status": "firing" if any(alert["status"] == "firing" for alert in alerts) else "resolved",
        "alerts": list(alerts),
        "groupLabels": NIGHTLY,
        "commonLabels": ({"severity": severity} if severity is not None else {}) | NIGHTLY,
        "commonAnnotations": {},
        "externalURL": "",
    }
    (folder / "data.json").write_text(json.dumps(data), "utf-8")
    return amtool(
        "template", "render", f"--template.glob={templates}", f"--template.data={folder / 'data.json'}",
        f'--template.text={{{{ template "{template}" . }}}}',
    ).strip()  # fmt: skip


def test_a_notification_says_class_reason_count_and_what_to_type(tmp_path):
    assert rendered(tmp_path, "parked.title", FIRING, FIRING) == f"TICKET (2): {FIRING['annotations']['summary']}"

    assert rendered(tmp_path, "parked.text", FIRING, RESOLVED).splitlines() == [
        "They fail again until something is changed.",
        "ledger: amber-otter, last shown by night-1:9465, night-2:9465",
        "class: permanent:400",
        "reason: invalid_request",
        "jobs: 3",
        "to type: parked causes --pipeline='nightly' --class='permanent:400'",
        "runbook: https://wiki.example.com/parked/RUNBOOK.md#parkedpermanentfailure",
        "dashboard: https://grafana.example.com/d/parked-triage?var-ledger=amber-otter",
        "",
        "over: nightly: 8 jobs orphaned",
    ]


def test_of_several_alerts_each_says_what_it_is_about(tmp_path):
    said = rendered(tmp_path, "parked.text", FIRING, FIRING).splitlines()

    assert said.count(FIRING["annotations"]["summary"]) == 2


def test_the_title_is_about_what_fires_as_long_as_anything_does(tmp_path):
    said = f"TICKET: {FIRING['annotations']['summary']}"

    assert rendered(tmp_path, "parked.title", RESOLVED, FIRING) == said


def test_a_title_for_pages_and_tickets_together_has_a_word_too(tmp_path):
    said = f"ALERT: {FIRING['annotations']['summary']}"

    assert rendered(tmp_path, "parked.title", FIRING, severity=None) == said


def test_the_prefix_may_differ_by_ledger(tmp_path):
    text = (DASHBOARDS / "parked.tmpl").read_text(encoding="utf-8")
    (example,) = re.findall(r"so that ledgers can differ: (.*\{\{ end \}\}) \*/", text)
    mine = text.replace('{{ define "parked.prefix" }}', '{{ define "parked.prefix" }}' + example)
    (tmp_path / "mine.tmpl").write_text(mine, "utf-8")

    here, elsewhere = (
        rendered(
            tmp_path, "parked.text", {**FIRING, "labels": {**FIRING["labels"], **of}}, templates=f"{tmp_path}/*.tmpl"
        )
        for of in (LEDGER, OTHER_LEDGER)
    )

    assert "to type: ssh night-1 parked causes" in here
    assert "to type: parked causes" in elsewhere


def test_a_title_that_names_no_pipeline_says_where_its_ledger_is(tmp_path):
    said = {"summary": "ledger amber-otter can't be read", "shown_by": "night-1:9465"}
    unreadable = {"status": "firing", "labels": LEDGER, "annotations": said}

    title = rendered(tmp_path, "parked.title", unreadable)

    assert title == "TICKET: ledger amber-otter can't be read (last shown by night-1:9465)"


def test_a_title_about_a_ledger_that_was_never_shown_names_no_sidecar(tmp_path):
    said = {"summary": "the ledger of night-1:9465 can't be read", "shown_by": ""}
    unreadable = {"status": "firing", "labels": {"instance": "night-1:9465"}, "annotations": said}

    assert rendered(tmp_path, "parked.title", unreadable) == "TICKET: the ledger of night-1:9465 can't be read"


def test_what_is_over_says_so(tmp_path):
    assert rendered(tmp_path, "parked.title", RESOLVED) == "OVER: nightly: 8 jobs orphaned"


def test_the_command_is_told_with_the_prefix_that_says_where_it_runs(tmp_path):
    text = (DASHBOARDS / "parked.tmpl").read_text(encoding="utf-8")
    mine = text.replace(
        '{{ define "parked.prefix" }}',
        '{{ define "parked.prefix" }}kubectl exec -n night deploy/captions -c parked -- ',
    )
    assert mine != text
    (tmp_path / "mine.tmpl").write_text(mine, "utf-8")

    said = rendered(tmp_path, "parked.text", FIRING, templates=str(tmp_path / "mine.tmpl"))

    assert (
        "to type: kubectl exec -n night deploy/captions -c parked --"
        " parked causes --pipeline='nightly' --class='permanent:400'\n" in said
    )
