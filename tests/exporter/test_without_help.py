"""Sidecar processes that replay by themselves: outages, kills and ends, on each database, without anybody's help."""

from __future__ import annotations

import http.server
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import parked
from parked.job import State
from parked.ledger import open_ledger
from parked.ledger.store import Filters
from parked.policy import Policy
from parked.simulator import replies as reply
from parked.telemetry import Spans
from servers import IN_A_SECOND_S

MODEL = "gemini-3.5-flash"
PATIENCE_S = 20.0
SOON = {"PARKED_AUTO_REPLAY": "*=1s"}
AT_ONCE = {"PARKED_MAX_ATTEMPTS": "1", "PARKED_MAX_OUTAGE_S": "0"}  # each failure counts


@pytest.fixture
def url(url_on_each_database):
    return url_on_each_database


@pytest.fixture
def night(ledger, api):
    """Returns a function that runs so many jobs while the model is overloaded, which it stays."""
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=api.url))

    def run(jobs, **more):
        api.answers(lambda request: reply.overloaded())
        policy = Policy(max_attempts=1, max_outage_s=0.0)
        runner = parked.Runner(ledger, parked.Gemini(client), pipeline="captions", policy=policy, **more)
        for n in range(jobs):
            runner.run(parked.Job(f"a-{n}", model=MODEL, payload={"contents": f"a-{n}"}))
        api.requests.clear()

    yield run
    client.close()


@pytest.fixture
def loader(tmp_path):
    """The user's own module: what it is given stands in a file, whose lines this returns a function to read."""
    (tmp_path / "loader.py").write_text(
        "def take(answer):\n    with open('taken', 'a') as file:\n        file.write(answer['job_id'] + '\\n')\n"
    )
    return lambda: (tmp_path / "taken").read_text().split() if (tmp_path / "taken").exists() else []


def until(holds, *, within_s=PATIENCE_S):
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def states(url):
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return {state: jobs for (_, state), jobs in reader.states().items()}


def classes(ledger):
    with ledger.ask() as reader:
        return sorted(row.error_class for row in reader.jobs(Filters(), states=(State.PARKED,)))


def asked(api):
    return sorted(request.text for request in api.requests)


def labels(**given):
    return tuple(sorted(given.items()))


def test_an_outage_is_recovered_from_and_every_answer_delivered(start_sidecar, url, ledger, night, api, loader):
    night(12)
    ends = time.monotonic() + 3.0
    api.answers(lambda request: reply.overloaded() if time.monotonic() < ends else None)

    sidecar = start_sidecar(env=SOON | {"PARKED_ON_ANSWER": "loader:take"})
    record = sidecar.event("auto_replayed", recovered=12)
    until(lambda: len(loader()) == 12)

    samples = sidecar.scrape()
    job = {"pipeline": "captions", "model": MODEL}
    assert (record["parked_again"], record["spared"]) == (0, 0)
    assert states(url) == {State.RECOVERED: 12}
    assert sorted(loader()) == sorted(f"a-{n}" for n in range(12))
    assert samples["parked_replayed_jobs_total"] == {
        labels(**job, error_class="exhausted:503", trigger="auto", result="recovered"): 12.0
    }
    parked_by_runs = {series: value for series, value in samples["parked_jobs_parked_total"].items() if value}
    assert parked_by_runs == {labels(**job, error_class="exhausted:503", reason="overloaded"): 12.0}
    assert set(samples["parked_unaccounted_jobs"].values()) == {0.0}
    sidecar.until(
        lambda samples: samples.get("parked_answer_deliveries_total") == {labels(**job, result="delivered"): 12.0}
    )
    with ledger.ask() as reader:
        assert list(reader.answers(Filters(), only_new=True)) == []


def test_an_outage_that_outlasts_a_replay_does_not_use_up_what_a_job_is_allowed(start_sidecar, url, night, api):
    night(6)  # and goes on

    sidecar = start_sidecar(env=SOON | {"PARKED_MAX_OUTAGE_S": "1", "PARKED_AUTO_REPLAY_MAX": "1"})
    record = sidecar.event("auto_replayed")
    assert (record["recovered"], record["parked_again"], record["not_run"]) == (0, 0, 3)
    api.answers(None)
    until(lambda: states(url) == {State.RECOVERED: 6}, within_s=60.0)  # the next round probes every 15 s


def test_canaries_that_fail_spare_the_rest(start_sidecar, url, night, api):
    night(10)

    sidecar = start_sidecar(env={"PARKED_AUTO_REPLAY": "captions=1h"} | AT_ONCE)
    record = sidecar.event("auto_replayed")

    assert (record["recovered"], record["parked_again"], record["spared"]) == (0, 3, 7)
    assert asked(api) == ["a-0", "a-1", "a-2"]
    assert states(url) == {State.PARKED: 10}


def test_a_sidecar_that_is_killed_in_a_replay_loses_nothing(start_sidecar, url, ledger, night, api):
    night(8)
    before = len(api.calls)
    api.hold()
    killed = start_sidecar(env=SOON)
    api.wait_for_requests(before + 3)

    killed.process.kill()
    killed.process.wait()
    api.answers(None)
    api.release()
    start_sidecar(env=SOON | AT_ONCE).event("auto_replayed")

    assert classes(ledger) == ["orphaned:maybe_sent"] * 3  # for a person: they may have been answered and paid for
    assert states(url) == {State.PARKED: 3, State.RECOVERED: 5}


def test_sigterm_in_a_replay_ends_the_sidecar_within_a_second_and_releases_its_jobs(
    start_sidecar, url, ledger, night, api
):
    night(8)
    before = len(api.calls)
    api.hold()
    sidecar = start_sidecar(env=SOON)
    api.wait_for_requests(before + 3)
    began = time.monotonic()

    status = sidecar.stop()
    took_s = time.monotonic() - began

    assert status == 0
    assert took_s < IN_A_SECOND_S  # a command would wait 20 s for its calls
    assert classes(ledger) == ["exhausted:503"] * 8
    assert states(url) == {State.PARKED: 8}


def test_while_a_replay_waits_for_the_model_scrapes_and_tasks_go_on(start_sidecar, night, api):
    night(8)
    before = len(api.calls)
    api.hold()
    sidecar = start_sidecar(env=SOON)
    api.wait_for_requests(before + 3)
    began = time.time()

    sidecar.until(
        lambda samples: all(
            samples["parked_task_last_success_timestamp_seconds"].get(labels(task=task), 0.0) > 0.0
            for task in ("audit", "orphan_sweep")
        )
    )

    replaying = labels(pipeline="captions", state="replaying")
    assert sidecar.scrape()["parked_ledger_jobs"][replaying] == 3.0
    assert time.time() - began < PATIENCE_S


def test_two_sidecars_replay_nothing_twice(start_sidecar, url, night, api):
    night(40)
    api.answers(lambda request: reply.slow(reply.text("42"), 0.1))

    for _ in range(2):
        start_sidecar(env=SOON)
    until(lambda: states(url) == {State.RECOVERED: 40})

    assert asked(api) == sorted(f"a-{n}" for n in range(40))


def test_another_sidecar_goes_on_when_the_one_that_replays_is_killed(start_sidecar, url, night, api):
    night(3)
    before = len(api.calls)
    api.hold()
    killed = start_sidecar(env=SOON | {"PARKED_AUTO_REPLAY_CLASSES": "exhausted:*,orphaned:*"})
    api.wait_for_requests(before + 3)
    other = start_sidecar(env=SOON | {"PARKED_AUTO_REPLAY_CLASSES": "exhausted:*,orphaned:*"})

    killed.process.kill()
    killed.process.wait()
    api.answers(None)
    api.release()

    other.event("auto_replayed", recovered=3)
    assert states(url) == {State.RECOVERED: 3}


def test_the_sdk_is_not_loaded_as_long_as_there_is_nothing_to_replay(start_sidecar, ledger):
    sidecar = start_sidecar(env=SOON)
    sidecar.until(
        lambda samples: labels(task="auto_replay") in samples.get("parked_task_last_success_timestamp_seconds", {})
    )

    assert "pydantic" not in Path(f"/proc/{sidecar.process.pid}/maps").read_text()  # comes with google-genai


# --- traces -----------------------------------------------------------------------------------------------------


class Collector:
    """A collector of OpenTelemetry's that keeps the spans it is sent, each with its resource, by name."""

    def __init__(self):
        self.spans: list[tuple[Any, dict[str, str]]] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    resource = {each.key: each.value.string_value for each in part.resource.attributes}
                    collector.spans += [(span, resource) for scope in part.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def named(self, name):
        return [(span, resource) for span, resource in self.spans if span.name == name]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.close()


def attributes(span):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_a_replay_is_a_span_and_its_jobs_are_linked_to_the_spans_that_parked_them(
    start_sidecar, ledger, night, api, collector
):
    from opentelemetry.sdk.trace import TracerProvider

    night(2, spans=Spans(provider=TracerProvider()))  # its spans are exported to nobody, and sampled
    with ledger.ask() as reader:
        parked_by = {(row.trace_id, row.span_id) for row in reader.jobs(Filters(), states=(State.PARKED,))}
    api.answers(None)
    told = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    sidecar = start_sidecar(env=SOON | told)
    record = sidecar.event("auto_replayed")
    until(lambda: len(collector.named("parked.job")) == 2 and collector.named("parked.replay"))

    ((span, resource),) = collector.named("parked.replay")
    jobs = [span for span, _ in collector.named("parked.job")]
    assert attributes(span) == {
        "parked.replay.id": record["replay"], "parked.replay.trigger": "auto", "parked.pipeline": "captions",
        "parked.replay.recovered": 2, "parked.replay.parked_again": 0, "parked.replay.not_run": 0,
        "parked.replay.spared": 0,
    }  # fmt: skip
    assert (record["trace_id"], record["span_id"]) == (span.trace_id.hex(), span.span_id.hex())
    assert {attributes(job)["parked.replay.id"] for job in jobs} == {record["replay"]}
    assert {(link.trace_id.hex(), link.span_id.hex()) for job in jobs for link in job.links} == parked_by
    assert len({job.trace_id for job in jobs} | {span.trace_id}) == 3  # a new trace each
    assert (resource["service.name"], resource["service.version"]) == ("parked-exporter", parked.__version__)
    assert resource["service.instance.id"]
    assert resource["deployment.environment.name"] == "test"


def test_a_collector_that_hangs_does_not_hold_up_the_end(start_sidecar, ledger, night, api):
    import socket

    night(2)
    api.answers(None)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        told = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hangs.getsockname()[1]}"}
        sidecar = start_sidecar(env=SOON | told)
        sidecar.event("auto_replayed")
        began = time.monotonic()

        assert sidecar.stop() == 0
        assert time.monotonic() - began < IN_A_SECOND_S  # the collector is waited for 10 s where nobody ends that
