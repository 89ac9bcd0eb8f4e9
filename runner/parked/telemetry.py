"""Every name of a span and key of an attribute, and the spans of one course.

Names of the GenAI semantic conventions where they exist, else `parked.*`. The library uses OpenTelemetry's API alone
and needs no SDK. Telemetry never fails or delays a job: what an exporter or a processor raises here is dropped.
No prompt or answer goes into a span, and no message, unless they are asked for.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any, Final, NamedTuple, ParamSpec

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider

from parked.answers import TRUNCATED
from parked.course import Raised, Returned
from parked.job import ANSWERED, State
from parked.ledger import operations as op
from parked.ledger.operations import NO_SPAN, SpanIds
from parked.version import __version__

JOB_SPAN: Final = "parked.job"
REPLAY_SPAN: Final = "parked.replay"
OPERATION: Final = "generate_content"

GATE_WAIT: Final = "parked.gate.wait"  # an event on the job's span

JOB_ID: Final = "parked.job.id"
PIPELINE: Final = "parked.pipeline"
BATCH: Final = "parked.batch"
STATE: Final = "parked.state"
ATTEMPT: Final = "parked.attempt"
ATTEMPTS: Final = "parked.attempts"
TOKENS_IN: Final = "parked.tokens.input"
TOKENS_OUT: Final = "parked.tokens.output"
FAILURE_KIND: Final = "parked.failure.kind"
FAILURE_REASON: Final = "parked.failure.reason"
FAILURE_SCOPE: Final = "parked.failure.scope"
FAILURE_RULE: Final = "parked.failure.rule"
FAILURE_FINGERPRINT: Final = "parked.failure.fingerprint"
FAILURE_MESSAGE: Final = "parked.failure.message"  # only where messages may leave the ledger
QUOTA_ID: Final = "parked.failure.quota_id"
ERROR_CLASS: Final = "parked.error_class"
RETRY_DELAY_S: Final = "parked.retry.delay_s"
ANSWER_TRUNCATED: Final = "parked.answer.truncated"  # true, or not there
CONTENT_TRUNCATED: Final = "parked.content.truncated"  # the attributes whose texts were cut, or not there
GATE_WAIT_S: Final = "parked.gate.wait_s"
REPLAY_ID: Final = "parked.replay.id"
REPLAY_TRIGGER: Final = "parked.replay.trigger"
RECOVERED: Final = "parked.replay.recovered"  # these are numbers of jobs
PARKED_AGAIN: Final = "parked.replay.parked_again"
NOT_RUN: Final = "parked.replay.not_run"
SPARED: Final = "parked.replay.spared"

ERROR_TYPE: Final = "error.type"
STATUS_CODE: Final = "http.response.status_code"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_TOKENS_IN: Final = "gen_ai.usage.input_tokens"
GEN_AI_TOKENS_OUT: Final = "gen_ai.usage.output_tokens"
# Only where they are asked for; JSON, which `content.py` makes.
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
GEN_AI_SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CAPTURED: Final = ("true", "span_only", "span_and_event")
_NOT_CAPTURED: Final = ("", "false", "no_content", "event_only")  # parked makes no events

_log = logging.getLogger("parked.telemetry")

_P = ParamSpec("_P")


def _harmless(method: Callable[_P, None]) -> Callable[_P, None]:
    """A processor or exporter of the user's may raise anything; no job may fail for it."""

    @wraps(method)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except (KeyboardInterrupt, SystemExit):  # of a signal that came in here
            raise
        except BaseException:  # noqa: BLE001 - as above
            return

    return guarded


def content_wanted() -> bool:
    """Whether OpenTelemetry's variable asks for prompts and answers on spans."""
    return _is_captured(os.environ.get(CAPTURE, "").strip().lower())


@cache  # so that a value which isn't known is logged once
def _is_captured(value: str) -> bool:
    if value not in (*_CAPTURED, *_NOT_CAPTURED):
        known = ", ".join((*_CAPTURED, *_NOT_CAPTURED[1:]))
        why = f"{CAPTURE} must be one of {known}, got {value[:40]!r}"
        _log.warning("content_not_captured why=%s", json.dumps(why))
    return value in _CAPTURED


class Destination(NamedTuple):
    """Where the calls go; attributes of every attempt's span."""

    provider: str = ""  # `gcp.gemini`, `gcp.vertex_ai`; empty where a caller of one's own is used
    address: str = ""
    port: int | None = None

    def attributes(self) -> dict[str, str | int]:
        named = {GEN_AI_PROVIDER: self.provider, SERVER_ADDRESS: self.address, SERVER_PORT: self.port}
        return {key: value for key, value in named.items() if value}


@dataclass
class Spans:
    """Starts the spans of one runner's courses."""

    destination: Destination = field(default_factory=Destination)
    provider: TracerProvider | None = None  # None: the global one, whenever it is set
    messages: bool = False  # whether an attempt's span tells what was said when it failed, scrubbed
    content: bool = field(default_factory=lambda: content_wanted())  # whether it tells what was asked and answered
    tracer: trace.Tracer = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.tracer = trace.get_tracer("parked", __version__, self.provider)

    def job(self, name: JobName, *, replay_id: int | None = None, parked_by: SpanIds = NO_SPAN) -> JobTrace:
        """The trace of one course. A replay's is a new one, linked to the span that parked the job."""
        return JobTrace(self, name, replay_id, parked_by)

    def replay(self, replay_id: int, *, trigger: str, pipeline: str | None) -> ReplayTrace:
        """The span of a replay as a whole. Its jobs have traces of their own, which name it (`parked.replay.id`)."""
        return ReplayTrace(self, replay_id, trigger, pipeline)


class JobName(NamedTuple):
    pipeline: str
    batch: str
    job_id: str
    model: str


class ReplayTrace:
    """The span of one replay, which stands above no other: what it logs carries its ids."""

    __slots__ = ("_span", "_spans")

    def __init__(self, spans: Spans, replay_id: int, trigger: str, pipeline: str | None) -> None:
        self._spans = spans
        self._span: Span = trace.INVALID_SPAN
        self._begin(replay_id, trigger, pipeline)

    @_harmless
    def _begin(self, replay_id: int, trigger: str, pipeline: str | None) -> None:
        attributes: dict[str, str | int] = {REPLAY_ID: replay_id, REPLAY_TRIGGER: trigger}
        if pipeline is not None:
            attributes[PIPELINE] = pipeline
        nobody = trace.set_span_in_context(trace.INVALID_SPAN)
        self._span = self._spans.tracer.start_span(REPLAY_SPAN, nobody, SpanKind.INTERNAL, attributes)

    @contextmanager
    def current(self) -> Iterator[None]:
        token = context.attach(trace.set_span_in_context(self._span))
        try:
            yield
        finally:
            context.detach(token)

    @_harmless
    def end(self, *, recovered: int, parked_again: int, not_run: int, spared: int) -> None:
        self._span.set_attributes({RECOVERED: recovered, PARKED_AGAIN: parked_again, NOT_RUN: not_run, SPARED: spared})
        self._span.end()


class JobTrace:
    """The span of one job's course, and below it one for each attempt."""

    __slots__ = (
        "_answer", "_asked", "_attempt", "_ended_ns", "_job", "_name", "_spans", "_tokens_in", "_tokens_out", "ids"
    )  # fmt: skip

    def __init__(self, spans: Spans, name: JobName, replay_id: int | None, parked_by: SpanIds) -> None:
        self._spans, self._name = spans, name
        self._job: Span = trace.INVALID_SPAN
        self._attempt: Span | None = None
        self._ended_ns = 0
        self._tokens_in = self._tokens_out = 0
        self._asked: Any = None  # this and the answer: of the open attempt, where they are to be told
        self._answer: Any = None
        self.ids = NO_SPAN  # of the job's span, where it is sampled
        self._begin(replay_id, parked_by)

    @_harmless
    def _begin(self, replay_id: int | None, parked_by: SpanIds) -> None:
        name = self._name
        attributes: dict[str, str | int] = {JOB_ID: name.job_id, PIPELINE: name.pipeline, GEN_AI_MODEL: name.model}
        if name.batch:
            attributes[BATCH] = name.batch
        parent: Context | None = None
        links: tuple[Link, ...] = ()
        if replay_id is not None:
            attributes[REPLAY_ID] = replay_id
            parent, links = trace.set_span_in_context(trace.INVALID_SPAN), _links(parked_by)
        self._job = self._spans.tracer.start_span(JOB_SPAN, parent, SpanKind.INTERNAL, attributes, links)
        self.ids = _ids(self._job)

    @contextmanager
    def asking(self, attempt: int, payload: Any) -> Iterator[None]:
        """The attempt's span, current inside; it is ended once the ledger has what became of it (`recorded`)."""
        self._attempt = trace.INVALID_SPAN
        if self._spans.content:
            self._asked, self._answer = payload, None
        if not self._job.get_span_context().is_valid:  # nobody traces, and most calls are made so
            yield
            return
        self._open(attempt)
        token = context.attach(trace.set_span_in_context(self._attempt))
        try:
            yield
        except GeneratorExit:  # thrown away in another context, where there is nothing to detach
            raise
        except BaseException:
            context.detach(token)
            raise
        else:
            context.detach(token)
        finally:
            self._ended_ns = time.time_ns()

    def came(self, outcome: Returned | Raised) -> None:
        """What the call came to."""
        if self._spans.content and isinstance(outcome, Returned):
            self._answer = outcome.value

    def attempt_ids(self) -> SpanIds:
        return NO_SPAN if self._attempt is None else _ids(self._attempt)

    @_harmless
    def _open(self, attempt: int) -> None:
        name = self._name
        self._attempt = self._spans.tracer.start_span(
            f"{OPERATION} {name.model}",
            trace.set_span_in_context(self._job),
            SpanKind.CLIENT,
            {
                GEN_AI_OPERATION: OPERATION,
                GEN_AI_MODEL: name.model,
                JOB_ID: name.job_id,
                PIPELINE: name.pipeline,
                ATTEMPT: attempt,
                **self._spans.destination.attributes(),
            },
        )

    @_harmless
    def waited(self, wait_s: float) -> None:
        """The job has waited for its turn, for longer than its backoff."""
        self._job.add_event(GATE_WAIT, {GATE_WAIT_S: round(wait_s, 3)})

    @_harmless
    def recorded(self, operation: op.Operation, finish_reasons: tuple[str, ...]) -> None:
        """End the attempt's span with what the ledger was told."""
        span = self._attempt
        if span is None or not isinstance(operation, (op.Answer, op.Retried, op.Park, op.Release)):
            return
        closing = operation.closing
        if closing is None:
            return
        self._attempt = None
        self._tokens_in += closing.tokens_in or 0
        self._tokens_out += closing.tokens_out or 0
        if span.is_recording():
            span.set_attributes(_attempt_attributes(operation, closing, finish_reasons))
            if closing.kind is not None:
                span.set_status(StatusCode.ERROR)
                if self._spans.messages and closing.message:
                    span.set_attribute(FAILURE_MESSAGE, closing.message)
        self._tell_content(span)
        span.end(self._ended_ns)

    @_harmless
    def end(self, row: op.JobRow) -> None:
        """End the job's span; an attempt that is still open was interrupted."""
        if self._attempt is not None:
            self._attempt.set_attribute(ERROR_TYPE, "interrupted")
            self._attempt.set_status(StatusCode.ERROR)
            self._tell_content(self._attempt)
            self._attempt.end()
        if self._job.is_recording():
            self._job.set_attributes(
                {
                    STATE: row.state,
                    ATTEMPTS: row.calls,
                    TOKENS_IN: self._tokens_in,
                    TOKENS_OUT: self._tokens_out,
                    **({ERROR_CLASS: row.error_class} if row.state is State.PARKED and row.error_class else {}),
                }
            )
            if row.state not in ANSWERED:
                self._job.set_status(StatusCode.ERROR)
        self._job.end()

    @_harmless
    def _tell_content(self, span: Span) -> None:
        """Tell what was asked and answered, where that is wanted: once the ledger has it, so that no job waits."""
        if not self._spans.content:
            return
        asked, answer, self._asked, self._answer = self._asked, self._answer, None, None
        if span.is_recording():
            from parked.content import content_of

            span.set_attributes(content_of(asked, answer))


def _attempt_attributes(operation: op.Outcome, closing: op.Closing, finish_reasons: tuple[str, ...]) -> dict[str, Any]:
    named: dict[str, Any] = {
        GEN_AI_RESPONSE_ID: closing.response_id,
        GEN_AI_FINISH_REASONS: finish_reasons or None,
        GEN_AI_TOKENS_IN: closing.tokens_in,
        GEN_AI_TOKENS_OUT: closing.tokens_out,
        STATUS_CODE: closing.status,
        ANSWER_TRUNCATED: closing.rule == TRUNCATED or None,
    }
    if closing.kind is not None:
        named |= {
            ERROR_TYPE: str(closing.status or closing.reason),
            FAILURE_KIND: closing.kind,
            FAILURE_REASON: closing.reason,
            FAILURE_SCOPE: closing.scope,
            FAILURE_RULE: closing.rule,
            FAILURE_FINGERPRINT: closing.fingerprint,
            QUOTA_ID: closing.quota_id,
            ERROR_CLASS: operation.error_class if isinstance(operation, op.Park) else None,
            RETRY_DELAY_S: operation.wait_s if isinstance(operation, op.Retried) else None,
        }
    return {key: value for key, value in named.items() if value is not None}


def _ids(span: Span) -> SpanIds:
    """The ids of a sampled span: others are of no use to whoever looks for them."""
    at = span.get_span_context()
    if not at.is_valid or not at.trace_flags.sampled:
        return NO_SPAN
    return SpanIds(trace.format_trace_id(at.trace_id), trace.format_span_id(at.span_id))


def current_ids() -> SpanIds:
    """Those of the span that is current in this thread or task, where it is sampled."""
    return _ids(trace.get_current_span())


def _links(parked_by: SpanIds) -> tuple[Link, ...]:
    if not parked_by.trace_id or not parked_by.span_id:
        return ()
    at = trace.SpanContext(
        int(parked_by.trace_id, 16),
        int(parked_by.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    return (Link(at),)
