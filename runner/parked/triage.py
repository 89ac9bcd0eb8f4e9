"""Many jobs put away or erased at once: which they are, and doing it, a page a commit.

Each job is an operation of its own, so that whoever is killed half-way leaves every job either as it was or done, and
the same command goes on.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from parked.errors import TransitionError
from parked.job import State
from parked.ledger import Ledger
from parked.ledger.operations import JobRow, Operation
from parked.ledger.store import Filters, Reader

SAMPLE: Final = 20  # jobs that a dry run names
PAGE: Final = 256  # as many operations as the writer puts into one commit


@dataclass(slots=True)
class Selection:
    """The jobs that something is to be done with, in order of place; and what was left, and why."""

    ids: array[int] = field(default_factory=lambda: array("q"))  # eight bytes a job, however many there are
    causes: Counter[tuple[State, str, str]] = field(default_factory=Counter)  # (state, error class, reason) -> jobs
    sample: list[JobRow] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)  # why, in a word -> jobs


def select(
    reader: Reader,
    filters: Filters,
    *,
    states: tuple[State, ...],
    why_left: Callable[[JobRow], str | None] = lambda row: None,
) -> Selection:
    """Return which jobs the filters match; `why_left` says in a word why one is to be left, None if it isn't."""
    selection = Selection()
    for row in reader.jobs(filters, states=states):
        left = why_left(row)
        if left is not None:
            selection.left[left] += 1
            continue
        selection.ids.append(row.id)
        selection.causes[row.state, row.error_class or "", row.reason or ""] += 1
        if len(selection.sample) < SAMPLE:
            selection.sample.append(row)
    return selection


def apply(ledger: Ledger, ids: array[int], operation: Callable[[int], Operation]) -> Iterator[TransitionError | None]:
    """Do it, and say of each job why it wasn't done; None: it was. Those have moved on since they were chosen."""
    for start in range(0, len(ids), PAGE):
        for ticket in ledger.submit_many(map(operation, ids[start : start + PAGE])):
            try:
                ticket.wait()
            except TransitionError as exc:
                yield exc
            else:
                yield None
