"""What a real Prometheus makes of a real sidecar, over a night with a restart: real runs, the simulator, real spans."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from parked.simulator import Simulator
from parked.simulator import replies as reply
from parked_exporter.metrics import METRICS, OWN_METRICS, Type
from servers import free_port, missing

PATIENCE_S = 60.0
MODEL = "gemini-3.5-flash"
# By no span of that night: nobody replayed or discarded a job, or wanted answers delivered, and those of a file are
# taken on before a span begins.
NOT_MOVED = {
    "parked_jobs_recovered_total",
    "parked_jobs_discarded_total",
    "parked_replayed_jobs_total",
    "parked_answer_deliveries_total",
    "parked_jobs_accepted_total",
}

DASHBOARDS = Path(__file__).parents[2] / "dashboards"
VARIABLES = {
    "$__rate_interval": "1h",
    "$__range": "1h",
    "$__interval_ms": "3600000",
    "$__interval": "1h",
    "$ledger": ".*",
    "$pipeline": ".*",
    "$error_class": ".*",
}

CONFIGURATION = """\
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: parked
    static_configs:
      - targets: ["127.0.0.1:{port}"]
"""


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        missing(name)
    assert path is not None
    return path


class Prometheus:
    """Scrapes one address, each second."""

    def __init__(self, folder: Path, *, target: int) -> None:
        folder.mkdir()
        (folder / "prometheus.yml").write_text(CONFIGURATION.format(port=target), "utf-8")
        self._port = free_port()
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--enable-feature=exemplar-storage",
                "--log.level=error",
            ],
            stderr=subprocess.DEVNULL,
        )

    def ask(self, path: str, **parameters: str) -> Any:
        """Return `data` of an answer of the HTTP API, `path` being what comes after `/api/v1/`."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return json.load(answer)["data"]

    def value(self, query: str) -> float:
        """The sum of what a query finds now; 0 where it finds nothing."""
        return sum(float(found["value"][1]) for found in self.ask("query", query=query)["result"])

    def until(self, query: str, value: float) -> None:
        deadline = time.monotonic() + PATIENCE_S
        found = None
        while found != value:
            assert time.monotonic() < deadline, (query, found)
            time.sleep(0.05)
            try:
                found = self.value(query)
            except OSError:  # it is still starting
                continue

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


@dataclass
class Night:
    """A pipeline with its ledger, the sidecar at one port, and the Prometheus that scrapes it."""

    folder: Path
    api: str
    prometheus: Prometheus
    port: int
    traces: set[str] = field(default_factory=set)  # of the spans that the runs have ended
    sidecar: subprocess.Popen[bytes] | None = None

    def run(self, *job_ids: str) -> None:
        jobs = [{"job_id": id, "model": MODEL, "payload": {"contents": id}} for id in job_ids]
        (self.folder / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
        told = {"GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": self.api, "OTEL_TRACES_EXPORTER": "console"}
        words = ["parked.cli", "run", "jobs.jsonl", "--pipeline", "captions", "--parked-ok"]
        with self._process(words, told, stderr=subprocess.PIPE) as ran:
            _, spans = ran.communicate(timeout=PATIENCE_S)
        assert ran.returncode == 0, spans
        self.traces |= set(re.findall(r'"trace_id": "0x([0-9a-f]{32})"', spans.decode()))

    def start_sidecar(self) -> None:
        self.sidecar = self._process(["parked_exporter.cli", "--listen", f"127.0.0.1:{self.port}"], {})

    def stop_sidecar(self) -> None:
        if self.sidecar is not None:
            self.sidecar.terminate()
            assert self.sidecar.wait(PATIENCE_S) == 0

    def _process(
        self, words: list[str], told: dict[str, str], *, stderr: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        of_others = ("PARKED_", "OTEL_", "GEMINI_", "GOOGLE_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(of_others)}
        ledger = {"PARKED_LEDGER": f"sqlite:///{self.folder}/parked.db", "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [sys.executable, "-m", *words],
            env=env | ledger | told,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """Two runs, and between them the sidecar was stopped and started again; it is still running."""
    folder = tmp_path_factory.mktemp("night")
    port = free_port()
    with Simulator() as simulator:
        prometheus = Prometheus(folder / "prometheus", target=port)
        night = Night(folder, simulator.url, prometheus, port)
        try:
            simulator.answers(lambda request: reply.text("42"))
            night.run("a-1", "a-2")
            night.start_sidecar()
            prometheus.until("parked_jobs_succeeded_total", 2)
            night.stop_sidecar()
            simulator.will_answer(reply.invalid_request())
            night.run("b-1", "b-2", "b-3")
            night.start_sidecar()
            prometheus.until("parked_jobs_succeeded_total", 4)
            yield night
        finally:
            prometheus.stop()
            night.stop_sidecar()


@pytest.fixture(scope="module")
def prometheus(night: Night) -> Prometheus:
    return night.prometheus


def test_the_sidecar_is_a_target_that_is_up_and_scraped_without_a_fault(prometheus):
    prometheus.until('up{job="parked"}', 1)

    (target,) = prometheus.ask("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


def test_prometheus_knows_type_and_help_of_every_metric(prometheus):
    told = {one["metric"]: (one["type"], one["help"]) for one in prometheus.ask("targets/metadata")}

    ours = {name: facts for name, facts in told.items() if name.startswith("parked_")}
    # In the OpenMetrics format, which it asks for, a counter's family goes without `_total`.
    assert ours == {spec.name.removesuffix("_total"): (str(spec.type), spec.help) for spec in (*METRICS, *OWN_METRICS)}


def test_no_label_of_ours_clashes_with_those_that_prometheus_gives(prometheus):
    series = prometheus.ask("query", query='{job="parked", __name__=~"parked_.*"}')["result"]

    assert len({one["metric"]["__name__"] for one in series}) > 20
    assert {name for one in series for name in one["metric"] if name.startswith("exported_")} == set()


def test_counters_and_buckets_show_the_traces_that_last_moved_them(night, prometheus):
    day = {"start": str(time.time() - 3600), "end": str(time.time() + 3600)}

    found = prometheus.ask("query_exemplars", query='{__name__=~"parked_.*"}', **day)

    shown: dict[str, set[str]] = {}
    for one in found:
        traces = {exemplar["labels"]["trace_id"] for exemplar in one["exemplars"]}
        shown.setdefault(one["seriesLabels"]["__name__"], set()).update(traces)
    counters = {spec.name for spec in METRICS if spec.type is Type.COUNTER} - NOT_MOVED
    assert set(shown) == counters | {"parked_attempt_duration_seconds_bucket"}
    assert set().union(*shown.values()) <= night.traces


def test_counters_never_fall_while_runner_and_sidecar_are_started_anew(prometheus):
    query = '{__name__=~"parked_.+_(total|bucket|count|sum)", __name__!="parked_task_failures_total"}[1h]'

    found = prometheus.ask("query", query=query)["result"]

    rose = set()
    for one in found:
        values = [float(value) for _, value in one["values"]]
        assert values == sorted(values), one["metric"]
        if values[-1] > values[0]:
            rose.add(one["metric"]["__name__"])
    assert rose >= {"parked_jobs_accepted_total", "parked_jobs_parked_total", "parked_attempt_duration_seconds_bucket"}


def test_increase_sees_the_very_first_failure(prometheus):
    assert prometheus.value('increase(parked_jobs_parked_total{reason="invalid_request"}[1h])') > 0


def targets(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the panels of a dashboard ask for, with the title of each."""
    for panel in json.loads((DASHBOARDS / name).read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            yield panel["title"], target | {"expr": query}


@pytest.mark.parametrize("name", ["overview.json", "triage.json"])
def test_every_expression_of_the_dashboards_finds_series(prometheus, name):
    prometheus.until("count(parked_audit_timestamp_seconds)", 1)

    for title, target in targets(name):
        assert prometheus.ask("query", query=target["expr"])["result"], f"{title}: {target['expr']}"


@pytest.mark.parametrize("name", ["overview.json", "triage.json"])
def test_the_points_of_panels_are_traces_by_the_label_that_grafana_is_told(night, prometheus, name):
    source = yaml.safe_load((DASHBOARDS / "provisioning/datasources/prometheus.yml").read_text(encoding="utf-8"))
    (leads,) = source["datasources"][0]["jsonData"]["exemplarTraceIdDestinations"]
    day = {"start": str(time.time() - 3600), "end": str(time.time() + 3600)}

    shown = set()
    for title, target in targets(name):
        if target.get("exemplar") and not any(metric in target["expr"] for metric in NOT_MOVED):
            found = prometheus.ask("query_exemplars", query=target["expr"], **day)
            traces = {exemplar["labels"][leads["name"]] for one in found for exemplar in one["exemplars"]}
            assert traces, f"{title}: {target['expr']}"
            assert traces <= night.traces
            shown.add(title)

    assert (
        shown
        >= {
            "overview.json": {"Accepted and answered", "Parked, by class", "Attempts by outcome", "Latency of answers"},
            "triage.json": {"Parked in each interval"},
        }[name]
    )


def test_promtool_has_no_complaint(start_sidecar, pipeline):
    pipeline.live_through_everything()
    _, _, body = start_sidecar().get("/metrics")

    checked = subprocess.run(
        [program("promtool"), "check", "metrics"], input=body, capture_output=True, timeout=PATIENCE_S
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
