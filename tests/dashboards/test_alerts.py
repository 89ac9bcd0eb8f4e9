"""The alert rules: promtool runs their cases, and what they name exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from expressions import TARGET_LABELS, labels_of
from parked.pauses import ITS_OWN_PERHAPS
from parked.verdict import MEANINGS, Kind, Reason, Scope
from parked_exporter.metrics import METRICS, OWN_METRICS, Type
from servers import missing

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "dashboards"
CASES = ("alerts_test.yml", "alerts_days_test.yml")
PATIENCE_S = 300.0  # the cases take some 15 s

# What users say in expected.yml.
EXPECTED = {
    "pipeline:parked_expected_interval:seconds": frozenset({"ledger", "pipeline"}),
    "ledger:parked_expected_absence:seconds": frozenset({"ledger"}),
}


def read(name: str) -> Any:
    return yaml.safe_load((DASHBOARDS / name).read_text(encoding="utf-8"))


RULES = [rule for group in read("alerts.yml")["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDS = [rule for rule in RULES if "record" in rule]
BY_NAME = [pytest.param(rule, id=rule.get("alert") or rule["record"]) for rule in RULES]
ALERTS_BY_NAME = [pytest.param(rule, id=rule["alert"]) for rule in ALERTS]


def exported() -> dict[str, frozenset[str]]:
    """The labels of every series that the sidecar exports, by its name."""
    found = {}
    for spec in (*METRICS, *OWN_METRICS):
        labels = frozenset(spec.labels) | TARGET_LABELS | ({"ledger"} if spec in METRICS else set())
        found[spec.name] = labels
        if spec.type is Type.HISTOGRAM:
            found |= {f"{spec.name}_bucket": labels | {"le"}, f"{spec.name}_sum": labels, f"{spec.name}_count": labels}
    return found


def level(record: str) -> frozenset[str]:
    """The labels that the name of a record says: its first part, in the words of the metrics' own labels."""
    words = sorted({label for labels in exported().values() for label in labels}, key=len, reverse=True)
    found, rest = set(), f"_{record.partition(':')[0]}"
    for word in words:
        if f"_{word}_" in f"{rest}_":
            found.add(word)
            rest = rest.replace(f"_{word}", "", 1)
    assert not rest, f"{record}: {rest} is no label"
    return frozenset(found)


# What Prometheus keeps of its own alerts.
ALERTED = {"ALERTS": frozenset({"alertname", "alertstate", "severity", "ledger"})}
SERIES = exported() | EXPECTED | ALERTED | {rule["record"]: level(rule["record"]) for rule in RECORDS}


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool") or missing("promtool")
    return subprocess.run(
        [str(program), *words], cwd=DASHBOARDS, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


# --- promtool ----------------------------------------------------------------------------------------------------


def test_promtool_has_no_complaint_about_the_rules():
    checked = promtool("check", "rules", "--lint-fatal", "alerts.yml", "expected.yml")

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_prometheus_takes_the_configuration():
    checked = promtool("check", "config", "prometheus.yml")

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 rule files found" in checked.stdout


@pytest.mark.parametrize("cases", CASES)
def test_every_rule_fires_when_it_should_and_not_when_it_nearly_should(cases):
    tested = promtool("test", "rules", cases)

    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("rule", ALERTS_BY_NAME)
def test_every_alert_has_a_case_that_fires_it_with_its_whole_annotations_and_one_that_does_not(rule):
    cases = [case for file in CASES for test in read(file)["tests"] for case in test["alert_rule_test"]]

    expected = [case["exp_alerts"] for case in cases if case["alertname"] == rule["alert"]]

    assert [] in expected
    fired = [alert for alerts in expected for alert in alerts]
    assert fired
    for alert in fired:
        assert alert["exp_annotations"].keys() == rule["annotations"].keys()


def test_the_addresses_are_put_in_as_the_page_says(tmp_path):
    for name in ("alerts.yml", *CASES):
        shutil.copy(DASHBOARDS / name, tmp_path)
    page = (DASHBOARDS / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ +(sed -i .*\\\n.*alerts.*)$", page, re.MULTILINE)

    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)

    text = (tmp_path / "alerts.yml").read_text(encoding="utf-8")
    rules = text[text.index("groups:") :]
    assert "example.com" not in rules
    assert rules.count("https://grafana.your.org/d/parked-") == len(ALERTS)
    assert rules.count("https://wiki.your.org/parked/RUNBOOK.md#") == len(ALERTS)
    for name in CASES:
        assert "example.com" not in (tmp_path / name).read_text(encoding="utf-8")


# --- what the rules name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", BY_NAME)
def test_every_expression_uses_only_metrics_and_labels_that_there_are(rule):
    labels = labels_of(rule["expr"], SERIES)

    if "record" in rule:
        assert labels == level(rule["record"])
        return
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    assert used <= labels, f"{used - labels} of the annotations is no label of the alert"


def queries(rule: dict[str, Any]) -> Iterator[str]:
    """The expressions that the annotations of an alert ask, with some value in the place of each label."""
    for text in rule["annotations"].values():
        for query in re.findall(r"printf `([^`]*)` [^|]*\| query", text):
            yield query.replace("%q", '"x"')


@pytest.mark.parametrize("rule", ALERTS_BY_NAME)
def test_every_query_of_an_annotation_uses_only_metrics_and_labels_that_there_are(rule):
    for query in queries(rule):
        labels_of(query, SERIES)


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("parked_job", "nothing exports parked_job"),
        ('parked_jobs{pipelin="x"}', "pipelin"),
        ("sum by (ledger, clas) (parked_jobs)", "clas"),
        ("parked_jobs and on (task) parked_ledger_jobs", "task"),
        ("parked_jobs * on (ledger) group_left (task) parked_owners", "task"),
        ("max by (ledger) (parked_ledger_up)", "ledger"),
        ("sum by (pipeline) (max by (ledger) (parked_jobs))", "pipeline"),
    ],
)
def test_an_expression_that_would_return_nothing_is_found(expression, complaint):
    with pytest.raises(ValueError, match=complaint):
        labels_of(expression, SERIES)


@pytest.mark.parametrize("rule", ALERTS_BY_NAME)
def test_every_alert_says_how_bad_it_is_where_to_look_and_what_to_type(rule):
    annotations = rule["annotations"]

    assert rule["labels"] == {"severity": "page"} or rule["labels"] == {"severity": "ticket"}
    assert {"summary", "description", "command", "runbook_url", "dashboard_url"} <= annotations.keys()
    assert annotations["runbook_url"].endswith(f"/RUNBOOK.md#{rule['alert'].lower()}")
    labels = labels_of(rule["expr"], SERIES)
    assert ("shown_by" in annotations) is ("ledger" in labels)
    for label in {"ledger", "pipeline", "error_class"} & labels:
        said = annotations["summary"] + annotations["description"]
        assert f"$labels.{label} " in said or f"$labels.{label} }}}}" in said, f"{label} is not told"


@pytest.mark.parametrize("rule", ALERTS_BY_NAME)
def test_the_link_of_an_alert_leads_to_a_dashboard_that_knows_what_it_is_about(rule):
    boards = [json.loads((DASHBOARDS / name).read_text(encoding="utf-8")) for name in ("overview.json", "triage.json")]
    uid, _, query = rule["annotations"]["dashboard_url"].rpartition("/")[2].partition("?")

    (board,) = [board for board in boards if board["uid"] == uid]

    known = {variable["name"] for variable in board["templating"]["list"]}
    asked = dict(re.findall(r"var-(\w+)=\{\{ \$labels\.(\w+) \| urlquery \}\}", query))
    assert asked or "ledger" not in labels_of(rule["expr"], SERIES)
    assert query.count("var-") == len(asked)
    assert all(variable == label for variable, label in asked.items())
    assert asked.keys() <= known


@pytest.mark.parametrize(
    ("alert", "wanted"),
    [
        (
            "ParkedConfigurationFault",
            {r for r, m in MEANINGS.items() if m.kind is Kind.PERMANENT and m.scope in (Scope.MODEL, Scope.PROJECT)},
        ),
        (
            "ParkedByConfigurationFault",
            {r for r, m in MEANINGS.items() if m.kind is Kind.PERMANENT and m.scope in (Scope.MODEL, Scope.PROJECT)},
        ),
    ],
)
def test_the_faults_of_a_configuration_are_those_that_every_job_would_meet(alert, wanted):
    (rule,) = [rule for rule in ALERTS if rule["alert"] == alert]

    named = [set(words.split("|")) for words in re.findall(r'reason=~"([a-z_|]+)"', rule["expr"])]

    assert set().union(*named) == wanted
    if len(named) == 2:  # what one job's payload can cause stands apart
        assert named[1] == ITS_OWN_PERHAPS


def test_a_pause_is_told_by_one_alert_whatever_its_reason():
    stopped, paused = (
        next(rule["expr"] for rule in ALERTS if rule["alert"] == name)
        for name in ("ParkedConfigurationFault", "ParkedPipelinePaused")
    )

    (faults,) = re.findall(r'reason=~"([a-z_|]+)"', stopped)
    (others,) = re.findall(r'reason!~"([a-z_|]+)"', paused)

    assert set(others.split("|")) == {*faults.split("|"), Reason.DAILY_QUOTA_EXHAUSTED}


def test_what_is_expected_is_said_by_taking_comments_away(tmp_path):
    text = (DASHBOARDS / "expected.yml").read_text(encoding="utf-8")
    assert read("expected.yml")["groups"][0]["rules"] is None

    said = yaml.safe_load(re.sub(r"^( {4})# ( +(?:- record|labels|expr):)", r"\1 \2", text, flags=re.MULTILINE))

    rules = said["groups"][0]["rules"]
    assert {rule["record"]: frozenset(rule["labels"]) for rule in rules} == EXPECTED
    (tmp_path / "expected.yml").write_text(yaml.safe_dump(said))
    checked = promtool("check", "rules", "--lint-fatal", str(tmp_path / "expected.yml"))
    assert checked.returncode == 0, checked.stderr
