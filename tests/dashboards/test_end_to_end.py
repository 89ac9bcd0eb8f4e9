"""From a failed call to somebody's phone: real programs and our files, with a webhook in the place of PagerDuty."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from expressions import names_in
from parked.simulator import Request, Simulator
from parked.simulator import replies as reply
from servers import free_port, missing, wait_until

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
MODEL = "gemini-3.5-flash"
AT_MOST_S = 12.0  # from the first failure to the webhook, with scrapes and evaluations every second
PATIENCE_S = 60.0


class Told(NamedTuple):
    """One alert of a notification that arrived."""

    receiver: str
    status: str  # firing or resolved
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    at: float  # monotonic


class Phone:
    """Takes what Alertmanager sends, and keeps it in its order."""

    def __init__(self) -> None:
        coming = self._coming = queue.SimpleQueue[Told]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for one in body["alerts"]:
                    labels, annotations = one["labels"], one["annotations"]
                    coming.put(Told(body["receiver"], one["status"], labels, annotations, time.monotonic()))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.told: list[Told] = []

    def rings(self, alert: str, status: str = "firing") -> Told:
        """Wait until that alert has come, or has come to its end, and return it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for told in self.told:
                if (told.labels["alertname"], told.status) == (alert, status):
                    return told
            with suppress(queue.Empty):
                self.told.append(self._coming.get(timeout=max(0.01, deadline - time.monotonic())))
            assert time.monotonic() < deadline, f"{alert} {status}: only {[(t.labels, t.status) for t in self.told]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def running(*command: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def program(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None) or missing(names[-1])
    return str(found)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return answer.read()


class Stack(NamedTuple):
    """Prometheus and Alertmanager that are up, a sidecar that can be started, and an API."""

    api: Simulator
    phone: Phone
    folder: Path
    environment: dict[str, str]  # of what is started from now on
    prometheus: str
    start_sidecar: Callable[[], AbstractContextManager[object]]

    @contextmanager
    def sidecar(self) -> Iterator[None]:
        """A sidecar, once Prometheus has scraped it."""
        with self.start_sidecar():
            wait_until(lambda: self.query("up{job='parked'}") == 1.0)
            yield

    def parked(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "parked.cli", *words],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str) -> int:
        process = self.parked(*words)
        process.communicate(timeout=PATIENCE_S)
        return process.returncode

    def query(self, expression: str) -> float | None:
        """The value of the one series that the expression returns; None if it returns none."""
        answer = json.loads(get(f"{self.prometheus}/api/v1/query?query={urllib.parse.quote(expression)}"))
        found = answer["data"]["result"]
        return float(found[0]["value"][1]) if found else None


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    folder = tmp_path / "dashboards"
    shutil.copytree(DASHBOARDS, folder)
    sidecar, prometheus, alertmanager = (f"127.0.0.1:{free_port()}" for _ in range(3))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARKED_")}
    with ExitStack() as stack:
        api = stack.enter_context(Simulator())
        phone = Phone()
        stack.callback(phone.close)
        environment |= {"GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": api.url}
        # An outage is not waited for.
        environment["PARKED_MAX_OUTAGE_S"] = "0"
        environment |= {"PARKED_LEDGER": f"sqlite:///{tmp_path}/parked.db", "PYTHONPATH": os.pathsep.join(sys.path)}
        edit(folder / "prometheus.yml", lambda config: of_every_second(config, sidecar, alertmanager))
        edit(folder / "alertmanager.yml", lambda config: with_webhooks(config, phone.url))
        start_sidecar = partial(
            running, sys.executable, "-m", "parked_exporter.cli", "--listen", sidecar, env=environment, cwd=tmp_path
        )
        stack.enter_context(
            running(
                program("prometheus"), "--config.file=prometheus.yml", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address={prometheus}", f"--web.external-url=http://{prometheus}/", cwd=folder,
            )
        )  # fmt: skip
        stack.enter_context(
            running(
                program("prometheus-alertmanager", "alertmanager"), "--config.file=alertmanager.yml",
                f"--storage.path={tmp_path / 'alertmanager'}", f"--web.listen-address={alertmanager}",
                f"--web.external-url=http://{alertmanager}/", "--cluster.listen-address=", cwd=folder,
            )
        )  # fmt: skip
        ready = Stack(api, phone, tmp_path, environment, f"http://{prometheus}", start_sidecar)
        wait_until(lambda: answers(f"http://{alertmanager}/-/ready") and answers(f"http://{prometheus}/-/ready"))
        yield ready


def edit(file: Path, change: Callable[[Any], None]) -> None:
    config = yaml.safe_load(file.read_text("utf-8"))
    change(config)
    file.write_text(yaml.safe_dump(config), "utf-8")


def of_every_second(config: Any, sidecar: str, alertmanager: str) -> None:
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [sidecar]}]
    config["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": [alertmanager]}]


def with_webhooks(config: Any, url: str) -> None:
    for receiver in config["receivers"]:
        name = receiver["name"]
        receiver.clear()
        receiver |= {"name": name, "webhook_configs": [{"url": url, "send_resolved": True}]}
    config["route"]["group_interval"] = "1s"  # how soon it is told that something is over


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


def write_jobs(file: Path, prompts: list[str]) -> None:
    lines = [{"job_id": prompt, "model": MODEL, "payload": {"contents": prompt}} for prompt in prompts]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


# What only users say, in expected.yml.
EXPECTED = {"pipeline:parked_expected_interval:seconds", "ledger:parked_expected_absence:seconds"}
# After five minutes without a sidecar; and of one that comes then and can't read its ledger.
LATE = {"ledger:parked_ledger_jobs:absent", "job_instance:parked_ledger_up:successor"}


def test_a_dead_key_and_a_killed_runner_reach_a_phone_within_seconds_and_end_once_they_are_mended(stack):
    failed_at: list[float] = []
    write_jobs(stack.folder / "nightly.jsonl", [f"describe photo {n}" for n in range(20)])
    write_jobs(stack.folder / "titles.jsonl", ["held"])

    with stack.sidecar():
        wait_until(lambda: stack.query("job_instance:parked_ledger_up:waiting") is not None)  # there is no ledger yet

        # A runner is killed in the middle of a call.
        stack.api.answers(lambda request: reply.hang())
        killed = stack.parked("run", "titles.jsonl", "--pipeline", "titles")
        wait_until(lambda: stack.query("parked_oldest_running_timestamp_seconds") is not None)
        killed.kill()
        killed.communicate()

        # The key of another pipeline is dead.
        def dead_key(request: Request) -> reply.Reply:
            failed_at.append(time.monotonic())
            return reply.bad_key()

        stack.api.answers(dead_key)
        assert stack.run("run", "nightly.jsonl", "--pipeline", "nightly") == 4

        page = stack.phone.rings("ParkedConfigurationFault")
        assert page.at - failed_at[0] < AT_MOST_S
        assert page.receiver == "parked-pages"
        assert page.labels["pipeline"] == "nightly"
        assert page.labels["reason"] == "auth_invalid"
        assert page.annotations["summary"] == "nightly is stopped by auth_invalid: 20 jobs pending"

        ticket = stack.phone.rings("ParkedOrphans")
        assert ticket.receiver == "parked-tickets"
        assert ticket.annotations["summary"] == "titles: 1 job orphaned (maybe_sent)"

        once = [reply.no_candidates()]

        # Both are mended. One answer is empty at first, and one job turns out to be refused for what it says.
        def refuse_one(request: Request) -> reply.Reply | None:
            if request.text == "describe photo 3" and once:
                return once.pop()
            if request.text != "describe photo 7":
                return None
            failed_at.append(time.monotonic())
            return reply.blocked_prompt("SAFETY")

        failed_at.clear()
        stack.api.answers(refuse_one)
        assert stack.run("run", "nightly.jsonl", "--pipeline", "nightly") == 1
        assert stack.run("replay", "--class", "orphaned:*", "--apply") == 0

        refused = stack.phone.rings("ParkedPermanentFailure")
        assert refused.at - failed_at[0] < AT_MOST_S
        assert refused.receiver == "parked-tickets"
        assert refused.annotations["summary"] == "nightly: 1 job parked as permanent:prompt_blocked (prompt_blocked)"
        assert refused.annotations["command"] == (
            "parked causes --pipeline='nightly' --class='permanent:prompt_blocked'"
        )
        stack.phone.rings("ParkedConfigurationFault", "resolved")
        stack.phone.rings("ParkedOrphans", "resolved")

    # The sidecar has ended with its pod, and nothing is over for that.
    wait_until(lambda: stack.query("ledger:parked_ledger_jobs:away") is not None)
    assert stack.query("parked_jobs") is None
    assert stack.query("sum(ledger_pipeline_error_class_reason:parked_jobs:sum)") == 1.0
    assert stack.query("ALERTS{alertname='ParkedPermanentFailure', alertstate='firing'}") == 1.0

    # Meanwhile an outage of a minute parks a job; nobody but the sidecar replays it.
    write_jobs(stack.folder / "captions.jsonl", ["late"])
    stack.api.answers(lambda request: reply.overloaded())
    assert stack.run("run", "captions.jsonl", "--pipeline", "captions", "--max-attempts", "1") == 1

    stack.environment["PARKED_AUTO_REPLAY"] = "captions=1m"

    stack.api.answers(None)
    assert stack.run("replay", "--class", "permanent:prompt_blocked", "--apply") == 0
    assert "resolved" not in {one.status for one in stack.phone.told if one.labels == refused.labels}
    with stack.sidecar():
        stack.phone.rings("ParkedPermanentFailure", "resolved")
        wait_until(lambda: stack.query("ledger_pipeline_result:parked_replayed_jobs_total:sum") == 1.0)
        assert stack.query("sum(parked_jobs)") == 0.0

    told = {one.labels["alertname"] for one in stack.phone.told}
    assert told == {"ParkedConfigurationFault", "ParkedOrphans", "ParkedPermanentFailure"}
    groups = json.loads(get(f"{stack.prometheus}/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    there = set(json.loads(get(f"{stack.prometheus}/api/v1/label/__name__/values"))["data"])
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    asked = set[str]().union(*(names_in(rule["query"]) for rule in rules))
    assert recorded - there == LATE
    assert asked - there == EXPECTED | LATE
