"""The read side of a SQLite ledger: one snapshot, on a connection that only asks."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from parked.job import State
from parked.ledger.codec import Body
from parked.ledger.counters import Metric
from parked.ledger.labels import Labels
from parked.ledger.operations import JobRow, OwnerRow
from parked.ledger.sqlite import SQL, job_row, owner_row
from parked.ledger.sqlite_file import connect
from parked.ledger.store import AnswerRow, AttemptRow, Cause, CounterRow, Erasure, Filters, Imbalance, Sent

NAMED_AT_MOST: Final = 100  # ids in one finding of the audit

_JOB_COLUMNS: Final = len(JobRow._fields)
_PLAIN_FILTERS: Final = ("pipeline", "batch", "model", "reason", "fingerprint")


class SqliteReader:
    """See `Reader`. The snapshot is that of the first question; it is given back by `close`."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, only_asks=True)
        try:
            self._connection.execute("BEGIN")
            self.name: str = self._connection.execute(SQL["ledger_name"]).fetchone()[0]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    # --- jobs ---

    def jobs_by_key(self, job_id: str, *, pipeline: str | None, batch: str | None) -> list[JobRow]:
        filters = Filters(pipeline=pipeline, batch=batch)
        sql = _compose("select_jobs", "where_job_id", *_conditions(filters, since="accepted"), order="by_place")
        return [job_row(row) for row in self._ask(sql, _values(filters) | {"job_id": job_id})]

    def jobs(
        self, filters: Filters, *, states: Sequence[State], limit: int | None = None, newest_first: bool = False
    ) -> Iterator[JobRow]:
        order = "by_place"
        if newest_first:
            order = "by_parking" if _only_parked(states) else "by_acceptance"
        sql = _compose("select_jobs", *_of_states(filters, states), order=order)
        values = _values(filters, states)
        if limit is not None:
            sql, values["limit"] = f"{sql} {SQL['limit']}", limit
        return map(job_row, self._ask(sql, values))

    def count(self, filters: Filters, *, states: Sequence[State]) -> int:
        sql = _compose("count_jobs", *_of_states(filters, states))
        return int(self._value(sql, _values(filters, states)))

    def causes(self, filters: Filters) -> list[Cause]:
        sql = _compose("select_causes", *_of_states(filters, (State.PARKED,)), order="by_cause")
        rows = self._ask(sql, _values(filters)).fetchall()
        return [
            Cause(fingerprint, error_class, reason, jobs, first, last, self._job(example), bool(erased))
            for fingerprint, error_class, reason, erased, jobs, first, last, example in rows
        ]

    def _job(self, id: int) -> JobRow:
        return job_row(self._ask(_compose("select_jobs", "where_id"), {"id": id}).fetchone())

    # --- what belongs to a job ---

    def payload(self, id: int) -> Body:
        return Body(*self._ask(SQL["payload"], {"id": id}).fetchone())

    def jobs_with_payloads(self, ids: Sequence[int]) -> list[Sent]:
        rows = self._ask(SQL["jobs_with_payloads"], {"ids": json.dumps(ids)})
        return [Sent(job_row(row[:_JOB_COLUMNS]), Body(*row[_JOB_COLUMNS:-1]), model=row[-1]) for row in rows]

    def identities(self, pipeline: str, batch: str, job_ids: Sequence[str]) -> dict[str, bytes]:
        values = {"pipeline": pipeline, "batch": batch, "job_ids": json.dumps(job_ids)}
        return dict(self._ask(SQL["identities"], values).fetchall())

    def answer_bodies(self, ids: Sequence[int]) -> dict[int, Body]:
        rows = self._ask(SQL["answer_bodies"], {"ids": json.dumps(ids)})
        return {id: Body._make(body) for id, *body in rows}

    def answer(self, id: int) -> AnswerRow | None:
        row = self._ask(_compose("select_answers", "where_id", "where_answered", "where_kept"), {"id": id}).fetchone()
        return None if row is None else _answer_row(row)

    def answers(self, filters: Filters, *, only_new: bool = False) -> Iterator[AnswerRow]:
        conditions = (*_conditions(filters, since="answered"), "where_answered", "where_kept")
        if only_new:
            conditions += ("where_new",)
        return map(_answer_row, self._ask(_compose("select_answers", *conditions, order="by_answer"), _values(filters)))

    def erasure(self, id: int) -> Erasure | None:
        row = self._ask(SQL["erasure"], {"id": id}).fetchone()
        return None if row is None else Erasure(*row)

    def erased_with_texts(self) -> frozenset[int]:
        return frozenset(id for (id,) in self._ask(SQL["erased_with_texts"]))

    def attempts(self, id: int) -> list[AttemptRow]:
        rows = (AttemptRow._make(row) for row in self._ask(SQL["attempts"], {"id": id}))
        return [
            row._replace(strike=bool(row.strike), answered=bool(row.answered), interrupted=bool(row.interrupted))
            for row in rows
        ]

    # --- counters ---

    def counters(self, *metrics: str) -> list[CounterRow]:
        if not metrics:
            return [CounterRow._make(row) for row in self._ask(SQL["all_counters"])]
        return [CounterRow._make(row) for row in self._ask(SQL["counters"], {"metrics": json.dumps(metrics)})]

    def oldest(self, state: State) -> dict[tuple[str, str], float]:
        rows = self._ask(SQL[f"oldest_{state}"])
        return {(pipeline, error_class): since for pipeline, error_class, since in rows}

    def labels(self) -> Labels:
        return Labels(self._ask(SQL["counted_pairs"]))

    def states(self) -> dict[tuple[str, State], int]:
        return {(pipeline, State(state)): jobs for pipeline, state, jobs in self._ask(SQL["states"])}

    def imbalances(self, *, thorough: bool = False) -> list[Imbalance]:
        found = [*self._states_out_of_balance(), *self._accepted_out_of_balance(), *self._parked_out_of_balance()]
        if thorough:
            for name, sql in SQL.items():
                if name.startswith("audit_"):
                    found += self._impossible_rows(name.removeprefix("audit_"), sql)
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
        for pipeline, model, error_class, reason, jobs in self._ask(SQL["parked_rows"]):
            rows[*labels.pair(pipeline, model), error_class, reason] += jobs
        counted = {tuple(c[1:5]): c.value for c in self.counters(Metric.PARKED_NOW)}
        for key in sorted(rows.keys() | counted.keys()):
            if counted.get(key, 0) != rows[key]:
                pipeline, _, error_class, _ = key
                yield Imbalance(pipeline, f"parked_now {error_class}", counted.get(key, 0), rows[key])

    def _impossible_rows(self, what: str, sql: str) -> Iterator[Imbalance]:
        ids: dict[str, list[str]] = {}
        for pipeline, job_id in self._ask(sql):
            ids.setdefault(pipeline, []).append(job_id)
        for pipeline, job_ids in ids.items():
            yield Imbalance(pipeline, what.replace("_", " "), 0, len(job_ids), tuple(job_ids[:NAMED_AT_MOST]))

    # --- the rest ---

    def owners(self) -> list[OwnerRow]:
        return [owner_row(row) for row in self._ask(SQL["owners"])]

    def mark(self, name: str) -> Any:
        value = self._value(SQL["mark"], {"name": name})
        return None if value is None else json.loads(value)

    def leases(self) -> dict[str, int]:
        return dict(self._ask(SQL["leases"]).fetchall())

    def _ask(self, sql: str, values: dict[str, Any] | None = None) -> sqlite3.Cursor:
        return self._connection.execute(sql, values or {})

    def _value(self, sql: str, values: dict[str, Any] | None = None) -> Any:
        row = self._ask(sql, values).fetchone()
        return None if row is None else row[0]


def _compose(question: str, *conditions: str, order: str | None = None) -> str:
    """Put a question together from named parts."""
    parts = [SQL[question]]
    if conditions:
        parts.append("WHERE " + " AND ".join(SQL[name] for name in conditions))
    if order is not None:
        parts.append(SQL[order])
    return " ".join(parts)


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


def _values(filters: Filters, states: Sequence[State] = ()) -> dict[str, Any]:
    """What to bind, needed or not."""
    values: dict[str, Any] = {name: getattr(filters, name) for name in (*_PLAIN_FILTERS, "since", "until")}
    values["job_ids"] = json.dumps(filters.job_ids)
    values["states"] = json.dumps(states)
    values["state"] = states[0] if states else None
    values["error_class"] = filters.error_class
    if filters.error_class is not None and "*" in filters.error_class:
        values["error_class"] = filters.error_class.replace("[", "[[]").replace("?", "[?]")  # only * is ours
    return values


def _answer_row(row: Sequence[Any]) -> AnswerRow:
    codec, key_id, body, answered_at, handed_out_at = row[_JOB_COLUMNS:]
    return AnswerRow(job_row(row[:_JOB_COLUMNS]), Body(codec, key_id, body), answered_at, handed_out_at)
