"""Points at which a process sends itself SIGKILL, or a gentler signal, and beats that come faster.

What runs is the real code.

`python -m torture.points POINT… -- parked run …` runs a command that will die there; so does an order to the nursery.

    before:METHOD       when a commit is about to be made for which this method of the store was called
    after:METHOD        when it has been made, and nobody was told
    half-a-line         when half of an answer's line stands in the file
    filled:TABLE        when a copy has filled this table
    vacuum              while SQLite writes a backup, or the ledger anew
    unnamed             when a copy is whole, before it has its name
    named               when it has it, and is still called as it was before, too
    by:SIGNAL           die of this one instead, once: it may be handled
    statement:N         before the Nth statement of a migration; with `upgrade` the steps have one more at their end
    upgrade             the ledger's schema has one more step
    quick               owners beat each 0.2 s, and are lost after 3 s; a sidecar looks at its clock as often
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from typing import Any, Final

from parked import answerfile, owners
from parked.ledger import newfile, postgres, postgres_schema, pulse, scrubbing, sqlite, sqlite_schema
from parked.ledger.migrations import Migration, migrations

BEAT_S: Final = 0.2
LOST_AFTER_S: Final = 3.0  # longer than a busy machine may keep a living process from its beat
MAX_GAP_S: Final = 2.0

# Of the steps of a VACUUM: where it is told to end, and by when it must have.
IN_THE_MIDDLE: Final = 50
TOO_LATE: Final = 3000

STORES: Final = (sqlite.SqliteStore, postgres.PostgresStore)
TARGETS: Final = (sqlite.SqliteTarget, postgres.PostgresTarget)
SCHEMAS: Final = (sqlite_schema.SqliteSchema, postgres_schema.PostgresSchema)


def more(dialect: str) -> Migration:
    """The step that `upgrade` adds: three statements, of which one alone would be half a schema."""
    schema = "parked." if dialect == "postgres" else ""
    statements = (
        f"CREATE TABLE {schema}more (id INTEGER PRIMARY KEY)",
        f"ALTER TABLE {schema}jobs ADD COLUMN more TEXT",
        f"INSERT INTO {schema}more (id) SELECT id FROM {schema}jobs",
    )
    return Migration(9001, "more", True, statements)


def arm(point: str) -> None:
    name, _, argument = point.partition(":")
    POINTS[name](argument)


_ends = [signal.SIGKILL]


def die() -> None:
    while _ends:
        os.kill(os.getpid(), _ends.pop())


def _by(name: str) -> None:
    _ends[:] = [signal.Signals[name]]


def _at_commit(method: str, *, before: bool) -> None:
    for store in STORES:
        _wrap_commit(store, method, before=before)


def _wrap_commit(store: Any, method: str, *, before: bool) -> None:
    act, begin, commit = getattr(store, method), store.begin, store.commit
    seen: list[str] = []

    def acting(self: Any, rows: Any) -> Any:
        seen.extend([method] if rows else [])
        return act(self, rows)

    def beginning(self: Any) -> None:
        seen.clear()
        begin(self)

    def committing(self: Any) -> None:
        if seen and before:
            die()
        commit(self)
        if seen:
            die()

    store.begin, store.commit = beginning, committing
    setattr(store, method, acting)


def _half_a_line(_: str) -> None:
    append = answerfile._File.append

    def torn(self: Any, line: bytes) -> None:
        append(self, line[: len(line) // 2])
        die()

    answerfile._File.append = torn  # type: ignore[method-assign]


def _filled(table: str) -> None:
    for target in TARGETS:
        _wrap_fill(target, table)


def _wrap_fill(target: Any, last: str) -> None:
    fill = target.fill

    def filling(self: Any, table: str, rows: Any) -> None:
        fill(self, table, rows)
        if table == last:
            die()

    target.fill = filling


def _vacuum(_: str) -> None:
    """Connections that go on from there are opened by these modules."""
    for module in (sqlite, scrubbing):
        _wrap_connect(module)


def _wrap_connect(module: Any) -> None:
    connect = module.connect

    def connecting(*given: Any, **more: Any) -> Any:
        connection = connect(*given, **more)
        connection.set_trace_callback(lambda sql: begin(connection) if sql.startswith("VACUUM") else None)
        return connection

    def begin(connection: Any) -> None:
        calls = count()

        def go_on() -> None:
            number = next(calls)
            if number >= IN_THE_MIDDLE:
                die()
                time.sleep(0.001)
            if number >= TOO_LATE:
                os._exit(99)

        connection.set_progress_handler(go_on, 20)

    module.connect = connecting


def _naming(_: str, *, before: bool) -> None:
    give_name = newfile._give_name

    def giving(*given: Any) -> None:
        if before:
            die()
        give_name(*given)
        die()

    newfile._give_name = giving  # type: ignore[assignment]


def _at_statement(number: str) -> None:
    left = [int(number)]
    for schema in SCHEMAS:
        _wrap_run(schema, left)


def _wrap_run(schema: Any, left: list[int]) -> None:
    for method in ("run", "note"):
        act: Callable[..., None] = getattr(schema, method)

        def acting(self: Any, *given: Any, act: Callable[..., None] = act, **more: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                die()
            act(self, *given, **more)

        setattr(schema, method, acting)


def _upgrade(_: str) -> None:
    for module in (sqlite, postgres):
        module.migrations = lambda dialect: (*migrations(dialect), more(dialect))  # type: ignore[attr-defined]


def _quick(_: str) -> None:
    from parked_exporter import schedule

    vars(schedule)["CLOCK_S"] = BEAT_S
    globals_of_pulse = vars(pulse)
    globals_of_pulse["BEAT_S"] = BEAT_S
    globals_of_pulse["Watch"] = partial(owners.Watch, timeout_s=LOST_AFTER_S, max_gap_s=MAX_GAP_S)


POINTS: Final[dict[str, Callable[[str], None]]] = {
    "before": partial(_at_commit, before=True),
    "after": partial(_at_commit, before=False),
    "half-a-line": _half_a_line,
    "filled": _filled,
    "vacuum": _vacuum,
    "unnamed": partial(_naming, before=True),
    "named": partial(_naming, before=False),
    "by": _by,
    "statement": _at_statement,
    "upgrade": _upgrade,
    "quick": _quick,
}


def main(words: list[str]) -> int:
    from torture.nursery import run_command

    points, command = _split(words)
    for point in points:
        arm(point)
    status: int = run_command(command)
    return status


def _split(words: list[str]) -> tuple[Iterable[str], list[str]]:
    at = words.index("--")
    return words[:at], words[at + 1 :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
