"""The line of one run, asked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nights import DAY_LEFT_S, failed
from parked.gates import Gates
from parked.line import DAY_DELAY_S, RESUME_S, Line
from parked.news import Go, News, Pause, Rests, Wait
from parked.policy import Policy, Rest
from parked.verdict import Reason, Verdict


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


def meet(verdict: Verdict, line: Line, job: int, now: float) -> list[News]:
    """Have a call end so; whoever is to rest does. Returns what the line had to say."""
    line.ended(job, verdict, now, jitter=0.5, day_left_s=DAY_LEFT_S)
    if isinstance(line.again(job), Rest):
        line.again(job)  # once it is pending in the ledger
    return take_news(line)


def take_news(line: Line) -> list[News]:
    taken, line.news[:] = line.news[:], []
    for news in taken:
        if isinstance(news, Rests):
            line.again(news.job)
    return taken


DEAD_KEY = failed(Reason.AUTH_INVALID)


def test_a_try_that_fails_after_the_time_to_wait_is_over_is_the_last_one(line):
    while not line.paused:
        meet(DEAD_KEY, line, start(line, 0.0), 0.0)
    tried = start(line, RESUME_S)

    line.give_up_waiting()
    meet(DEAD_KEY, line, tried, RESUME_S)

    assert line.is_paused_for_good("m")


@pytest.mark.parametrize(("named_s", "tried_after_s"), [(36.0, 36.0), (None, DAY_DELAY_S)])
def test_a_days_quota_is_tried_once_more_after_the_delay_that_it_names(line, named_s, tried_after_s):
    refusal = replace(failed(Reason.DAILY_QUOTA_EXHAUSTED, quota_id="PerDay"), shorter_delay_s=named_s)
    line.ended(start(line, 0.0), refusal, 0.0, jitter=0.5, day_left_s=DAY_LEFT_S)

    assert isinstance(line.next(tried_after_s - 0.1), Wait)
    tried = start(line, tried_after_s)
    line.ended(tried, refusal, tried_after_s, jitter=0.5, day_left_s=DAY_LEFT_S)

    assert line.is_paused("m")


@pytest.mark.parametrize(("max_outage_s", "named_s", "delay_s"), [(30, None, DAY_DELAY_S), (900, 18_000.0, 18_000.0)])
def test_a_delay_of_a_days_quota_that_is_too_long_to_be_waited_for_pauses_until_it_is_over(
    max_outage_s, named_s, delay_s
):
    line = Line(Gates(), Policy(max_outage_s=max_outage_s), workers=1, keeps=True, resumes=True, more=False)
    for job in range(10):
        line.enter(job, "m")
    refusal = replace(failed(Reason.DAILY_QUOTA_EXHAUSTED, quota_id="PerDay"), shorter_delay_s=named_s)

    said = meet(refusal, line, start(line, 0.0), 0.0)
    for now in (max_outage_s, delay_s - 0.1):
        assert isinstance(line.next(now), Wait)
        said += take_news(line)
    said += meet(refusal, line, start(line, delay_s), delay_s)

    assert [(news.reason, news.for_s, news.tries_in_s) for news in said if isinstance(news, Pause)] == [
        (Reason.DAILY_QUOTA_EXHAUSTED, delay_s - max_outage_s, delay_s - max_outage_s),
        (Reason.DAILY_QUOTA_EXHAUSTED, DAY_LEFT_S, DAY_LEFT_S),
    ]
