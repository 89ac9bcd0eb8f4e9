"""Whose turn it is, where jobs of several pipelines wait for a worker. Pure.

A pipeline with 100,000 pending jobs must not keep one with ten of them waiting: whoever has least in hand goes first.
Counting what is in hand, and not how often a pipeline had its turn, also shares the workers evenly between a pipeline
whose calls take minutes and one whose calls take a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
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


def next_shares(
    pipelines: Iterable[str], *, limit: int, in_hand: Mapping[str, int], after: str, there: Mapping[str, int]
) -> Counter[str]:
    """Return how many jobs of each pipeline `next_turns` would take, at most `limit` together, if they had enough.

    Of those that stand in `there` it is known that they have no more than so many.
    """
    turns = [(in_hand.get(pipeline, 0), pipeline <= after, pipeline) for pipeline in set(pipelines)]
    turns = [turn for turn in turns if there.get(turn[-1], limit) > 0]
    heapify(turns)
    shares = Counter[str]()
    for _ in range(limit):
        if not turns:
            break
        turn, is_behind, pipeline = heappop(turns)
        shares[pipeline] += 1
        if shares[pipeline] < there.get(pipeline, limit):
            heappush(turns, (turn + 1, is_behind, pipeline))
    return shares
