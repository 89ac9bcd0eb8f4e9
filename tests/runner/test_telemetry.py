"""Spans as an SDK sees them: one a job, one an attempt, with the failure told apart and no text of anybody."""

from __future__ import annotations

import asyncio
import atexit
import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import parked
from parked.course import Hold
from parked.job import State
from parked.ledger import operations as op
from parked.ledger.store import Filters
from parked.runner import SyncDriver
from parked.simulator import replies as reply
from parked.telemetry import Spans, current_ids
from parked.tracing import tracing

PROMPT = "What is six times seven, sunshine?"
JOB = parked.Job("a-1", model="gemini-3.5-flash", payload={"contents": PROMPT})


@pytest.fixture
def runner(ledger, gemini, clock, provider):
    return parked.Runner(ledger, gemini, pipeline="nightly", clock=clock, spans=Spans(provider=provider))


def by_name(exported):
    spans = exported.get_finished_spans()
    (job,) = [span for span in spans if span.name == "parked.job"]
    return job, [span for span in spans if span is not job]


def test_a_job_has_one_span_and_each_attempt_one_below_it(runner, simulator, exported):
    simulator.will_answer(reply.overloaded(), reply.text("42"))

    runner.run(JOB)

    job, attempts = by_name(exported)
    assert [span.name for span in attempts] == ["generate_content gemini-3.5-flash"] * 2
    assert {span.parent.span_id for span in attempts} == {job.context.span_id}
    assert (job.kind, attempts[0].kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)


def test_a_failed_attempt_says_what_failed_and_what_follows(runner, simulator, exported):
    simulator.will_answer(reply.rate_limited(retry_delay_s=34), reply.text("42"))

    runner.run(JOB)

    _, (failed, _) = by_name(exported)
    told = dict(failed.attributes)
    assert failed.status.status_code is StatusCode.ERROR
    assert told.pop("parked.failure.fingerprint")
    assert told.pop("server.port")
    assert told == {
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "gemini-3.5-flash",
        "server.address": "127.0.0.1",
        "http.response.status_code": 429,
        "error.type": "429",
        "parked.job.id": "a-1",
        "parked.pipeline": "nightly",
        "parked.attempt": 1,
        "parked.failure.kind": "retryable",
        "parked.failure.reason": "rate_limited",
        "parked.failure.scope": "model",
        "parked.failure.rule": told["parked.failure.rule"],
        "parked.failure.quota_id": told["parked.failure.quota_id"],
        "parked.retry.delay_s": 34.0,
    }


def test_an_attempt_that_pauses_a_run_says_what_failed_though_its_job_stays_pending(ledger, clock, provider, exported):
    from google.genai import errors

    def call(payload, model):
        raise errors.ClientError(401, {"error": {"code": 401, "status": "UNAUTHENTICATED", "message": "no"}})

    runner = parked.Runner(ledger, call, clock=clock, spans=Spans(provider=provider))
    jobs = [dataclasses.replace(JOB, job_id=f"a-{n}") for n in range(40)]

    assert {outcome.state for outcome in runner.run_many(jobs, concurrency=4)} == {State.PENDING}

    attempts = [span for span in exported.get_finished_spans() if span.name != "parked.job"]
    assert attempts
    for attempt in attempts:
        assert attempt.status.status_code is StatusCode.ERROR
        assert attempt.attributes["error.type"] == "401"
        assert attempt.attributes["parked.failure.reason"] == "auth_invalid"


def test_an_answered_attempt_says_what_it_cost(runner, simulator, exported):
    simulator.will_answer(reply.text("42"))

    runner.run(JOB)

    job, (attempt,) = by_name(exported)
    assert attempt.status.status_code is StatusCode.UNSET
    assert attempt.attributes["gen_ai.response.finish_reasons"] == ("STOP",)
    assert attempt.attributes["gen_ai.usage.input_tokens"] == job.attributes["parked.tokens.input"] > 0
    assert attempt.attributes["gen_ai.usage.output_tokens"] == job.attributes["parked.tokens.output"] > 0
    assert attempt.attributes["gen_ai.response.id"]
    assert "gen_ai.usage.input_tokens" not in job.attributes


def test_a_job_that_succeeded_after_retries_is_no_error_and_a_parked_one_is(runner, simulator, exported):
    simulator.will_answer(reply.overloaded(), reply.text("42"))
    runner.run(JOB)
    job, _ = by_name(exported)
    assert (job.status.status_code, job.attributes["parked.state"]) == (StatusCode.UNSET, "succeeded")

    exported.clear()
    simulator.answers(lambda request: reply.invalid_request())
    runner.run(parked.Job("a-2", model="m", payload={"contents": "x"}))

    job, (attempt,) = by_name(exported)
    assert job.status.status_code is StatusCode.ERROR
    assert job.attributes["parked.error_class"] == attempt.attributes["parked.error_class"] == "permanent:400"


def test_an_empty_answer_is_an_error_though_its_status_is_200(runner, simulator, exported):
    simulator.answers(lambda request: reply.no_candidates())

    runner.run(JOB)

    _, attempts = by_name(exported)
    assert {span.attributes["error.type"] for span in attempts} == {"empty_answer"}
    assert {span.status.status_code for span in attempts} == {StatusCode.ERROR}


def test_the_ledger_knows_the_sampled_spans(runner, simulator, exported, attempts):
    simulator.answers(lambda request: reply.invalid_request())

    runner.run(JOB)

    _, (span,) = by_name(exported)
    (attempt,) = attempts("a-1")
    assert (int(attempt.trace_id, 16), int(attempt.span_id, 16)) == (span.context.trace_id, span.context.span_id)


def test_the_ledger_keeps_no_ids_of_spans_that_were_not_sampled(ledger, gemini, simulator, clock, attempts):
    provider = TracerProvider(sampler=ALWAYS_OFF)
    parked.Runner(ledger, gemini, clock=clock, spans=Spans(provider=provider)).run(JOB)

    assert [(attempt.trace_id, attempt.span_id) for attempt in attempts("a-1")] == [(None, None)]


def test_a_replay_has_a_trace_of_its_own_linked_to_the_job_span_that_parked_it(runner, simulator, exported, ledger):
    simulator.will_answer(reply.invalid_request())
    runner.run(JOB)
    parked_by, _ = by_name(exported)
    exported.clear()

    replay_id = ledger.record(op.OpenReplay("r", "me", "{}"))
    with ledger.ask() as reader:
        (row,) = reader.jobs(Filters(), states=(State.PARKED,))
    hold = Hold(row, JOB.payload, ledger.owner_id, replay_id=replay_id)
    SyncDriver(runner._on).drive(hold, runner._on.trace(hold))

    job, _ = by_name(exported)
    assert job.context.trace_id != parked_by.context.trace_id
    assert [link.context.span_id for link in job.links] == [parked_by.context.span_id]


def test_a_replay_as_a_whole_is_a_span_with_what_it_came_to(provider, exported):
    replay = Spans(provider=provider).replay(7, trigger="auto", pipeline="nightly")
    with replay.current():
        inside = current_ids()
    replay.end(recovered=3, parked_again=1, not_run=0, spared=6)

    (span,) = exported.get_finished_spans()
    assert (span.name, span.parent, span.links) == ("parked.replay", None, ())
    assert dict(span.attributes) == {
        "parked.replay.id": 7, "parked.replay.trigger": "auto", "parked.pipeline": "nightly",
        "parked.replay.recovered": 3, "parked.replay.parked_again": 1, "parked.replay.not_run": 0,
        "parked.replay.spared": 6,
    }  # fmt: skip
    assert inside == op.SpanIds(format(span.context.trace_id, "032x"), format(span.context.span_id, "016x"))
    assert current_ids() == op.NO_SPAN


def test_the_attempts_span_is_current_around_the_call_and_not_after_it(ledger, clock, provider, exported):
    tracer = provider.get_tracer("mine")

    def call(payload, model):
        with tracer.start_as_current_span("mine"):
            return "42"

    parked.Runner(ledger, call, clock=clock, spans=Spans(provider=provider)).run(JOB)
    tracer.start_span("after").end()

    spans = {span.name: span for span in exported.get_finished_spans()}
    assert spans["mine"].parent.span_id == spans["generate_content gemini-3.5-flash"].context.span_id
    assert spans["after"].parent is None


def test_no_text_of_a_user_or_a_server_is_on_a_span(runner, simulator, exported):
    simulator.will_answer(reply.invalid_request(f"bad field in '{PROMPT}'"))

    runner.run(JOB)

    for span in exported.get_finished_spans():
        assert "sunshine" not in span.to_json()


class Broken(SimpleSpanProcessor):
    def __init__(self, error):
        super().__init__(InMemorySpanExporter())
        self.error = error

    def on_start(self, span, parent_context=None):
        raise self.error

    def on_end(self, span):
        raise self.error


class Foreign(BaseException):
    """Not an Exception: a library's own way out."""


@pytest.mark.parametrize(
    "error",
    [RuntimeError("a processor that fails"), MemoryError(), asyncio.CancelledError(), Foreign()],
    ids=lambda error: type(error).__name__,
)
def test_telemetry_that_fails_changes_nothing(ledger, clock, scripted, states, error):
    provider = TracerProvider()
    provider.add_span_processor(Broken(error))
    spans = Spans(provider=provider)

    one = parked.Runner(ledger, scripted(ConnectionResetError(), "42"), clock=clock, spans=spans).run(JOB)
    many = parked.Runner(ledger, scripted("42"), clock=clock, spans=spans, batch="2").run_many([JOB])

    assert [one.text, *(outcome.text for outcome in many)] == ["42", "42"]
    assert states() == {State.SUCCEEDED: 2}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=lambda error: type(error).__name__)
def test_what_ends_a_program_in_telemetry_is_raised_and_leaves_no_job_held(ledger, clock, scripted, states, error):
    """A signal may come in at any place."""
    provider = TracerProvider()
    provider.add_span_processor(Broken(error))

    with pytest.raises(type(error)):
        parked.Runner(ledger, scripted("42"), clock=clock, spans=Spans(provider=provider)).run(JOB)

    assert set(states()) <= {State.SUCCEEDED, State.PENDING}


class Hanging(SpanExporter):
    def __init__(self):
        self.asked, self.may_end = threading.Event(), threading.Event()

    def export(self, spans):
        self.asked.set()
        self.may_end.wait(30)
        return SpanExportResult.FAILURE


def test_an_exporter_that_hangs_changes_nothing(ledger, clock, states):
    exporter = Hanging()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=16, max_export_batch_size=4))
    jobs = [parked.Job(f"a-{n}", model="m", payload=n) for n in range(50)]

    runner = parked.Runner(ledger, lambda payload, model: "42", clock=clock, spans=Spans(provider=provider))
    outcomes = list(runner.run_many(jobs))

    assert exporter.asked.is_set()
    assert not exporter.may_end.is_set()
    assert {outcome.text for outcome in outcomes} == {"42"}
    assert states() == {State.SUCCEEDED: 50}
    exporter.may_end.set()
    provider.shutdown()


def test_a_collector_that_never_answers_changes_nothing_of_what_a_command_does(tmp_path):
    (tmp_path / "jobs.jsonl").write_text('{"job_id": "a-1", "model": "m", "payload": 1}\n')
    (tmp_path / "mine.py").write_text("def call(payload, model):\n    return '42'\n")
    with socket.create_server(("127.0.0.1", 0)) as collector:
        told = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "0.5",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        }
        words = [sys.executable, "-m", "parked.cli", "run", "jobs.jsonl", "--call", "mine:call"]
        ran = subprocess.run(words, cwd=tmp_path, env=os.environ | told, capture_output=True, text=True, timeout=60)

    assert (ran.returncode, json.loads(ran.stdout)["text"]) == (0, "42")


class Unending(TracerProvider):
    """Raises when it is shut down, as an exporter may; not once more at the exit of the tests."""

    def shutdown(self):
        if self._atexit_handler is not None:
            atexit.unregister(self._atexit_handler)
        raise RuntimeError("an exporter that fails")


def test_an_exporter_that_fails_at_the_end_does_not_fail_the_command(monkeypatch):
    monkeypatch.setattr("opentelemetry.sdk.trace.TracerProvider", Unending)
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", lambda provider: None)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")

    with tracing("parked"):
        pass


@pytest.fixture
def resource(monkeypatch):
    """Returns a function that sets the SDK up and returns what its spans say of the program."""
    providers: list[TracerProvider] = []
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", providers.append)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")

    def set_up():
        with tracing("parked"):
            return dict(providers[-1].resource.attributes)

    return set_up


def test_spans_say_which_program_in_which_version_and_which_instance_of_it(resource):
    one, other = resource(), resource()

    assert (one["service.name"], one["service.version"]) == ("parked", parked.__version__)
    assert len({one["service.instance.id"], other["service.instance.id"], ""}) == 3


def test_what_the_environment_says_of_the_program_goes_first(resource, monkeypatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=captions,service.instance.id=pod-7,k8s.pod.name=x")

    told = resource()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "titles")

    assert (told["service.name"], told["service.instance.id"], told["k8s.pod.name"]) == ("captions", "pod-7", "x")
    assert told["service.version"] == parked.__version__
    assert resource()["service.name"] == "titles"


def test_an_interrupted_attempt_ends_its_span(ledger, scripted, clock, provider, exported):
    with pytest.raises(KeyboardInterrupt):
        parked.Runner(ledger, scripted(KeyboardInterrupt()), clock=clock, spans=Spans(provider=provider)).run(JOB)

    job, (attempt,) = by_name(exported)
    assert attempt.attributes["error.type"] == "interrupted"
    assert json.loads(job.to_json())["status"]["status_code"] == "ERROR"


def test_an_answer_that_was_allowed_to_be_cut_off_says_so(ledger, gemini, simulator, clock, provider, exported):
    simulator.will_answer(reply.stopped("MAX_TOKENS", text="This secur"), reply.text("42"))
    runner = parked.Runner(ledger, gemini, clock=clock, spans=Spans(provider=provider), allow_truncated=True)

    runner.run(JOB)
    _, (cut_off,) = by_name(exported)
    exported.clear()
    runner.run(parked.Job("a-2", model="m", payload={"contents": PROMPT}))
    _, (whole,) = by_name(exported)

    assert cut_off.attributes["parked.answer.truncated"] is True
    assert cut_off.status.status_code is StatusCode.UNSET
    assert "parked.answer.truncated" not in whole.attributes
