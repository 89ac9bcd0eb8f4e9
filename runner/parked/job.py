"""A job, the states it can be in and the events that move it. Written once, as data; all else is checked against it."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from parked.errors import InvalidJob, TransitionError

if TYPE_CHECKING:
    from parked.verdict import Verdict

MAX_NAME_CHARS: Final = 512
# Of names that one index of a ledger holds together: PostgreSQL takes 2,704 bytes in an entry, some of them its own.
MAX_KEY_BYTES: Final = 2_600


class State(StrEnum):
    PENDING = "pending"  # committed; waits for its turn
    RUNNING = "running"  # an owner with a beat is on it
    SUCCEEDED = "succeeded"  # answered in its run
    PARKED = "parked"  # failed and kept; a replay or a person moves it on
    REPLAYING = "replaying"  # parked before; an owner with a beat tries it again
    RECOVERED = "recovered"  # answered by a replay, or late
    DISCARDED = "discarded"  # put away for good by a person, with a reason
    FORGOTTEN = "forgotten"  # no row any more: retention removed a finished job; only counted


class Event(StrEnum):
    ACCEPT = "accept"  # a pipeline hands a job in
    TAKE_OVER = "take_over"  # a failed job comes from elsewhere: the article's `park`, `import`
    START = "start"  # an owner claims a pending job and opens its first attempt
    CLAIM = "claim"  # a replay claims a parked job and opens an attempt
    RETRY = "retry"  # an attempt failed; its owner makes the next
    ANSWER = "answer"  # the owner brings an answer
    GIVE_UP = "give_up"  # the owner parks it: permanent, or strikes used up
    OWNER_LOST = "owner_lost"  # the owner's beat stopped
    RELEASE = "release"  # the owner hands it back unfinished: pause, drain, cancel
    LATE_ANSWER = "late_answer"  # an answer of an attempt that was closed before it came
    DISCARD = "discard"  # a person puts it away, with a reason
    RESTORE = "restore"  # a person takes it back
    FORGET = "forget"  # retention removes the row


FINISHED: Final = frozenset({State.SUCCEEDED, State.RECOVERED, State.DISCARDED})
ANSWERED: Final = frozenset({State.SUCCEEDED, State.RECOVERED})
HELD: Final = frozenset({State.RUNNING, State.REPLAYING})

# DESIGN: "The life of a job". `restore` goes back to the state the job came from, which its row knows.
TRANSITIONS: Final[dict[tuple[State | None, Event], State]] = {
    (None, Event.ACCEPT): State.PENDING,
    (None, Event.TAKE_OVER): State.PARKED,
    (State.PENDING, Event.START): State.RUNNING,
    (State.PENDING, Event.DISCARD): State.DISCARDED,
    (State.PENDING, Event.LATE_ANSWER): State.SUCCEEDED,
    (State.RUNNING, Event.RETRY): State.RUNNING,
    (State.RUNNING, Event.ANSWER): State.SUCCEEDED,
    (State.RUNNING, Event.GIVE_UP): State.PARKED,
    (State.RUNNING, Event.OWNER_LOST): State.PARKED,
    (State.RUNNING, Event.RELEASE): State.PENDING,
    (State.RUNNING, Event.LATE_ANSWER): State.SUCCEEDED,
    (State.PARKED, Event.CLAIM): State.REPLAYING,
    (State.PARKED, Event.DISCARD): State.DISCARDED,
    (State.PARKED, Event.LATE_ANSWER): State.RECOVERED,
    (State.REPLAYING, Event.RETRY): State.REPLAYING,
    (State.REPLAYING, Event.ANSWER): State.RECOVERED,
    (State.REPLAYING, Event.GIVE_UP): State.PARKED,
    (State.REPLAYING, Event.OWNER_LOST): State.PARKED,
    (State.REPLAYING, Event.RELEASE): State.PARKED,
    (State.REPLAYING, Event.LATE_ANSWER): State.RECOVERED,
    (State.SUCCEEDED, Event.LATE_ANSWER): State.SUCCEEDED,
    (State.RECOVERED, Event.LATE_ANSWER): State.RECOVERED,
    (State.DISCARDED, Event.LATE_ANSWER): State.DISCARDED,
    (State.SUCCEEDED, Event.FORGET): State.FORGOTTEN,
    (State.RECOVERED, Event.FORGET): State.FORGOTTEN,
    (State.DISCARDED, Event.FORGET): State.FORGOTTEN,
}
RESTORES_TO: Final = frozenset({State.PENDING, State.PARKED})


def after(state: State | None, event: Event, *, came_from: State | None = None) -> State:
    """Return the state that follows. `came_from` is what a discarded job was before; only `restore` asks for it.

    Raises:
        TransitionError: the table does not list this event for this state.
    """
    if event is Event.RESTORE and state is State.DISCARDED and came_from in RESTORES_TO:
        assert came_from is not None
        return came_from
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise TransitionError(state or "unknown", event) from None


@dataclass(frozen=True, slots=True)
class Job:
    """One request that a pipeline wants answered.

    `job_id` is unique in its pipeline and batch: non-empty text of at most 512 characters, without control
    characters and lone surrogates. `payload` is any JSON value; for the Gemini adapter an object, either
    `{"contents": …, "config": {…}}` as `generate_content` takes it, or a REST body.
    """

    job_id: str
    model: str
    payload: Any

    def __post_init__(self) -> None:
        check_name("job_id", self.job_id)
        check_name("model", self.model)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a job stands after a run: returned, never raised."""

    job_id: str
    state: State
    answer: Any  # the stored answer as a JSON value; None unless the state is succeeded or recovered
    text: str | None  # of a response of Gemini, or an answer that is text itself; of any other value None
    verdict: Verdict | None  # of the last attempt made here; None if none was made
    attempts: int  # calls made for this job so far, replays included
    error_class: str | None = None  # of a parked job, e.g. `exhausted:503`


def check_name(field: str, value: object, *, empty: bool = False) -> None:
    """Refuse a name that can't stand in a ledger, a log line and a metric alike.

    Raises:
        InvalidJob: not text, empty (unless `empty`), longer than 512 characters, or holding control characters or
            lone surrogates.
    """
    if not isinstance(value, str):
        raise InvalidJob(f"{field} must be text, got {type(value).__name__}")
    if not value and not empty:
        raise InvalidJob(f"{field} must not be empty")
    if len(value) > MAX_NAME_CHARS:
        raise InvalidJob(f"{field} has {len(value)} characters; at most {MAX_NAME_CHARS} are allowed")
    if value.isprintable():  # the usual case, decided in C
        return
    for character in value:
        if unicodedata.category(character) in {"Cc", "Cs"}:
            raise InvalidJob(f"{field} holds the character U+{ord(character):04X}, which is not allowed in a name")


def check_keys(job: Job, *, pipeline: str, batch: str, caller: str, checker: str) -> None:
    """Refuse names that are too long together to be looked up by.

    Raises:
        InvalidJob: more than 2,600 bytes of UTF-8.
    """
    if 4 * (len(job.job_id) + len(job.model) + sum(map(len, (pipeline, batch, caller, checker)))) <= MAX_KEY_BYTES:
        return  # the usual case
    for what, names in (
        ("job_id, pipeline and batch", (job.job_id, pipeline, batch)),
        ("pipeline, model and the names of call_model and check", (pipeline, job.model, caller, checker)),
    ):
        size = sum(len(name.encode()) for name in names)
        if size > MAX_KEY_BYTES:
            raise InvalidJob(f"{what} have {size} bytes together; at most {MAX_KEY_BYTES} are allowed")
