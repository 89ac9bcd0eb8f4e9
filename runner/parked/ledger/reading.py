"""The read side of a ledger: questions put together from named statements, and their rows as values.

A database brings its statements, a way to ask, and a way to bind a list.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from parked.errors import ParkedError, TextDamaged, TextMissing
from parked.job import State
from parked.ledger.books import SET_BY_THE_LATEST
from parked.ledger.codec import NOT_STORED, Body, TextKind, decode, identity
from parked.ledger.counters import Metric
from parked.ledger.labels import Labels
from parked.ledger.migrations import migrations
from parked.ledger.operations import JobRow, OwnerRow, PauseRow
from parked.ledger.rows import JOB_COLUMNS, answer_row, attempt_row, gate_columns, job_row, owner_row, pause_rows
from parked.ledger.store import (
    AnswerRow,
    AttemptRow,
    BodiesRead,
    Cause,
    CauseCount,
    CounterRow,
    Erasure,
    Filters,
    Imbalance,
    KeptPace,
    KeptText,
    KeyUse,
    Revision,
    Sent,
    Undelivered,
)
from parked.ledger.vault import Vault, message_body

NAMED_AT_MOST: Final = 100  # ids in one finding of the audit
LONGEST_DELIVERY_WAIT_S: Final = 86_400.0

_UNDER_OTHER_KEYS: Final = {
    TextKind.PAYLOADS: "payloads_under_other_keys",
    TextKind.ANSWERS: "answers_under_other_keys",
    TextKind.MESSAGES: "messages_under_other_keys",
}
_PLAIN_FILTERS: Final = ("pipeline", "batch", "model", "reason", "fingerprint")


class Found(Protocol):
    """What a question gives: rows, to be taken one by one or together."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class SqlReader(ABC):
    """See `Reader`. The snapshot is that of the first question, which is the ledger's name; `close` gives it back."""

    dialect: ClassVar[str]
    sql: ClassVar[Mapping[str, str]]  # the statements by name

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self.name: str = self._value("ledger_name")

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def ask(self, sql: str, values: Mapping[str, Any]) -> Found: ...

    def stream(self, sql: str, values: Mapping[str, Any]) -> Iterable[Any]:
        """Ask for rows that may be more than fit into memory. Other questions may be asked while they come."""
        return self.ask(sql, values)

    @abstractmethod
    def many(self, values: Iterable[Any]) -> Any:
        """A list as it is bound."""

    @abstractmethod
    def pattern(self, text: str) -> str:
        """A text in which only `*` is special, as the database matches it."""

    # --- jobs ---

    def jobs_by_key(self, job_id: str, *, pipeline: str | None, batch: str | None) -> list[JobRow]:
        filters = Filters(pipeline=pipeline, batch=batch)
        sql = self._compose("select_jobs", "where_job_id", *_conditions(filters, since="accepted"), order="by_place")
        return [job_row(row) for row in self.ask(sql, self._values(filters) | {"job_id": job_id})]

    def jobs(
        self, filters: Filters, *, states: Sequence[State], limit: int | None = None, newest_first: bool = False
    ) -> Iterator[JobRow]:
        order = "by_place"
        if newest_first:
            order = "by_parking" if _only_parked(states) else "by_acceptance"
        sql = self._compose("select_jobs", *_of_states(filters, states), order=order)
        values = self._values(filters, states)
        if limit is None:
            return map(job_row, self.stream(sql, values))
        return map(job_row, self.ask(f"{sql} {self.sql['limit']}", values | {"limit": limit}))

    def count(self, filters: Filters, *, states: Sequence[State]) -> int:
        sql = self._compose("count_jobs", *_of_states(filters, states))
        return int(self.ask(sql, self._values(filters, states)).fetchone()[0])

    def causes(self, filters: Filters) -> list[Cause]:
        sql = self._compose("select_causes", *_of_states(filters, (State.PARKED,)), order="by_cause")
        rows = self.ask(sql, self._values(filters)).fetchall()
        return [
            Cause(fingerprint, error_class, reason, jobs, first, last, self.job(example), bool(erased))
            for fingerprint, error_class, reason, erased, jobs, first, last, example in rows
        ]

    def cause_counts(self, *, since: float | None) -> list[CauseCount]:
        counts: dict[tuple[Any, ...], CauseCount] = {}
        bound = math.inf if since is None else since
        for fingerprint, error_class, reason, erased_at, *counted in self._ask("cause_counts", since=bound):
            count = CauseCount(fingerprint, error_class, reason, erased_at is not None, *counted)
            counts[count[:4]] = counts[count[:4]].with_more(count) if count[:4] in counts else count
        return list(counts.values())

    def job(self, id: int) -> JobRow:
        return job_row(self.ask(self._compose("select_jobs", "where_id"), {"id": id}).fetchone())

    # --- what belongs to a job ---

    def payload(self, id: int) -> Body:
        return self._vault.opened(Body(*self._ask("payload", id=id).fetchone()))

    def jobs_with_payloads(self, ids: Sequence[int]) -> list[Sent]:
        rows = self._ask("jobs_with_payloads", ids=self.many(ids))
        opened = self._vault.opened
        return [Sent(job_row(row[:JOB_COLUMNS]), opened(Body(*row[JOB_COLUMNS:-1])), model=row[-1]) for row in rows]

    def identities(self, pipeline: str, batch: str, job_ids: Sequence[str]) -> dict[str, bytes]:
        return dict(self._ask("identities", pipeline=pipeline, batch=batch, job_ids=self.many(job_ids)).fetchall())

    def answer_bodies(self, ids: Sequence[int]) -> dict[int, Body]:
        rows = self._ask("answer_bodies", ids=self.many(ids))
        return {id: self._vault.opened(Body._make(body)) for id, *body in rows}

    def answer(self, id: int) -> AnswerRow | None:
        sql = self._compose("select_answers", "where_id", "where_answered", "where_kept")
        row = self.ask(sql, {"id": id}).fetchone()
        return None if row is None else self._answer(row)

    def answers(self, filters: Filters, *, only_new: bool = False) -> Iterator[AnswerRow]:
        conditions = (*_conditions(filters, since="answered"), "where_answered", "where_kept")
        if only_new:
            conditions += ("where_new",)
        sql = self._compose("select_answers", *conditions, order="by_answer")
        return map(self._answer, self.stream(sql, self._values(filters)))

    def _answer(self, columns: Sequence[Any]) -> AnswerRow:
        row = answer_row(columns)
        return row._replace(body=self._vault.opened(row.body))

    def undelivered(self, *, since: float, now: float, limit: int) -> list[Undelivered]:
        rows = self._ask("undelivered", since=since, now=now, longest_s=LONGEST_DELIVERY_WAIT_S, limit=limit)
        return [Undelivered(self._answer(row[:-1]), tries=row[-1]) for row in rows]

    def erasure(self, id: int) -> Erasure | None:
        row = self._ask("erasure", id=id).fetchone()
        return None if row is None else Erasure(*row)

    def forgettable(self, before: float, *, after: int, limit: int) -> list[int]:
        rows = self._ask("forgettable", before=before, after=after, limit=limit)
        return [id for (id,) in rows]

    def erased_with_texts(self) -> frozenset[int]:
        return frozenset(id for (id,) in self._ask("erased_with_texts"))

    def attempts(self, id: int) -> list[AttemptRow]:
        return [self._with_message(attempt_row(row)) for row in self._ask("attempts", id=id)]

    def _with_message(self, row: AttemptRow) -> AttemptRow:
        if row.message_key_id is None:
            return row
        return row._replace(message=self._vault.opened_text(row.message, row.message_key_id))

    def revisions(self, id: int) -> list[Revision]:
        return [Revision._make(row) for row in self._ask("revisions", id=id)]

    # --- counters ---

    def counters(self, *metrics: str) -> list[CounterRow]:
        sql = self._compose("select_counters", *(["where_metrics"] if metrics else []), order="by_label_set")
        values = {"metrics": self.many(metrics), "latest": self.many(SET_BY_THE_LATEST)}
        return [CounterRow._make(row) for row in self.ask(sql, values)]

    def oldest(self, state: State) -> dict[tuple[str, str], float]:
        rows = self._ask(f"oldest_{state}")
        return {(pipeline, error_class): since for pipeline, error_class, since in rows}

    def labels(self) -> Labels:
        return Labels(self._ask("counted_pairs"))

    def states(self) -> dict[tuple[str, State], int]:
        return {(pipeline, State(state)): jobs for pipeline, state, jobs in self._ask("states")}

    def imbalances(self, *, thorough: bool = False) -> list[Imbalance]:
        found = [*self._states_out_of_balance(), *self._accepted_out_of_balance(), *self._parked_out_of_balance()]
        if thorough:
            for name in self.sql:
                if name.startswith("audit_"):
                    found += self._impossible_rows(name)
        return found

    def _states_out_of_balance(self) -> Iterator[Imbalance]:
        labels = self.labels()
        rows = Counter[tuple[str, State]]()
        for (pipeline, state), jobs in self.states().items():
            rows[labels.pipeline(pipeline), state] += jobs
        counted = {(c.pipeline, State(c.a)): c.value for c in self.counters(Metric.LEDGER_JOBS)}
        counted = {key: value for key, value in counted.items() if key[1] is not State.FORGOTTEN}
        for pipeline, state in sorted(rows.keys() | counted.keys()):
            by_counter, by_row = counted.get((pipeline, state), 0), rows[pipeline, state]
            if by_counter != by_row:
                yield Imbalance(pipeline, state, by_counter, by_row)

    def _accepted_out_of_balance(self) -> Iterator[Imbalance]:
        labels = self.labels()
        accepted: dict[str, float] = {}
        for counter in self.counters(Metric.JOBS_ACCEPTED):
            accepted[counter.pipeline] = accepted.get(counter.pipeline, 0) + counter.value
        there: dict[str, float] = {}
        for (name, _), jobs in self.states().items():
            pipeline = labels.pipeline(name)
            there[pipeline] = there.get(pipeline, 0) + jobs
        for counter in self.counters(Metric.LEDGER_JOBS):
            if counter.a == State.FORGOTTEN:
                there[counter.pipeline] = there.get(counter.pipeline, 0) + counter.value
        for pipeline in sorted(accepted.keys() | there.keys()):
            if accepted.get(pipeline, 0) != there.get(pipeline, 0):
                yield Imbalance(pipeline, "accepted", accepted.get(pipeline, 0), there.get(pipeline, 0))

    def _parked_out_of_balance(self) -> Iterator[Imbalance]:
        labels = self.labels()
        rows = Counter[tuple[str, ...]]()
        for pipeline, model, error_class, reason, jobs in self._ask("parked_rows"):
            rows[*labels.pair(pipeline, model), error_class, reason] += jobs
        counted = {tuple(c[1:5]): c.value for c in self.counters(Metric.PARKED_NOW)}
        for key in sorted(rows.keys() | counted.keys(), key=lambda key: [part or "" for part in key]):
            if counted.get(key, 0) != rows[key]:
                pipeline, _, error_class, _ = key
                yield Imbalance(pipeline, f"parked_now {error_class}", counted.get(key, 0), rows[key])

    def _impossible_rows(self, audit: str) -> Iterator[Imbalance]:
        what = audit.removeprefix("audit_").replace("_", " ")
        ids: dict[str, list[str]] = {}
        for pipeline, job_id in self._ask(audit):
            ids.setdefault(pipeline, []).append(job_id)
        for pipeline, job_ids in ids.items():
            yield Imbalance(pipeline, what, 0, len(job_ids), tuple(job_ids[:NAMED_AT_MOST]))

    def read_bodies(self) -> BodiesRead:
        payloads = self._read_bodies("payloads", "bodies_of_payloads")
        answers = self._read_bodies("answers", "bodies_of_answers")
        return BodiesRead(
            payloads.number + answers.number, payloads.broken + answers.broken, payloads.locked + answers.locked
        )

    def _read_bodies(self, what: str, statement: str) -> BodiesRead:
        number = 0
        broken: dict[tuple[str, str], list[str]] = {}
        locked: dict[tuple[str, str], list[str]] = {}
        for pipeline, job_id, hashed, *body in self.stream(self.sql[statement], {}):
            number += 1
            try:
                value = decode(self._vault.opened(Body._make(body)))
                is_whole = hashed is None or self._vault.is_same(hashed, identity(value))
            except TextDamaged:
                is_whole = False
            except TextMissing as exc:
                locked.setdefault((pipeline, f"{what} {exc.why}"), []).append(job_id)
                continue
            except (ParkedError, ValueError):
                is_whole = False
            if not is_whole:
                broken.setdefault((pipeline, f"{what} that can't be read"), []).append(job_id)
        return BodiesRead(number, _findings(broken), _findings(locked))

    def unreadable(self, state: State, *, pipeline: str | None = None) -> dict[int, str]:
        rows = self._ask("payloads_kept_otherwise", state=state, pipeline=pipeline)
        return {id: _of_a_payload(why) for id, *kept in rows if (why := self._vault.why_unreadable(*kept)) is not None}

    def keys_used(self) -> list[KeyUse]:
        return [KeyUse(*row) for row in self._ask("keys_used")]

    def identity_keys(self) -> dict[str, int]:
        return dict(self._ask("identity_keys").fetchall())

    def kept_otherwise(
        self, kind: TextKind, key_id: str | None, *, after: tuple[int, int], limit: int
    ) -> Iterator[KeptText]:
        job, number = after
        values = {"key_id": key_id, "job": job, "number": number, "limit": limit}
        for job, number, codec, key, data, hashed in self.stream(self.sql[_UNDER_OTHER_KEYS[kind]], values):
            body = Body(codec, key, data) if kind is not TextKind.MESSAGES else message_body(data, key)
            yield KeptText(kind, job, number, body, hashed)

    # --- the rest ---

    def owners(self) -> list[OwnerRow]:
        return [owner_row(row) for row in self._ask("owners")]

    def owners_alive(self) -> list[OwnerRow]:
        return [owner_row(row) for row in self._ask("owners_alive")]

    def owners_counted(self, *, since: float) -> tuple[int, int]:
        alive, lost = self._ask("owners_counted", since=since).fetchone()
        return alive, lost

    def mark(self, name: str) -> Any:
        value = self._value("mark", name=name)
        return None if value is None else json.loads(value)

    def marks(self, beginning: str) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self._ask("marks", beginning=beginning)}

    def clock(self) -> float:
        return float(self._value("clock"))

    def newest(self) -> float | None:
        newest: float | None = self._value("newest")
        return newest

    def lacking_rights(self) -> list[str]:
        return [right for (right,) in self._ask("lacking_rights")]

    def version(self) -> str:
        return str(self._value("version"))

    @abstractmethod
    def size_bytes(self) -> int: ...

    def pauses(self) -> list[PauseRow]:
        return pause_rows(self._ask("pauses_that_hold"))

    def first_that_met(self, reason: str, *, pipeline: str) -> tuple[str, str] | None:
        row: tuple[str, str] | None = self._ask("first_that_met", pipeline=pipeline, reason=reason).fetchone()
        return row

    def paces(self) -> list[KeptPace]:
        return [
            KeptPace(model, per_s, written_at if learnt_at is None else learnt_at)
            for model, _, _, per_s, _, written_at, learnt_at in gate_columns(self._ask("gates"))
            if model and per_s is not None
        ]

    def gates(self) -> list[tuple[str, str | None, float | None]]:
        return [(model, why, closed_until) for model, why, closed_until, *_ in gate_columns(self._ask("gates"))]

    def leases(self) -> dict[str, OwnerRow]:
        return {task: owner_row(owner) for task, *owner in self._ask("leases")}

    # --- all of it ---

    def rows(self, table: str) -> Generator[tuple[Any, ...]]:
        yield from self.stream(self.sql[f"rows_of_{table}"], {"latest": self.many(SET_BY_THE_LATEST)})

    def last_ids(self) -> dict[str, int]:
        return dict(self._ask("last_ids").fetchall())

    def unknown_steps(self) -> list[int]:
        known = {step.number for step in migrations(self.dialect)}
        return [number for number, _ in self._ask("applied_steps") if number not in known]

    # --- parts ---

    def _ask(self, name: str, /, **values: Any) -> Found:
        return self.ask(self.sql[name], values)

    def _value(self, name: str, /, **values: Any) -> Any:
        row = self._ask(name, **values).fetchone()
        return None if row is None else row[0]

    def _compose(self, question: str, *conditions: str, order: str | None = None) -> str:
        """Put a question together from named parts."""
        parts = [self.sql[question]]
        if conditions:
            parts.append("WHERE " + " AND ".join(self.sql[name] for name in conditions))
        if order is not None:
            parts.append(self.sql[order])
        return " ".join(parts)

    def _values(self, filters: Filters, states: Sequence[State] = ()) -> dict[str, Any]:
        """What to bind, needed or not."""
        values: dict[str, Any] = {name: getattr(filters, name) for name in (*_PLAIN_FILTERS, "since", "until")}
        values["job_ids"] = self.many(filters.job_ids)
        values["states"] = self.many(states)
        values["state"] = states[0] if states else None
        values["error_class"] = filters.error_class
        if filters.error_class is not None and "*" in filters.error_class:
            values["error_class"] = self.pattern(filters.error_class)
        return values


def _findings(found: Mapping[tuple[str, str], list[str]]) -> list[Imbalance]:
    return [
        Imbalance(pipeline, what, 0, len(job_ids), tuple(job_ids[:NAMED_AT_MOST]))
        for (pipeline, what), job_ids in found.items()
    ]


def _only_parked(states: Sequence[State]) -> bool:
    return tuple(states) == (State.PARKED,)


def _of_states(filters: Filters, states: Sequence[State]) -> list[str]:
    if _only_parked(states):
        return ["where_parked", *_conditions(filters, since="parked")]
    return ["where_state" if len(states) == 1 else "where_states", *_conditions(filters, since="accepted")]


def _conditions(filters: Filters, *, since: str) -> tuple[str, ...]:
    """The names of the conditions for the filters that are given; `since` says which time `since` and `until` mean."""
    names = [name for name in _PLAIN_FILTERS if getattr(filters, name) is not None]
    if filters.error_class is not None:
        names.append("error_class_like" if "*" in filters.error_class else "error_class")
    if filters.job_ids:
        names.append("job_ids")
    names += [f"{name}_{since}" for name in ("since", "until") if getattr(filters, name) is not None]
    return tuple(f"where_{name}" for name in names)


def _of_a_payload(why: str) -> str:
    return f"{why}; it is in the file that it came from" if why == NOT_STORED else why
