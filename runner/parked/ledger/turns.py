"""Whose turn it is, where jobs of several pipelines wait for a worker. Pure.

A pipeline with 100,000 pending jobs must not keep one with ten of them waiting: whoever has least in hand goes first.
Counting what is in hand, and not how often a pipeline had its turn, also shares the workers evenly between a pipeline
whose calls take minutes and one whose calls take a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import attrgetter

from parked.ledger.operations import JobRow


def next_turns(waiting: Iterable[JobRow], *, limit: int, in_hand: Mapping[str, int], after: str) -> list[JobRow]:
    """Return which of these go next, in that order, at most `limit`.

    Those of a pipeline go in order of place; a pipeline that is not in `in_hand` has nothing there. Pipelines that have
    the same go in a circle, beginning behind `after`, so that a lone worker serves all of them in turn.
    """
    turns: list[tuple[int, bool, str, JobRow]] = []
    in_line = sorted(waiting, key=attrgetter("pipeline", "place", "id"))
    for pipeline, jobs in groupby(in_line, key=attrgetter("pipeline")):
        turns += [(turn, pipeline <= after, pipeline, job) for turn, job in enumerate(jobs, in_hand.get(pipeline, 0))]
    turns.sort(key=lambda each: each[:3])
    return [job for *_, job in turns[:limit]]
