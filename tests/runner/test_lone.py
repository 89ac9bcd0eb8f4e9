"""When a job that runs alone may call, with a clock of plain numbers."""

import pytest

from parked.lone import UNNAMED_DELAY_S, NamedDelays, closing_s
from parked.verdict import MEANINGS, Reason, Scope, Verdict

LONGEST_S = 120.0


def refused(
    reason: Reason = Reason.RATE_LIMITED,
    *,
    retry_after_s: float | None = None,
    quota_id: str | None = None,
    scope: Scope | None = None,
) -> Verdict:
    meaning = MEANINGS[reason]
    return Verdict(False, "test", meaning.kind, reason, scope or meaning.scope, retry_after_s, quota_id=quota_id)


@pytest.fixture
def delays() -> NamedDelays:
    return NamedDelays()


def test_nothing_is_waited_for_until_a_server_asks(delays):
    assert delays.wait_s("m", now=0.0) == 0.0


def test_a_rate_limit_holds_for_its_model_for_as_long_as_the_server_asks(delays):
    delays.heed("m", refused(retry_after_s=34.0), longest_s=LONGEST_S, now=100.0)

    assert delays.wait_s("m", now=100.0) == 34.0
    assert delays.wait_s("m", now=133.0) == 1.0
    assert delays.wait_s("m", now=134.0) == 0.0
    assert delays.wait_s("another", now=100.0) == 0.0


def test_a_limit_of_the_project_holds_for_every_model(delays):
    delays.heed("m", refused(retry_after_s=5.0, scope=Scope.PROJECT), longest_s=LONGEST_S, now=0.0)

    assert delays.wait_s("another", now=1.0) == 4.0


def test_a_shorter_delay_does_not_end_a_longer_one(delays):
    delays.heed("m", refused(retry_after_s=30.0), longest_s=LONGEST_S, now=0.0)
    delays.heed("m", refused(retry_after_s=1.0), longest_s=LONGEST_S, now=10.0)

    assert delays.wait_s("m", now=12.0) == 18.0


def test_a_quota_without_a_delay_asks_for_a_moment():
    assert closing_s(refused(quota_id="PerMinute")) == UNNAMED_DELAY_S


def test_a_bare_429_only_makes_its_own_job_wait():
    assert closing_s(refused()) is None


def test_a_delay_that_nobody_waits_for_holds_nobody(delays):
    delays.heed("m", refused(retry_after_s=LONGEST_S + 1), longest_s=LONGEST_S, now=0.0)

    assert delays.wait_s("m", now=0.0) == 0.0


def test_a_jobs_own_fault_holds_nobody():
    assert closing_s(refused(Reason.SERVER_ERROR, retry_after_s=9.0)) is None


def test_an_overloaded_model_that_names_a_delay_is_left_alone_for_it():
    assert closing_s(refused(Reason.OVERLOADED, retry_after_s=9.0)) == 9.0
