"""What a runner works with, shared by both drivers, the pool and replays: everything of a run that isn't waiting."""

from __future__ import annotations

import json
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Protocol, Self, assert_never

from parked.arguments import check_flag, check_function, check_kind
from parked.calls import Call, too_late
from parked.check import Check, CheckerName, checked
from parked.course import Hold, Raised, Reply, Returned, Rules
from parked.delay import next_pacific_midnight
from parked.errors import InvalidJob, LedgerUnavailable, SettingsError
from parked.gates import Gates
from parked.job import ANSWERED, Job, Outcome, State, check_keys, check_name
from parked.judge import Judged, judge_answer, judge_exception, text_of
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.ledger.codec import OMITTED, decode, encode, encode_answer, identity
from parked.ledger.operations import NO_SPAN, JobRow, SpanIds
from parked.line import Line
from parked.lone import NamedDelays
from parked.policy import Policy, Ruling, decide
from parked.telemetry import Destination, JobName, JobTrace, Spans
from parked.timing import Clock, SystemClock
from parked.verdict import Verdict

if TYPE_CHECKING:
    from parked.settings import Settings

_log = logging.getLogger("parked.runner")


class CallModel(Protocol):
    """Whatever calls a model: `(payload, model) -> answer`; or one with `acall`, the same to be awaited."""

    def __call__(self, payload: Any, model: str, /) -> Any: ...


class Stopped(BaseException):
    """The runner was stopped while this course waited. Its job goes back to the ledger; nobody outside sees this."""


@dataclass(eq=False)
class Running:
    """A ledger, a caller, and the rules by which jobs are run with them."""

    ledger: Ledger
    call_model: CallModel
    pipeline: str = "default"
    batch: str = ""
    policy: Policy = field(default_factory=Policy)
    check: Check | None = None
    allow_truncated: bool = False  # text that stopped at the token limit is an answer
    caller: str = ""  # by name; empty: as the function calls itself
    checker: str = ""  # `check` and `allow_truncated` by name (`CheckerName`)
    clock: Clock = field(default_factory=SystemClock)
    spans: Spans = field(default_factory=lambda: Spans(messages=settings_of_environment().export_messages))
    gates: Gates = field(default_factory=Gates)
    delays: NamedDelays = field(default_factory=NamedDelays)  # of jobs that run alone

    def __post_init__(self) -> None:
        check_kind("ledger", self.ledger, Ledger, rule="what parked.open_ledger returns")
        check_function("call_model", self.call_model, rule="(payload, model) -> answer")
        refuse_generator("call_model", self.call_model)
        if self.check is not None:
            check_function("check", self.check, rule="of the answer")
        refuse_generator("check", self.check)
        check_flag("allow_truncated", self.allow_truncated)
        self.caller = self.caller or name_of(self.call_model)
        check = name_of(self.check) if self.check else ""
        self.checker = self.checker or str(CheckerName(check, self.allow_truncated))
        check_name("the name of call_model", self.caller)
        check_name("the name of the check", self.checker, empty=True)
        describe = getattr(self.call_model, "destination", None)
        if describe is not None:
            self.spans.destination = Destination(*describe())

    # --- taking on ---

    def accept(self, job: Job, *, start: bool = False, span: SpanIds = NO_SPAN) -> op.Accept:
        """The operation that takes a job on.

        Raises:
            InvalidJob: it is none, or its payload is no JSON value, or one that the caller refuses.
        """
        _check(job)
        check_payload = getattr(self.call_model, "check_payload", None)
        if check_payload is not None:
            check_payload(job.payload)
        return acceptance(job, self.pipeline, self.batch, op.Called(self.caller, self.checker))._replace(
            start_for=self.ledger.owner_id if start else None, span=span
        )

    def hold(self, row: JobRow, payload: Any, *, attempt: int | None = None, replay_id: int | None = None) -> Hold:
        return Hold(row, payload, self.ledger.owner_id, replay_id=replay_id, attempt=attempt)

    def name(self, job: Job) -> JobName:
        """How spans name a job.

        Raises:
            InvalidJob: it is none.
        """
        _check(job)
        return JobName(self.pipeline, self.batch, job.job_id, job.model)

    def trace(self, hold: Hold) -> JobTrace:
        row = hold.row
        name = JobName(row.pipeline, row.batch, row.job_id, hold.model)
        return self.spans.job(name, replay_id=hold.replay_id, parked_by=SpanIds(row.trace_id, row.span_id))

    # --- deciding ---

    def rules_alone(self) -> Rules:
        """The rules of a job that runs alone: every failure counts against it, since nothing shows whose it is."""

        def rule(hold: Hold, verdict: Verdict) -> Ruling | None:
            if verdict.ok:
                return None
            self.delays.heed(hold.model, verdict, longest_s=self.policy.max_wait_s, now=self.clock.monotonic())
            then = decide(
                hold.row.strikes + 1, verdict, policy=self.policy, jitter=random.random(), day_left_s=self.day_left_s()
            )
            return Ruling(then, strike=True)

        return Rules(self.judge, self.check is not None, rule)

    def rules_in(self, line: Line) -> Rules:
        """The rules of a job that runs among others."""

        def rule(hold: Hold, verdict: Verdict) -> Ruling | None:
            day_left_s = 0.0 if verdict.ok else self.day_left_s()
            now, jitter = self.clock.monotonic(), random.random()
            return line.ended(hold.row.id, verdict, now, jitter=jitter, day_left_s=day_left_s)

        return Rules(self.judge, self.check is not None, rule)

    def day_left_s(self) -> float:
        """How long until the daily quotas are reset, in seconds."""
        now = self.clock.time()
        return next_pacific_midnight(now) - now

    def judge(self, payload: Any, reply: Reply) -> Judged:
        match reply.outcome:
            case Raised(error):
                return judge_exception(error)
            case Returned(value):
                return judge_answer(value, request=payload, allow_truncated=self.allow_truncated)
            case _:
                assert_never(reply.outcome)

    def inspect(self, judged: Judged) -> Judged:
        """What remains of a success after the check, where there is one."""
        return judged if self.check is None or not judged.verdict.ok else checked(self.check, judged)

    # --- ending ---

    def renewed(self, hold: Hold, start: op.Operation) -> op.Operation:
        """A start that was refused because this process was declared lost, under its new owner id."""
        assert isinstance(start, op.Start)
        hold.owner_id = self.ledger.owner_id
        return start._replace(owner_id=hold.owner_id)

    def timed_out(self, span: SpanIds) -> Reply:
        """The reply of an attempt whose deadline passed."""
        timeout_s = self.policy.attempt_timeout_s
        return Reply(Raised(too_late(timeout_s)), timeout_s, span)

    def late(self, hold: Hold) -> Callable[[Call], None]:
        """What to do with a call that was given up, should it still end: an answer that was paid for is kept."""
        job_id, owner_id, attempt, payload = hold.row.id, hold.owner_id, hold.attempt, hold.payload
        assert attempt is not None

        def keep(call: Call) -> None:
            if not isinstance(call.outcome, Returned):
                return
            if self.ledger.vault.omits:  # nobody waits for it, and it isn't to be stored: the job is to be run again
                return
            judged = self.inspect(self.judge(payload, Reply(call.outcome, duration_s=0.0)))
            if judged.verdict.ok:
                closing = op.Closing(
                    rule=judged.verdict.rule,
                    tokens_in=judged.usage.tokens_in,
                    tokens_out=judged.usage.tokens_out,
                    response_id=judged.response_id,
                )
                try:
                    self.ledger.submit(op.Answer(job_id, owner_id, attempt, encode_answer(judged.answer), closing))
                except LedgerUnavailable:  # the program has closed it meanwhile
                    _log.warning("late_answer_lost job=%d", job_id)

        return keep

    def say_parked(self, job_id: str, error_class: str | None) -> None:
        """Log it, for whoever gets no outcome that says so. `run_many` would fill a log with what its caller has."""
        what = map(json.dumps, (job_id, self.pipeline, error_class))
        _log.warning("job_parked job=%s pipeline=%s error_class=%s", *what)

    def outcome(self, hold: Hold) -> Outcome:
        """How a job stands, for whoever handed it in."""
        row, answer = hold.row, None
        if row.state in ANSWERED:
            answer = self.answer(hold)
        return Outcome(
            job_id=row.job_id,
            state=row.state,
            answer=answer,
            text=text_of(answer) if answer is not None else None,
            verdict=hold.verdict,
            attempts=row.calls,
            error_class=row.error_class if row.state is State.PARKED else None,
        )

    def answer(self, hold: Hold) -> Any:
        """The answer of a job that has one: the one just brought, or the stored one; None if it wasn't to be stored.

        Raises:
            TextMissing: it is encrypted with a key that isn't there.
        """
        if hold.called and hold.judged is not None and hold.judged.verdict.ok:
            return hold.judged.answer
        body = hold.stored
        if body is None:
            with self.ledger.ask() as reader:
                stored = reader.answer(hold.row.id)
            body = None if stored is None else stored.body
        return None if body is None or body.codec == OMITTED else decode(body)


class BaseRunner(ABC):
    """What `Runner` and `AsyncRunner` are made with.

    `call_model` is any `(payload, model) -> answer`, or `parked.Gemini(client)`. `check` judges an answer that is
    otherwise a success: it may raise, or return False or a text that says what is wrong. `allow_truncated` makes text
    that stopped at the output token limit a success. A job remembers both by name, and a replay judges by them again.
    """

    def __init__(
        self,
        ledger: Ledger,
        call_model: CallModel,
        *,
        pipeline: str = "default",
        batch: str = "",
        policy: Policy | None = None,
        check: Check | None = None,
        allow_truncated: bool = False,
        clock: Clock | None = None,
        spans: Spans | None = None,
    ) -> None:
        check_name("pipeline", pipeline)
        check_name("batch", batch, empty=True)
        self._on = Running(
            ledger,
            call_model,
            pipeline=pipeline,
            batch=batch,
            policy=policy_for(policy),
            check=check,
            allow_truncated=allow_truncated,
            clock=clock or SystemClock(),
            spans=spans or Spans(messages=settings_of_environment().export_messages),
        )
        self._set_up()

    @classmethod
    def of(cls, on: Running) -> Self:
        """A runner that works with this."""
        runner = cls.__new__(cls)
        runner._on = on
        runner._set_up()
        return runner

    @abstractmethod
    def _set_up(self) -> None:
        """What a kind of runner keeps besides."""


def policy_for(given: Policy | None) -> Policy:
    """The policy that a program has handed in; if it hasn't, the one that the settings name.

    Raises:
        SettingsError: it is none.
    """
    if given is None:
        return settings_of_environment().policy()
    check_kind("policy", given, Policy, rule="a parked.Policy(max_attempts=…, …), or None for the PARKED_ variables")
    return given


def settings_of_environment() -> Settings:
    from parked.settings import Settings, warn_unknown

    warn_unknown()
    return Settings.load()


def _check(job: object) -> None:
    if not isinstance(job, Job):
        raise InvalidJob(f"a job must be a parked.Job(job_id, model=…, payload=…), got {type(job).__name__}")


def acceptance(job: Job, pipeline: str, batch: str, called: op.Called) -> op.Accept:
    """The operation that takes a job on as pending.

    Raises:
        InvalidJob: its payload is no JSON value, or its names are too long together.
    """
    check_keys(job, pipeline=pipeline, batch=batch, caller=called.caller, checker=called.checker)
    body, hashed = encode(job.payload), identity(job.payload)
    return op.Accept(pipeline, batch, job.job_id, job.model, body, hashed, called.caller, called.checker)


def refuse_generator(what: str, function: object) -> None:
    """Refuse a function whose call only makes a generator, and runs nothing of it.

    Raises:
        SettingsError: it yields.
    """
    of_class = getattr(type(function), "__call__", None)  # noqa: B004 - the method is wanted, not whether there is one
    if any(isgeneratorfunction(each) or isasyncgenfunction(each) for each in (function, of_class)):
        raise SettingsError(
            f"{what} yields, so that calling it runs nothing; {name_of(function)} must return what it has to say,"
            " whole: read a stream to its end first"
        )


def name_of(function: object) -> str:
    """Return `module:function`, by which a job remembers who calls and who checks."""
    named = getattr(function, "name", None)
    if isinstance(named, str):
        return named
    target = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', '')}"
