"""What follows a failure, with plain values."""

import re

import pytest

from parked.errors import SettingsError
from parked.policy import GiveUp, Policy, Retry, backoff_s, decide
from parked.verdict import MEANINGS, Disposition, Kind, Reason, Verdict

DAY_LEFT_S = 5000.0


def failure(reason: Reason, *, retry_after_s: float | None = None) -> Verdict:
    meaning = MEANINGS[reason]
    return Verdict(False, "test", meaning.kind, reason, meaning.scope, retry_after_s)


def decided(strikes: int, verdict: Verdict, *, policy: Policy | None = None) -> Retry | GiveUp:
    return decide(strikes, verdict, policy=policy or Policy(), jitter=0.5, day_left_s=DAY_LEFT_S)


PERMANENT = [reason for reason in Reason if MEANINGS[reason].kind is Kind.PERMANENT]


@pytest.mark.parametrize("reason", PERMANENT)
def test_a_permanent_failure_is_parked_at_once(reason):
    assert decided(1, failure(reason)) == GiveUp(Disposition.PERMANENT)


def test_a_retryable_failure_is_tried_until_its_strikes_are_used_up():
    verdict = failure(Reason.OVERLOADED)

    decisions = [decided(n, verdict) for n in (1, 2, 3, 4)]

    assert decisions == [Retry(2.5), Retry(4.5), Retry(8.5), GiveUp(Disposition.EXHAUSTED)]


def test_an_unknown_failure_is_tried_twice_at_most():
    verdict = failure(Reason.UNCLASSIFIED)

    assert decided(1, verdict) == Retry(2.5)
    assert decided(2, verdict) == GiveUp(Disposition.EXHAUSTED)


def test_one_attempt_is_one_attempt_for_unknown_failures_too():
    verdict = failure(Reason.UNCLASSIFIED)

    assert decided(1, verdict, policy=Policy(max_attempts=1)) == GiveUp(Disposition.EXHAUSTED)


def test_what_the_server_asks_for_wins_over_the_backoff():
    assert decided(1, failure(Reason.OVERLOADED, retry_after_s=34.0)) == Retry(34.0)


def test_zero_is_a_wait_the_server_asks_for():
    assert decided(3, failure(Reason.OVERLOADED, retry_after_s=0.0)) == Retry(0.0)


def test_a_wait_that_is_too_long_to_sleep_parks_the_job_until_it_has_passed():
    verdict = failure(Reason.OVERLOADED, retry_after_s=121.0)

    assert decided(1, verdict) == GiveUp(Disposition.EXHAUSTED, wait_s=121.0)


def test_the_daily_quota_parks_a_job_until_the_reset():
    verdict = failure(Reason.DAILY_QUOTA_EXHAUSTED)

    assert decided(1, verdict) == GiveUp(Disposition.EXHAUSTED, wait_s=DAY_LEFT_S)


@pytest.mark.parametrize(("strikes", "wait_s"), [(1, 2.0), (2, 4.0), (4, 16.0), (5, 30.0), (60, 30.0)])
def test_the_backoff_doubles_up_to_half_a_minute(strikes, wait_s):
    assert backoff_s(strikes, jitter=0.0) == wait_s
    assert backoff_s(strikes, jitter=1.0) == wait_s + 1


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1, got 0"),
        ({"max_attempts": "5"}, "max_attempts must be a whole number from 1, got '5'"),
        ({"max_attempts": None}, "max_attempts must be a whole number from 1, got None"),
        ({"max_attempts": 2.5}, "max_attempts must be a whole number from 1, got 2.5"),
        ({"max_attempts": True}, "max_attempts must be a whole number from 1, got True"),
        ({"stop_after_alike": -1}, "stop_after_alike must be a whole number from 0, got -1"),
        ({"stop_after_alike": 0.5}, "stop_after_alike must be a whole number from 0, got 0.5"),
        ({"max_outage_s": -1}, "max_outage_s must be a number of seconds from 0 to 1,000,000,000, got -1"),
        ({"drain_s": "20"}, "drain_s must be a number of seconds from 0 to 1,000,000,000, got '20'"),
        ({"max_wait_s": 1e300}, "max_wait_s must be a number of seconds from 0 to 1,000,000,000, got 1e+300"),
        ({"max_wait_s": float("nan")}, "max_wait_s must be a number of seconds from 0 to 1,000,000,000, got nan"),
        ({"attempt_timeout_s": 0}, "attempt_timeout_s must be a number of seconds above 0 to 1,000,000,000, got 0"),
    ],
)
def test_a_policy_refuses_numbers_that_make_no_sense(numbers, said):
    with pytest.raises(SettingsError, match=f"^{re.escape(said)}$"):
        Policy(**numbers)
