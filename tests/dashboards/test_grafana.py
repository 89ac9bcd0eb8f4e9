"""The Grafana dashboards: current, legible, and made of what the sidecar exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import promql_parser
import pytest
import yaml

from parked_exporter.collector import cut
from parked_exporter.metrics import METRICS, OWN_METRICS, Type
from servers import missing

FOLDER = Path(__file__).parents[2] / "dashboards"
NAMES = ("overview.json", "triage.json")

# What Grafana puts in the place of its variables.
VALUES = {
    "$__rate_interval": "1m",
    "$__range": "1h",
    "$__interval_ms": "60000",
    "$__interval": "1m",
    "$ledger": ".*",
    "$pipeline": ".*",
    "$error_class": ".*",
    "$prefix": "kubectl exec x --",
}


@pytest.fixture(scope="module")
def make():
    sys.path.insert(0, str(FOLDER))
    try:
        import make

        yield make
    finally:
        sys.path.remove(str(FOLDER))


def dashboard(name):
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def panels(name):
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def expressions(name):
    return [target["expr"] for panel in panels(name) for target in panel.get("targets", ())]


def filled_in(expression):
    for variable, value in VALUES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression.replace("'$1'", "").replace('"$1"', "")
    return expression


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_what_the_code_makes(make, name):
    made = make.as_json(make.DASHBOARDS[name]())

    assert (FOLDER / name).read_text(encoding="utf-8") == made, "run: python dashboards/make.py"


@pytest.mark.parametrize("name", NAMES)
def test_every_panel_says_what_it_shows_and_in_which_unit(name):
    for panel in panels(name):
        assert len(panel["description"]) > 20, panel["title"]
        if panel["type"] != "text":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_do_not_overlap_and_fill_their_rows(name):
    taken: set[tuple[int, int]] = set()
    for panel in dashboard(name)["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    last = max(y for _, y in taken)
    assert len(taken) == 24 * (last + 1)


@pytest.mark.parametrize("name", NAMES)
def test_every_expression_is_one_and_uses_only_what_the_sidecar_exports(name):
    exported = {}
    for spec in (*METRICS, *OWN_METRICS):
        labels = {*spec.labels, "instance", "job"} | ({"ledger"} if spec in METRICS else set())
        exported[spec.name] = labels
        if spec.type is Type.HISTOGRAM:
            exported[f"{spec.name}_bucket"] = labels | {"le"}

    for expression in expressions(name):
        promql_parser.parse(filled_in(expression))
        for metric, matchers in re.findall(r"(parked_\w+)(?:\{([^}]*)\})?", expression):
            assert metric in exported, expression
            assert set(re.findall(r"(\w+)[=!]~", matchers)) <= exported[metric], expression


def test_alerts_and_links_find_the_dashboards_by_these_names():
    assert [dashboard(name)["uid"] for name in NAMES] == ["parked-overview", "parked-triage"]
    assert [variable["name"] for variable in dashboard("overview.json")["templating"]["list"]] == [
        "datasource", "ledger", "pipeline"
    ]  # fmt: skip


# A pipeline and a class as labels -> what Triage says to type.
TYPED = [
    ("nightly", "exhausted:503", "parked causes --pipeline='nightly' --class='exhausted:503'"),
    ("--apply", "exhausted:503", "parked causes --pipeline='--apply' --class='exhausted:503'"),
    ('a "b" $(c)', "exhausted:503", "parked causes --pipeline='a \"b\" $(c)' --class='exhausted:503'"),
    ("it's; rm x", "exhausted:503", "parked causes  --class='exhausted:503'"),
    ("other", "exhausted:503", "parked causes  --class='exhausted:503'"),
    (cut("n" * 129), "exhausted:503", "parked causes  --class='exhausted:503'"),
    ("n" * 128, "other", f"parked causes --pipeline='{'n' * 128}' "),
]


def test_what_is_to_be_typed_names_a_pipeline_only_where_a_shell_and_parked_understand_it(tmp_path):
    (expression,) = (filled_in(each) for each in expressions("triage.json") if "parked causes" in each)
    rest = {"reason": "overloaded", "model": "m"}
    series = [{"pipeline": pipeline, "error_class": error_class} | rest for pipeline, error_class, _ in TYPED]
    found = [
        labels | {"command": f"kubectl exec x -- {typed}"} for labels, (_, _, typed) in zip(series, TYPED, strict=True)
    ]
    without = "sum by (pipeline, error_class, reason, model, command)"

    judge(
        tmp_path, "1m", [(selector({"ledger": "l"} | labels), "1x5") for labels in series],
        f"{without} ({expression})", "1m", {selector(labels, name=""): 1 for labels in found},
    )  # fmt: skip


def test_without_a_prefix_a_command_begins_with_its_name(tmp_path):
    (expression,) = (each.replace("$prefix", "") for each in expressions("triage.json") if "parked causes" in each)
    labels = {"pipeline": "p", "error_class": "exhausted:503", "reason": "overloaded", "model": "m"}
    found = {"command": "parked causes --pipeline='p' --class='exhausted:503'"}

    judge(
        tmp_path, "1m", [(selector({"ledger": "l"} | labels), "1x5")],
        f"sum by (command) ({filled_in(expression)})", "1m", {selector(found, name=""): 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "rows"), [("_ 1x3", {'{model="m", reason="rate"}': 1}), ("_x4", {'{model="none"}': 0})]
)
def test_nothing_has_a_row_of_its_own_only_where_there_is_nothing_in_all_that_time(tmp_path, shown, rows):
    (expression,) = (filled_in(each) for each in expressions("overview.json") if "parked_gate_closed" in each)

    judge(tmp_path, "1m", [('parked_gate_closed{ledger="l", model="m", reason="rate"}', shown)], expression, "3m", rows)


# What a counter shows hour by hour until the 40th, and the parked jobs and the age of the oldest if the ledger is one
# that nobody has looked at before -> how many jobs were parked in the last 24 hours.
COUNTED = [
    ("nothing happens", "3x40", 0),
    ("it rises", "3x29 5x10", 2),
    ("a class is new", "_x29 27x10", 27),
    ("nobody looks for some hours", "3x9 _x19 30x10", 27),
    ("the sidecar has ended with its job", "3x29 5x1 stale", 2),
    ("an older copy of the ledger was put back", "9x29 4x10", 0),
]


@pytest.mark.parametrize(("shown", "counted"), [case[1:] for case in COUNTED], ids=[case[0] for case in COUNTED])
def test_a_day_is_counted_in_whole_numbers_with_what_came_before_the_first_sample(tmp_path, shown, counted):
    known = ('parked_ledger_bytes{ledger="l"}', "1x40")

    judge(tmp_path, "1h", [known, (PARKED, shown)], day(), "40h", {"{}": counted})


@pytest.mark.parametrize(
    ("oldest_at", "counted"), [(30 * 3600 - 60, 27), (3600, 4)], ids=["parked today", "parked before"]
)
def test_of_a_ledger_that_is_new_here_a_day_counts_what_it_says_was_parked_in_it(tmp_path, oldest_at, counted):
    series = [
        ('parked_ledger_bytes{ledger="l"}', "_x30 27x10"),
        (PARKED, "_x30 30x5 34x5"),
        (PARKED.replace("parked_jobs_parked_total", "parked_jobs"), "_x30 27x5 0x5"),
        ('parked_oldest_parked_timestamp_seconds{ledger="l", pipeline="p", error_class="exhausted:503"}',
         f"_x30 {oldest_at}x5"),
    ]  # fmt: skip

    judge(tmp_path, "1h", series, day(), "40h", {"{}": counted})


# Minute by minute, two orphans before anybody looked at the class, a gap, and another; what the bar of a minute shows.
@pytest.mark.parametrize(("at", "shown"), [("4m", 0), ("5m", 2), ("6m", 0), ("15m", 0), ("18m", 1), ("19m", 0)])
def test_bars_add_up_to_what_the_ledger_has_counted(tmp_path, at, shown):
    (bars,) = (filled_in(each) for each in expressions("overview.json") if 'error_class=~"orphaned' in each)
    known = ('parked_ledger_bytes{ledger="l"}', "1x40")
    orphans = PARKED.replace("exhausted:503", "orphaned:maybe_sent")
    found = {'{error_class="orphaned:maybe_sent"}': shown} if shown else {'{error_class="none"}': 0}

    judge(tmp_path, "1m", [known, (orphans, "_x5 2x5 _x7 3x20")], bars, at, found)


PARKED = (
    'parked_jobs_parked_total{ledger="l", pipeline="p", model="m", error_class="exhausted:503", reason="overloaded"}'
)


def day():
    (found,) = (each for each in expressions("overview.json") if "[24h]" in each)
    return filled_in(found)


def judge(folder, interval, series, expression, at, samples):
    """See with promtool that an expression finds these values, by their labels, `at` a time of these series."""
    case = {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in series],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": at,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in samples.items()],
            }
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump({"tests": [case]}), "utf-8")
    program = shutil.which("promtool") or missing("promtool")
    tested = subprocess.run(
        [str(program), "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr


def selector(labels, *, name="parked_jobs"):
    return name + "{" + ", ".join(f"{label}={json.dumps(value)}" for label, value in labels.items()) + "}"
