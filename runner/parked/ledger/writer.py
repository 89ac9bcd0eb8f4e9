"""The group-commit writer: one thread a process, which owns the one write connection.

It takes all operations that wait, applies them in one transaction, commits once and answers them all. There is no
timer: while one commit syncs, the next batch gathers.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, Protocol

from parked.errors import LedgerUnavailable, OwnerLost, ParkedError
from parked.ledger import operations as op
from parked.ledger.codec import Body
from parked.ledger.operations import OUTCOMES, Operation, without_texts
from parked.ledger.pulse import Pulse
from parked.ledger.store import ConnectionLost, Contended, Denied, InDoubt, Store

BATCH_OPERATIONS: Final = 256
BATCH_BYTES: Final = 8_000_000
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
TRIES: Final = 5  # of a batch that the database breaks off for another's sake, or whose connection ends

# Which method of a store takes an operation.
METHODS: Final[dict[type, str]] = {
    op.Accept: "accept",
    op.TakeOver: "take_over",
    op.Start: "start",
    op.Claim: "claim",
    op.Answer: "finish",
    op.Park: "finish",
    op.Retried: "retried",
    op.Release: "release",
    op.Orphan: "orphan",
    op.Forgive: "forgive",
    op.Discard: "discard",
    op.Restore: "restore",
    op.Mend: "mend",
    op.Erase: "erase",
    op.Rekey: "rekey",
    op.Forget: "forget",
    op.HandOut: "hand_out",
    op.NoteDelivery: "note_delivery",
    op.Register: "register",
    op.Beat: "beat",
    op.Lose: "lose",
    op.Leave: "leave",
    op.EnterRun: "enter_run",
    op.LeaveRun: "leave_run",
    op.OpenReplay: "open_replay",
    op.CloseReplay: "close_replay",
    op.SetMark: "set_mark",
    op.TakeLease: "take_lease",
    op.Consult: "consult",
    op.ClaimProbe: "claim_probe",
    op.SetPause: "set_pause",
    op.ClearPause: "clear_pause",
}

_NAMES: Final = attrgetter("pipeline", "batch", "job_id")
_ID: Final = attrgetter("id")
_PAYLOAD: Final = attrgetter("payload")

# Which job an operation is about, where it is about one.
SUBJECTS: Final[dict[type, Callable[[Any], Hashable]]] = {
    op.Accept: _NAMES,
    op.TakeOver: _NAMES,
    op.Start: _ID,
    op.Answer: _ID,
    op.Park: _ID,
    op.Retried: _ID,
    op.Release: _ID,
    op.Orphan: _ID,
    op.Forgive: _ID,
    op.Discard: _ID,
    op.Restore: _ID,
    op.Mend: _ID,
    op.Erase: _ID,
    op.NoteDelivery: _ID,
}

# The body that an operation carries; those of a batch have their bound.
BODIES: Final[dict[type, Callable[[Any], Body | None]]] = {
    op.Accept: _PAYLOAD,
    op.TakeOver: _PAYLOAD,
    op.Mend: _PAYLOAD,
    op.Answer: attrgetter("answer"),
    op.Rekey: attrgetter("body"),
}

_log = logging.getLogger("parked.ledger")


class Channel(Protocol):
    """Where answers are wanted, if not by `Ticket.wait`: an event loop, say."""

    def deliver(self, tickets: list[Ticket]) -> None:
        """Called by the writer's thread, once per channel and batch. Must not block."""
        ...


class Ticket:
    """An operation that was handed in, and its answer once it is there."""

    __slots__ = ("_pending", "answered", "channel", "error", "forsaken", "kept_since", "operation", "result")

    def __init__(self, operation: Operation, channel: Channel | None = None) -> None:
        self.operation = operation
        self.channel = channel
        self.answered = False
        self.forsaken = False  # nobody waits for the answer any more
        self.result: Any = None
        self.error: Exception | None = None
        self.kept_since: float | None = None  # monotonic; when the ledger first was away for it
        # A bare lock: with a Future each, 16 waiting threads got a quarter less done.
        self._pending = threading.Lock() if channel is None else None
        if self._pending is not None:
            self._pending.acquire()

    def wait(self, timeout: float | None = None) -> Any:
        """Return the result once it is committed, or raise its error. Not for one that a channel is told of.

        Raises:
            TimeoutError: it was not answered in time; it still will be.
        """
        # An interrupt may end a wait that has the lock already: who waits again must not wait for the lock.
        if not self.answered:
            assert self._pending is not None
            if not self._pending.acquire(timeout=-1 if timeout is None else timeout):
                raise TimeoutError(f"the ledger has not answered for {timeout} s")
            self._pending.release()
        if self.error is not None:
            raise self.error
        return self.result

    def answer(self) -> None:
        self.answered = True
        if self._pending is not None:
            self._pending.release()


class Writer:
    """See the module. `open_store` opens a connection: at the first batch, and after a fork.

    `kept` makes of an operation what is written, once, before its transaction begins: it may encrypt what it holds.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        *,
        pulse: Pulse,
        patience_s: float,
        monotonic: Callable[[], float],
        kept: Callable[[Operation], Operation] | None = None,
    ) -> None:
        self._open_store = open_store
        self._as_kept = kept
        self._pulse = pulse
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._store: Store | None = None
        self._refusals: tuple[type[Exception], ...] = ()  # of the store
        self._away: Exception | None = None  # why no transaction can be begun in this round
        self._trouble: Exception | None = None  # why something couldn't be written in this round
        self._has_written = False  # since that was last looked at
        self._said_away = False  # in the log, where a ledger that is away, or back, is said once
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[Ticket] = deque()
        self._kept: list[Ticket] = []  # outcomes that the ledger couldn't take, in order
        self._stalled = False  # whether there are any, or some are just being tried again
        self._outcomes: dict[Ticket, None] = {}  # handed in and not answered yet, wherever they are just now
        self._wake = threading.Lock()  # released: there is something to look at
        self._wake.acquire()
        # Who hands in, closes or forks. Reentrant: what it guards may set off a collection of garbage, and that end a
        # course, which hands its job back.
        self._mutex = threading.RLock()
        self._at_work = threading.Lock()  # held while the connection is in use
        self._thread: threading.Thread | None = None

    # --- for callers ---

    def submit(self, operation: Operation, channel: Channel | None = None) -> Ticket:
        return self.submit_many((operation,), channel)[0]

    def submit_many(self, operations: Iterable[Operation], channel: Channel | None = None) -> list[Ticket]:
        """Hand operations in; they are applied in this order, where it matters.

        Raises:
            LedgerUnavailable: this ledger was closed.
        """
        tickets = [Ticket(operation, channel) for operation in operations]
        self.hand_in(tickets)
        return tickets

    def hand_in(self, tickets: Sequence[Ticket], *, look: bool = True) -> None:
        """The same for tickets that were made before: whoever is interrupted in here has them to forsake.

        Without `look` the thread isn't woken for them: whoever has more to hand in at once does it himself, by `look`.

        Raises:
            LedgerUnavailable: this ledger was closed.
        """
        with self._mutex:
            if self._closed:
                raise LedgerUnavailable("this ledger was closed; open it again to use it")
            self._outcomes.update((ticket, None) for ticket in tickets if isinstance(ticket.operation, OUTCOMES))
            self._waiting.extend(tickets)
            if self._thread is None or self._thread.ident is None:  # an interrupt came before its start
                self._thread = threading.Thread(target=self._run, name="parked-ledger", daemon=True)
                self._thread.start()
        if look:
            self.look()

    def forsake(self, ticket: Ticket) -> None:
        """Wait for this no more: what it starts is handed back as soon as it is committed, or now."""
        ticket.forsaken = True  # first: either we see the answer below, or the thread sees this after it
        if ticket.answered:
            with suppress(LedgerUnavailable):  # closed; who held jobs has left
                self.hand_in(_hand_backs(ticket))
        self.look()  # it may have been handed in without

    def look(self) -> None:
        """Wake the thread, if it sleeps."""
        if self._wake.locked():
            with suppress(RuntimeError):  # another thread was faster
                self._wake.release()

    @property
    def stalled(self) -> bool:
        """Whether an outcome waits for the ledger to come back; also while it is just being tried again."""
        return self._stalled

    @property
    def unwritten(self) -> list[op.Outcome]:
        """The outcomes that would be lost if the process ended now."""
        return [ticket.operation for ticket in tuple(self._outcomes) if isinstance(ticket.operation, OUTCOMES)]

    def close(self) -> None:
        """Take no more, write what waits (outcomes for as long as the patience lasts), and close the connection."""
        with self._mutex:
            self._closed = True
            thread = self._thread
        self.look()
        if thread is not None and thread.ident is not None:
            thread.join()
        with self._at_work:
            self._close_store()

    # --- around a fork: no connection is ever open across it (acknowledged rows were lost) ---

    def before_fork(self) -> None:
        self._at_work.acquire()  # first: the thread hands in itself what was forsaken
        self._mutex.acquire()
        self._close_store()

    def after_fork_in_parent(self) -> None:
        self._mutex.release()
        self._at_work.release()

    def after_fork_in_child(self) -> None:
        """What waits in the parent is the parent's."""
        self._reset()

    # --- the thread ---

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._thread is threading.current_thread():
            self._sleep(pause_s if self._kept else None)
            with self._at_work:
                self._away = self._trouble = None
                self._give_up_on_old_outcomes()
                for batch in self._batches():
                    self._apply(batch)
                if self._pulse.wait_s() == 0.0:
                    self._pulse.beat_if_it_can(self._record_alone)
                self._say_how_it_is()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if self._kept else FIRST_PAUSE_S
            if self._closed and not self._waiting and not self._kept:
                return

    def _say_how_it_is(self) -> None:
        if self._trouble is not None and not self._said_away:
            event = "ledger_denied" if isinstance(self._trouble, Denied) else "ledger_away"
            _log.warning("%s why=%s", event, json.dumps(str(self._trouble)))
            self._said_away = True
        elif self._said_away and self._has_written and self._trouble is None and not self._kept:
            _log.warning("ledger_back")
            self._said_away = False
        self._has_written = False

    def _sleep(self, pause_s: float | None) -> None:
        """Until something is handed in or a beat is due. In a pause, more outcomes alone don't count."""
        pause_ends = None if pause_s is None else self._monotonic() + pause_s
        while True:
            waits = [self._pulse.wait_s(), None if pause_ends is None else pause_ends - self._monotonic()]
            wait_s = min((s for s in waits if s is not None), default=None)
            if wait_s is not None and wait_s <= 0:
                return
            woken = self._wake.acquire(timeout=-1 if wait_s is None else wait_s)
            if not woken or pause_ends is None:
                return
            if not all(isinstance(ticket.operation, OUTCOMES) for ticket in tuple(self._waiting)):
                return

    def _batches(self) -> Iterator[list[Ticket]]:
        """What waits, in order, those that were kept first.

        What comes in meanwhile has its turn in the next round: else whoever tries again and again while the ledger is
        in trouble would keep this one going, and what is kept would neither be tried again nor be given up.
        """
        again, new = deque(self._kept), deque(self._waiting.popleft() for _ in range(len(self._waiting)))
        self._kept = []
        if self._as_kept is not None:
            for ticket in new:
                ticket.operation = self._as_kept(ticket.operation)
        while again or new:
            batch: list[Ticket] = []
            size = 0
            while (queue := again or new) and len(batch) < BATCH_OPERATIONS:
                size += _body_bytes(queue[0].operation)
                if batch and size > BATCH_BYTES:
                    break
                batch.append(queue.popleft())
            yield batch

    def _apply(self, batch: list[Ticket]) -> None:
        """Apply a batch in one transaction; if anything of it fails, each operation in one of its own."""
        if self._kept:
            batch = self._without_blocked(batch)
        error = self._try(batch)
        if error is None:
            self._deliver(batch)
        elif len(batch) == 1 or self._away is not None:
            for ticket in batch:
                self._refuse(ticket, error)
        else:
            troubles = 0
            for ticket in batch:
                self._apply([ticket])
                troubles += ticket.error is not None and ticket.error is self._trouble
                # One may be too large for what is left of a disk. Two: it isn't them, and each may take half a minute.
                if troubles == 2:
                    self._away = ticket.error

    def _without_blocked(self, batch: list[Ticket]) -> list[Ticket]:
        """Nothing overtakes an outcome of its job that is kept."""
        subjects = {subject(ticket.operation) for ticket in self._kept}
        blocked = [ticket for ticket in batch if subject(ticket.operation) in subjects | {None}]
        for ticket in blocked:
            self._refuse(
                ticket, LedgerUnavailable(f"an earlier outcome still waits for the ledger: {self._kept[0].error}")
            )
        return [ticket for ticket in batch if ticket not in blocked]

    def _refuse(self, ticket: Ticket, error: Exception) -> None:
        """Fail an operation; but an outcome waits for a ledger that is away, or goes without its texts."""
        ticket.error = error
        if isinstance(ticket.operation, OUTCOMES):
            if isinstance(error, LedgerUnavailable):
                if ticket.kept_since is None:
                    ticket.kept_since = self._monotonic()
                self._kept.append(ticket)
                self._stalled = True
                return
            bare = without_texts(ticket.operation)
            if not isinstance(error, ParkedError) and bare != ticket.operation:
                _log.warning("outcome_without_texts job=%d error=%s", bare.id, type(error).__name__)
                ticket.operation = bare
                self._apply([ticket])
                return
            if isinstance(error, self._refusals) and not isinstance(bare, op.Orphan):
                # Neither is a job to be called again and again for it, nor is it to end each run that comes to it.
                _log.error("outcome_lost job=%d error=%s", bare.id, type(error).__name__)
                ticket.operation = op.Orphan(bare.id, bare.owner_id, bare.attempt)
                self._apply([ticket])
                return
        self._deliver([ticket])

    def _give_up_on_old_outcomes(self) -> None:
        now = self._monotonic()
        old = [t for t in self._kept if t.kept_since is not None and now - t.kept_since >= self._patience_s]
        self._kept = [ticket for ticket in self._kept if ticket not in old]
        for ticket in old:
            ticket.error = LedgerUnavailable(f"not recorded after {self._patience_s:.0f} s of trying: {ticket.error}")
            self._trouble = ticket.error  # whatever else can be written in this round, the ledger isn't back
        self._deliver(old)

    def _try(self, batch: list[Ticket]) -> Exception | None:
        """Apply these in one transaction and note their results; if that fails, nothing has happened."""
        operations = [ticket.operation for ticket in batch]
        try:
            results = self._transact(operations)
        except Exception as exc:  # noqa: BLE001 - whatever it is, it goes to those who handed the operations in
            return exc
        for ticket, result in zip(batch, results, strict=True):
            failed = isinstance(result, Exception)
            ticket.result, ticket.error = (None, result) if failed else (result, None)
            if isinstance(result, OwnerLost):
                self._pulse.owner_was_lost(result.owner_id)
        return None

    def _transact(self, operations: Sequence[Operation]) -> list[Any]:
        """Apply these in one transaction, and again where the same may work at once."""
        if self._away is not None:
            raise self._away
        for tries_left in reversed(range(TRIES)):
            try:
                results = self._transact_once(operations)
            except Contended:
                if not tries_left:
                    raise
            except LedgerUnavailable as exc:
                if tries_left and isinstance(exc, ConnectionLost):
                    continue
                self._trouble = exc
                if isinstance(exc, ConnectionLost | InDoubt):
                    self._away = exc
                raise
            else:
                self._has_written = True
                return results
        raise AssertionError("the last try returns or raises")

    def _transact_once(self, operations: Sequence[Operation]) -> list[Any]:
        try:
            store = self._begin()
        except ConnectionLost:
            raise
        except LedgerUnavailable as exc:
            self._away = exc
            raise
        results: list[Any] = [None] * len(operations)
        try:
            store.expect(operations)
            for wave in waves(operations):
                for method, indexes in wave.items():
                    answers = getattr(store, method)([operations[index] for index in indexes])
                    for index, answer in zip(indexes, answers, strict=True):
                        results[index] = answer
            store.commit()
        except Exception as exc:
            error = store.explain(exc)
            if isinstance(error, LedgerUnavailable) and not isinstance(error, Contended):
                self._let_go(store)
            else:
                self._roll_back(store)
            if isinstance(error, InDoubt):
                self._hand_back_later(results)
            raise error from exc
        return results

    def _hand_back_later(self, results: Sequence[Any]) -> None:
        """Whoever asked for these starts is told that the ledger is away; if they did happen, nobody runs the jobs."""
        for result in results:
            for job, attempt in starts(result):
                assert job.owner_id is not None
                ticket = Ticket(op.Release(job.id, job.owner_id, attempt, unsure=True, called=False))
                self._outcomes[ticket] = None
                self._refuse(ticket, LedgerUnavailable("it isn't known whether the job was started"))

    def _begin(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
            self._refusals = self._store.refusals
        try:
            self._store.begin()
        except Exception as exc:
            store = self._store
            self._close_store()
            raise store.explain(exc) from exc
        return self._store

    def _let_go(self, store: Store) -> None:
        """After an error of the surroundings: open a new connection for the next batch, unless that one must stay."""
        if store.outlives_errors:
            self._roll_back(store)
        else:
            self._close_store()

    def _roll_back(self, store: Store) -> None:
        try:
            store.rollback()
        except Exception:  # noqa: BLE001 - the error to be told is the one before
            self._close_store()

    def _record_alone(self, operation: Operation) -> Any:
        (result,) = self._transact([operation])
        if isinstance(result, Exception):
            raise result
        return result

    def _deliver(self, tickets: list[Ticket]) -> None:
        channels: dict[Channel, list[Ticket]] = {}
        for ticket in tickets:
            self._outcomes.pop(ticket, None)
        self._stalled = self._stalled and any(ticket.kept_since is not None for ticket in tuple(self._outcomes))
        for ticket in tickets:
            ticket.answer()
            if ticket.forsaken:
                hand_backs = _hand_backs(ticket)
                self._outcomes.update((each, None) for each in hand_backs)
                self._waiting.extend(hand_backs)
                self.look()
            elif ticket.channel is not None:
                channels.setdefault(ticket.channel, []).append(ticket)
        for channel, theirs in channels.items():
            try:
                channel.deliver(theirs)
            except Exception:  # noqa: BLE001 - a loop that was closed must not end the thread that all others wait for
                _log.exception("answers_not_delivered")

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _hand_backs(ticket: Ticket) -> list[Ticket]:
    """What takes back the jobs that an operation has started."""
    return [
        Ticket(op.Release(job.id, job.owner_id, attempt, called=False))
        for job, attempt in starts(ticket.result)
        if job.owner_id
    ]


def subject(operation: Operation) -> Hashable:
    """Which job an operation is about: its id, or its names where it is being taken on. None: about many, or none."""
    named = SUBJECTS.get(type(operation))
    return None if named is None else named(operation)


def starts(result: Any) -> list[tuple[op.JobRow, int]]:
    """The jobs that an operation with this result has started, with the numbers of their attempts."""
    match result:
        case op.Claimed(started=started):
            return [(one.row, one.attempt) for one in started]
        case op.Started(row, attempt) | op.Accepted(row, _, int(attempt)):
            return [(row, attempt)]
        case _:
            return []


def waves(operations: Sequence[Operation]) -> list[dict[str, list[int]]]:
    """Put operations in groups of one store method each, by their indexes, so that each job's keep their order.

    In one wave no two are about the same job. One that is about many jobs comes after all before it, and before all
    after it.
    """
    result: list[dict[str, list[int]]] = []
    next_wave: dict[Hashable, int] = {}
    floor = 0
    for index, operation in enumerate(operations):
        about = subject(operation)
        if about is None:
            wave = len(result)
            floor = wave + 1
        else:
            wave = max(floor, next_wave.get(about, 0))
            next_wave[about] = wave + 1
        if wave == len(result):
            result.append({})
        result[wave].setdefault(METHODS[type(operation)], []).append(index)
    return result


def _body_bytes(operation: Operation) -> int:
    carried = BODIES.get(type(operation))
    body: Body | None = None if carried is None else carried(operation)
    return 0 if body is None else len(body.data)
