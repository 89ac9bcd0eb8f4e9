"""A ledger on SQLite: a prepared statement a row, one write transaction at a time."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

from parked.errors import LedgerMissing, LedgerUnavailable, SettingsError
from parked.ledger import operations as op
from parked.ledger.books import SET_BY_THE_LATEST, Books
from parked.ledger.codec import ERASED, Body
from parked.ledger.migrations import Upgrade, Upgraded, apply, bring_up_to_date, migrations
from parked.ledger.moves import ANOTHER_MODEL, AttemptState, Change
from parked.ledger.newfile import new_file
from parked.ledger.operations import JobRow, Lane
from parked.ledger.reading import SqlReader
from parked.ledger.rows import (
    REKEY,
    accepted_columns,
    attempt_state,
    closing_columns,
    found_columns,
    gate_columns,
    job_row,
    moved_columns,
    owner_row,
    pause_rows,
    rekeyed_columns,
)
from parked.ledger.scrubbing import scrub
from parked.ledger.sqlite_copy import write_copy
from parked.ledger.sqlite_file import (
    DEFAULT_MODE,
    FileId,
    check_same,
    connect,
    explain,
    file_id,
    make_sure,
    patiently,
    refuse_exposed,
)
from parked.ledger.sqlite_schema import SqliteSchema
from parked.ledger.statements import load
from parked.ledger.store import Contended
from parked.ledger.tables import USED_BEFORE, Row
from parked.ledger.vault import PLAIN_VAULT, Vault
from parked.surroundings import machines

SQL: Final = load("sqlite")

_log = logging.getLogger("parked.ledger")

# As SQLite's own default: 1,000 pages. More often costs syncs, more seldom disk and slower reads.
CHECKPOINT_BYTES: Final = 4_000_000
CHECKPOINT_CHANGES: Final = 2_000
CHECKPOINT_S: Final = 5.0


class SqliteStore(Books):
    """The write side. Opened and used by one thread at a time."""

    # A commit that fails while it syncs may leave all its pages in the WAL. Whoever opens a ledger that nobody has open
    # takes them for committed; this connection knows better, and writes over them.
    outlives_errors = True
    refusals = (sqlite3.Error, OverflowError, UnicodeError)  # the last two before SQLite has seen it

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        file: FileId | None = None,
    ) -> None:
        """`file` is the one that is to be written to; None: whichever has that name now."""
        super().__init__()
        self._path = path
        self._clock = clock
        self._monotonic = monotonic
        self._wal = Path(f"{path}-wal")
        self._connection = connect(path)
        self._file = file_id(path) if file is None else file
        self._checkpointer: sqlite3.Connection | None = None
        self._checkpointed_at = monotonic()
        self._checkpointed_changes = 0
        self._checkpointed_bytes = 0
        self._now = 0.0
        self._alive: dict[int, bool] = {}  # owners asked about in this transaction

    # --- the transaction ---

    def begin(self) -> None:
        patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"), monotonic=self._monotonic)
        # What is committed to a file that was deleted or replaced is gone, and nobody would say so.
        check_same(self._path, self._file)
        self._now = self._clock()
        self._begin_anew()
        self._alive.clear()

    @property
    def now(self) -> float:
        return self._now

    def moment(self) -> float:
        return self._now

    def expect(self, operations: Sequence[op.Operation]) -> None:
        """What is asked here is answered at once."""

    def commit(self) -> None:
        self._settle()
        self._write_counters()
        self._connection.execute("COMMIT")
        self._checkpoint_now_and_then()

    def rollback(self) -> None:
        self._unlearn()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        if self._checkpointer is not None:
            self._checkpointer.close()
        # A cursor that somebody still holds, in the traceback of an error say, keeps SQLite's connection open, and with
        # it the lock that this transaction may hold.
        with suppress(sqlite3.Error):
            self.rollback()
        self._connection.close()

    def explain(self, exc: Exception) -> Exception:
        return explain(exc, self._path)

    def _write_counters(self) -> None:
        rows = [(*row, row[0] in SET_BY_THE_LATEST) for row in self.counter_rows()]
        self._connection.executemany(SQL["count"], rows)

    def _checkpoint_now_and_then(self) -> None:
        """Bring a long WAL back into the database file.

        SQLite before 3.51.3 can lose commits when a checkpoint follows another at once and a third connection commits
        meanwhile (https://www.sqlite.org/wal.html#walresetbug). So the automatic one is off, and this one holds the
        write lock: nobody commits, and there is one doer at a time among all processes.
        """
        now = self._monotonic()
        try:
            size = self._wal.stat().st_size
            if not self._checkpoint_is_due(size, now):
                return
            self._connection.execute("BEGIN IMMEDIATE")
        except (OSError, sqlite3.Error):
            return  # somebody else writes; one of the next commits will find the time
        self._checkpointed_at, self._checkpointed_bytes = now, size
        self._checkpointed_changes = self._connection.total_changes
        try:
            if self._checkpointer is None:
                self._checkpointer = connect(self._path)
            self._checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error:
            pass  # what was committed stands in the WAL; the next checkpoint tries again
        finally:
            # The commit before this stands whatever happens here, and nobody must be told that it failed.
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _checkpoint_is_due(self, wal_bytes: int, now: float) -> bool:
        """The file doesn't shrink when its content was taken in and it begins anew, so that its size isn't enough."""
        if wal_bytes < CHECKPOINT_BYTES:
            return False
        return (
            wal_bytes - self._checkpointed_bytes >= CHECKPOINT_BYTES
            or self._connection.total_changes - self._checkpointed_changes >= CHECKPOINT_CHANGES
            or now - self._checkpointed_at >= CHECKPOINT_S
        )

    # --- the primitives of Books ---

    def last_place(self) -> int:
        return self._value(SQL["last_place"]) or 0

    def insert_jobs(self, jobs: Sequence[JobRow], payloads: Sequence[Body]) -> list[int | None]:
        ids: list[int | None] = []
        cursor = self._connection.cursor()
        accept = SQL["accept"]
        for job in jobs:
            cursor.execute(accept, (*accepted_columns(job), job.payload_hash))
            ids.append(cursor.lastrowid if cursor.rowcount == 1 else None)
        kept = [(id, *body, self._now) for id, body in zip(ids, payloads, strict=True) if id is not None]
        cursor.executemany(SQL["keep_payload"], kept)
        return ids

    def known_jobs(self, rows: Sequence[op.Accept | op.TakeOver]) -> dict[tuple[str, str, str], JobRow]:
        found: dict[tuple[str, str, str], JobRow] = {}
        for row in rows:
            key = {"pipeline": row.pipeline, "batch": row.batch, "job_id": row.job_id}
            found[row.pipeline, row.batch, row.job_id] = job_row(self._one(SQL["job_by_key"], key))
        return found

    def add_calls_elsewhere(self, calls: Mapping[int, int]) -> None:
        self._connection.executemany(SQL["called_elsewhere"], ({"id": id, "calls": n} for id, n in calls.items() if n))

    def jobs_by_id(self, ids: Sequence[int]) -> dict[int, JobRow]:
        return {job.id: job for job in self._jobs(SQL["jobs_by_id"], {"ids": json.dumps(ids)})}

    def jobs_with_attempts(
        self, attempts: Sequence[tuple[int, int | None]]
    ) -> dict[int, tuple[JobRow, AttemptState | None]]:
        jobs = self.jobs_by_id([id for id, _ in attempts])
        rows = self._connection.execute(SQL["attempt"], {"attempts": json.dumps(attempts)})
        standing = {job: attempt_state(columns) for job, *columns in rows}
        return {id: (job, standing.get(id)) for id, job in jobs.items()}

    def lanes(self) -> list[Lane]:
        return [Lane._make(row) for row in self._connection.execute(SQL["lanes"], {"now": self.now})]

    def heads(self, wanted: Sequence[tuple[Lane, int]], *, far_end: bool) -> list[JobRow]:
        statement = SQL["tails" if far_end else "heads"]
        return [
            job
            for lane, limit in wanted
            for job in self._jobs(statement, lane._asdict() | {"limit": limit, "now": self.now})
        ]

    def mend_payloads(self, mends: Sequence[tuple[JobRow, op.Mend]]) -> None:
        values = [
            {
                "job": job.id, "revision": job.revision, "model": row.model, "note": row.note, "now": self.now,
                "codec": row.payload and row.payload.codec, "key_id": row.payload and row.payload.key_id,
                "body": row.payload and row.payload.data,
            }
            for job, row in mends
        ]  # fmt: skip
        self._connection.executemany(SQL["mend_payload"], values)
        self._connection.executemany(SQL["mend_job"], values)

    def give_models(self, given: Sequence[tuple[JobRow, JobRow]]) -> None:
        values = [
            {
                "job": job.id, "was": was.model, "revision": was.revision, "model": job.model, "now": self.now,
                "strikes": job.strikes, "not_before": job.not_before,
                "note": ANOTHER_MODEL, "codec": None, "key_id": None, "body": None,
            }
            for was, job in given
        ]  # fmt: skip
        self._connection.executemany(SQL["keep_model"], values)
        self._connection.executemany(SQL["mend_payload"], values)
        if self._connection.executemany(SQL["give_model"], values).rowcount != len(given):
            raise RuntimeError("a job changed its state inside the transaction that had read it")

    def add_payloads(self, started: list[op.Started]) -> None:
        rows = self._connection.execute(SQL["payloads"], {"ids": json.dumps([one.row.id for one in started])})
        bodies = {id: Body._make(body) for id, *body in rows}
        started[:] = [one._replace(payload=bodies[one.row.id]) for one in started]

    def has_answer(self, id: int) -> bool:
        return self._value(SQL["has_answer"], {"job": id}) is not None

    def has_texts(self, id: int) -> bool:
        return self._value(SQL["has_texts"], {"job": id}) is not None

    def held_by(self, owner_id: int) -> list[int]:
        return [id for (id,) in self._connection.execute(SQL["held_by"], {"owner_id": owner_id})]

    def open_attempts_of(self, owner_id: int) -> list[tuple[int, AttemptState]]:
        rows = self._connection.execute(SQL["open_attempts_of"], {"owner_id": owner_id})
        return [(job, attempt_state(columns)) for job, *columns in rows]

    def ask_for_owner(self, owner_id: int) -> None:
        """Nobody else writes meanwhile."""

    def owner_alive(self, owner_id: int) -> bool:
        if owner_id not in self._alive:
            self._alive[owner_id] = self._value(SQL["owner_alive"], {"id": owner_id}) is not None
        return self._alive[owner_id]

    def trigger(self, replay_id: int) -> str:
        return str(self._value(SQL["trigger"], {"id": replay_id}))

    def write_changes(self, changes: Sequence[Change]) -> None:
        self._move_jobs([change for change in changes if change.row is not change.was])
        self._open_attempts([change.row for change in changes if change.opened is not None])
        self._close_attempts(changes)
        self._keep_answers(changes)

    def _move_jobs(self, changes: Sequence[Change]) -> None:
        moved = [(*moved_columns(change.row), change.row.id, *found_columns(change.was)) for change in changes]
        if self._connection.executemany(SQL["move_job"], moved).rowcount == len(changes) or not changes:
            return
        if self._goes_by_memory:
            raise Contended(f"another process has moved a job in {self._path} that this one holds")
        raise RuntimeError("a job changed its state inside the transaction that had read it")

    def _open_attempts(self, rows: Sequence[JobRow]) -> None:
        opened = [(row.id, row.calls, row.replay_id, row.owner_id, row.revision, self._now) for row in rows]
        self._connection.executemany(SQL["open_attempt"], opened)

    def _close_attempts(self, changes: Sequence[Change]) -> None:
        closed = [
            (*closing_columns(change.closed), self._now, change.row.id, change.closed.number)
            for change in changes
            if change.closed is not None
        ]
        self._connection.executemany(SQL["close_attempt"], closed)

    def forgive_attempts(self, rows: Sequence[op.Forgive]) -> None:
        self._connection.executemany(SQL["forgive_attempt"], ({"job": row.id, "number": row.attempt} for row in rows))

    def _keep_answers(self, changes: Sequence[Change]) -> None:
        answers = [
            (change.row.id, change.answered_by, *change.answer, self._now)
            for change in changes
            if change.answer is not None
        ]
        self._connection.executemany(SQL["keep_answer"], answers)

    def make_deliverable(self, ids: Sequence[int]) -> None:
        self._connection.executemany(SQL["make_deliverable"], ({"job": id, "now": self.now} for id in ids))

    def note_deliveries(self, rows: Sequence[op.NoteDelivery]) -> None:
        self._connection.executemany(
            SQL["note_delivery"],
            (
                {
                    "job": row.id,
                    "fault": row.fault,
                    "after": None if row.wait_s is None else self.now + row.wait_s,
                    "now": self.now,
                }
                for row in rows
            ),
        )

    def erase_texts(self, why: Mapping[int, str]) -> None:
        erased = [{"job": job, "why": said, "codec": ERASED, "now": self.now} for job, said in why.items()]
        for statement in ("erase_payloads", "erase_answer", "erase_messages", "note_erasure"):
            self._connection.executemany(SQL[statement], erased)

    def rekey_texts(self, rows: Sequence[op.Rekey]) -> None:
        for kind, statement in REKEY.items():
            given = [rekeyed_columns(row) for row in rows if row.kind is kind]
            self._connection.executemany(SQL[statement], given)
        hashes = [(row.hash, row.job, row.was_hash) for row in rows if row.hash != row.was_hash]
        self._connection.executemany(SQL["rekey_identities"], hashes)

    def forget_jobs(self, ids: Sequence[int]) -> list[int]:
        return [id for (id,) in self._connection.execute(SQL["forget_jobs"], {"ids": json.dumps(ids)})]

    def counted_pairs(self) -> list[tuple[str, str]]:
        return self._connection.execute(SQL["counted_pairs"]).fetchall()

    # --- what isn't about jobs ---

    def hand_out(self, rows: Sequence[op.HandOut]) -> list[None]:
        handed_out = ({"job": id, "now": self.now} for row in rows for id in row.ids)
        self._connection.executemany(SQL["hand_out"], handed_out)
        return [None] * len(rows)

    def register(self, rows: Sequence[op.Register]) -> list[int]:
        return [self._insert(SQL["register"], row.facts._asdict() | {"now": self.now}) for row in rows]

    def beat(self, rows: Sequence[op.Beat]) -> list[op.Beats]:
        mine = [self._hit(SQL["beat"], {"id": row.owner_id, "now": self.now}) for row in rows]
        alive = [owner_row(columns) for columns in self._connection.execute(SQL["owners_alive"])]
        return [
            op.Beats(beat, {owner.id: owner for owner in alive if owner.id != row.owner_id})
            for row, beat in zip(rows, mine, strict=True)
        ]

    def lose(self, rows: Sequence[op.Lose]) -> list[list[JobRow]]:
        return [
            [
                job
                for id, beat in row.beats.items()
                if self._hit(SQL["lose"], {"id": id, "beat": beat, "now": self.now})
                for job in self.orphan_jobs_of(id)
            ]
            for row in rows
        ]

    def leave(self, rows: Sequence[op.Leave]) -> list[list[JobRow]]:
        return [
            self.orphan_jobs_of(row.owner_id) if self._hit(SQL["leave"], {"id": row.owner_id, "now": self.now}) else []
            for row in rows
        ]

    def alone_with_runs(self) -> None:
        """Whoever writes is alone with the file."""

    def other_run(self, pipeline: str, owner_id: int) -> op.OwnerRow | None:
        found = self._connection.execute(SQL["other_run"], {"pipeline": pipeline, "owner_id": owner_id}).fetchone()
        return None if found is None else owner_row(found)

    def note_run(self, owner_id: int, run: op.Run) -> bool:
        values = {"owner_id": owner_id, "pipeline": run.pipeline, **run.called._asdict(), "now": self.now}
        return self._hit(SQL["note_run"], values)

    def end_run(self, owner_id: int) -> None:
        self._connection.execute(SQL["end_run"], {"owner_id": owner_id})

    def open_replay(self, rows: Sequence[op.OpenReplay]) -> list[int]:
        return [self._insert(SQL["open_replay"], row._asdict() | {"now": self.now}) for row in rows]

    def close_replay(self, rows: Sequence[op.CloseReplay]) -> list[None]:
        self._connection.executemany(SQL["close_replay"], (row._asdict() | {"now": self.now} for row in rows))
        return [None] * len(rows)

    def set_mark(self, rows: Sequence[op.SetMark]) -> list[None]:
        marks = ({"name": row.name, "value": json.dumps(row.value), "now": self.now} for row in rows)
        self._connection.executemany(SQL["set_mark"], marks)
        return [None] * len(rows)

    def take_lease(self, rows: Sequence[op.TakeLease]) -> list[bool]:
        return [self._hit(SQL["take_lease"], row._asdict() | {"now": self.now}) for row in rows]

    def set_gate(self, values: Mapping[str, Any]) -> None:
        self._connection.execute(SQL["set_gate"], values)

    def gates(self) -> list[tuple[Any, ...]]:
        return gate_columns(self._connection.execute(SQL["gates"], {}))

    def pauses(self) -> list[op.PauseRow]:
        return pause_rows(self._connection.execute(SQL["pauses"], {}))

    def take_probe(self, row: op.ClaimProbe) -> bool:
        return self._hit(SQL["claim_probe"], row._asdict() | {"now": self.now})

    def last_probe(self, model: str) -> float | None:
        last: float | None = self._value(SQL["last_probe"], {"model": model})
        return last

    def note_pause(self, row: op.SetPause, *, fault_began_at: float, until: float | None) -> None:
        values = {
            "pipeline": row.pipeline, "model": row.model, "reason": row.reason, "owner_id": row.owner_id,
            "fault_began_at": fault_began_at, "until": until, "now": self.now,
        }  # fmt: skip
        self._connection.execute(SQL["set_pause"], values)

    def end_pause(self, row: op.ClearPause, *, began_at: float) -> bool:
        return self._hit(SQL["clear_pause"], {"pipeline": row.pipeline, "model": row.model, "began_at": began_at})

    # --- asking the connection ---

    def _one(self, sql: str, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """The one row that must be there."""
        row: tuple[Any, ...] | None = self._connection.execute(sql, values).fetchone()
        if row is None:
            raise LookupError("a row that others in this transaction rely on is missing")
        return row

    def _value(self, sql: str, values: Mapping[str, Any] | None = None) -> Any:
        row = self._connection.execute(sql, values or {}).fetchone()
        return None if row is None else row[0]

    def _jobs(self, sql: str, values: Mapping[str, Any]) -> Iterator[JobRow]:
        return map(job_row, self._connection.execute(sql, values))

    def _hit(self, sql: str, values: Mapping[str, Any]) -> bool:
        """Whether a change found its row."""
        return self._connection.execute(sql, values).rowcount == 1

    def _insert(self, sql: str, values: Mapping[str, Any]) -> int:
        id = self._connection.execute(sql, values).lastrowid
        assert id is not None
        return id


class SqliteReader(SqlReader):
    """The read side, on a connection of its own."""

    dialect = "sqlite"
    sql = SQL

    def __init__(self, connection: sqlite3.Connection, *, vault: Vault = PLAIN_VAULT) -> None:
        """In a transaction, which gives the snapshot."""
        self._connection = connection
        super().__init__(vault)

    @classmethod
    def of(cls, path: Path, *, vault: Vault = PLAIN_VAULT) -> Self:
        connection = connect(path, only_asks=True)
        try:
            connection.execute("BEGIN")
            return cls(connection, vault=vault)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def ask(self, sql: str, values: Mapping[str, Any]) -> sqlite3.Cursor:
        return self._connection.execute(sql, values)

    def size_bytes(self) -> int:
        file = self._value("room")
        return _bytes_of(file) + _bytes_of(f"{file}-wal")

    def many(self, values: Iterable[Any]) -> str:
        return json.dumps(list(values))

    def pattern(self, text: str) -> str:
        return text.replace("[", "[[]").replace("?", "[?]")


def _bytes_of(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except FileNotFoundError:  # no WAL; or the file was moved since it was opened, which the next one who looks is told
        return 0


class SqliteTarget:
    """See `Target`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.execute(SQL["forget_name"])

    def fill(self, table: str, rows: Iterable[Row]) -> None:
        self._connection.executemany(SQL[f"fill_{table}"], rows)

    def kept(self, row: Row) -> Row:
        return row

    def go_on_from(self, last_ids: Mapping[str, int]) -> None:
        self._connection.executemany(
            SQL["go_on_from"], ({"name": name, "last": last} for name, last in last_ids.items())
        )

    def reader(self) -> SqliteReader:
        return SqliteReader(self._connection)


class SqliteDatabase:
    """See `Database`. `mode` is that of a file which is made; `clock` gives UTC epoch seconds."""

    def __init__(
        self,
        path: Path,
        *,
        mode: int | None,
        vault: Vault = PLAIN_VAULT,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self.url = self.where = f"sqlite:///{path}"
        self._path = path
        self._mode = mode
        self._vault = vault
        self._clock = clock
        self._monotonic = monotonic
        self._file: FileId | None = None  # once it was opened

    def prepare(self, *, create: bool, upgrade: bool) -> bool:
        done = self._bring_up_to_date(create=create, upgrade=Upgrade.ALL if upgrade else Upgrade.NONE)
        self._file = file_id(self._path)
        if create:
            machines.warn_of_a_layer(self._path)
        if done.copy is not None:
            _log.warning("ledger_upgraded kept_as_it_was=%s", json.dumps(str(done.copy)))
        return done.created

    def check_place(self) -> None:
        machines.check_at_open(self._path, self._owners_alive)

    def _owners_alive(self) -> list[op.OwnerRow]:
        with closing(self.reader()) as reader:
            return reader.owners_alive()

    def migrate(self) -> Upgraded:
        return self._bring_up_to_date(create=True, upgrade=Upgrade.ALL)

    def _bring_up_to_date(self, *, create: bool, upgrade: Upgrade) -> Upgraded:
        make_sure(self._path, create=create, mode=self._mode)
        with closing(connect(self._path)) as connection:
            schema = SqliteSchema(connection, self._path, clock=self._clock)
            if schema.applied() is not None or create:  # else it is none
                refuse_exposed(self._path)
            done = bring_up_to_date(schema, create=create, upgrade=upgrade, steps=migrations("sqlite"))
            schema.see_to_wal()
            return done

    def store(self) -> SqliteStore:
        try:
            return SqliteStore(self._path, clock=self._clock, monotonic=self._monotonic, file=self._file)
        except sqlite3.Error as exc:  # there is no store yet that could explain it
            raise self.explain(exc) from exc

    def look(self, *, patience_s: float) -> SqliteReader:
        self.prepare(create=False, upgrade=False)
        return self.reader()

    def reader(self) -> SqliteReader:
        reader = SqliteReader.of(self._path, vault=self._vault)
        if self._file is not None:
            try:
                check_same(self._path, self._file)
            except LedgerUnavailable:
                reader.close()
                raise
        return reader

    def scrub(self) -> bool:
        return scrub(self._path)

    def write_copy(self, file: Path) -> None:
        make_sure(self._path, create=False, mode=None)
        with closing(connect(self._path)) as connection:
            schema = SqliteSchema(connection, self._path, clock=self._clock)
            if schema.applied() is None:
                raise LedgerMissing(schema.missing)
            write_copy(connection, file)

    @contextmanager
    def alone(self) -> Iterator[None]:
        with closing(connect(self._path)) as connection:
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"), monotonic=self._monotonic)
            yield  # closing the connection ends the transaction

    @contextmanager
    def to_be_filled(self) -> Iterator[SqliteTarget]:
        if not self._path.exists():
            with new_file(self._path, mode=self._mode or DEFAULT_MODE) as partial, self._filled(partial) as target:
                yield target
            return
        make_sure(self._path, create=True, mode=self._mode)
        with self._filled(self._path) as target:
            yield target

    @contextmanager
    def _filled(self, path: Path) -> Iterator[SqliteTarget]:
        with closing(connect(path)) as connection:
            schema = SqliteSchema(connection, self._path, clock=self._clock)
            with schema.transaction():
                apply(schema, migrations("sqlite"))
                if connection.execute(SQL["anything"]).fetchone() is not None:
                    raise SettingsError(f"the ledger {self.where} {USED_BEFORE} a file that isn't there yet")
                yield SqliteTarget(connection)

    def explain(self, exc: Exception) -> Exception:
        return explain(exc, self._path)
