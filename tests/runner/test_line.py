"""The line of one run, asked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nights import DAY_LEFT_S, failed
from parked.gates import Gates
from parked.line import DAY_DELAY_S, RESUME_S, Line
from parked.news import Go, Rests, Wait
from parked.policy import Policy, Rest
from parked.verdict import Reason


@pytest.fixture
def line() -> Line:
    """Ten jobs of a run that waits at a pause until a time that was named."""
    line = Line(Gates(), Policy(), workers=1, keeps=True, resumes=True, more=False)
    for job in range(10):
        line.enter(job, "m")
    return line


def start(line: Line, now: float) -> int:
    turn = line.next(now)
    assert isinstance(turn, Go)
    line.started(turn.job, now)
    return turn.job


def meet_a_dead_key(line: Line, job: int, now: float) -> None:
    line.ended(job, failed(Reason.AUTH_INVALID), now, jitter=0.5, day_left_s=DAY_LEFT_S)
    if isinstance(line.again(job), Rest):
        line.again(job)  # once it is pending in the ledger
    for news in line.news:
        if isinstance(news, Rests):
            line.again(news.job)
    line.news.clear()


def test_a_try_that_fails_after_the_time_to_wait_is_over_is_the_last_one(line):
    while not line.paused:
        meet_a_dead_key(line, start(line, 0.0), 0.0)
    tried = start(line, RESUME_S)

    line.give_up_waiting()
    meet_a_dead_key(line, tried, RESUME_S)

    assert line.is_paused_for_good("m")


@pytest.mark.parametrize(("named_s", "tried_after_s"), [(36.0, 36.0), (None, DAY_DELAY_S)])
def test_a_days_quota_is_tried_once_more_after_the_delay_that_it_names(line, named_s, tried_after_s):
    refusal = replace(failed(Reason.DAILY_QUOTA_EXHAUSTED, quota_id="PerDay"), shorter_delay_s=named_s)
    line.ended(start(line, 0.0), refusal, 0.0, jitter=0.5, day_left_s=DAY_LEFT_S)

    assert isinstance(line.next(tried_after_s - 0.1), Wait)
    tried = start(line, tried_after_s)
    line.ended(tried, refusal, tried_after_s, jitter=0.5, day_left_s=DAY_LEFT_S)

    assert line.is_paused("m")
