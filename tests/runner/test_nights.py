"""Whole nights against a service that fails in many ways: what is parked, what is paused, and what it costs."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nights import DAY_LEFT_S, OK, Call, Night, Service, failed
from parked.gates import Gates
from parked.pauses import ALL
from parked.policy import Policy
from parked.verdict import Reason, Scope

PER_DAY = "GenerateRequestsPerDayPerProjectPerModel-FreeTier"
PER_MINUTE = "GenerateRequestsPerMinutePerProjectPerModel"


def steady(call: Call):
    return OK, call.random.uniform(0.5, 1.5)


def jobs(count: int, *models: str) -> dict[int, str]:
    models = models or ("m",)
    return {job: models[job % len(models)] for job in range(count)}


def first_ones(count: int, reason: Reason, *, after: Service = steady) -> Service:
    """So many jobs, the first of the file, always fail."""
    return lambda call: (failed(reason), 0.2) if call.job < count else after(call)


def between(since: float, until: float, reason: Reason, *, lasts_s: float = 0.2) -> Service:
    return lambda call: (failed(reason), lasts_s) if since <= call.at < until else steady(call)


def fixed_minute(per_minute: int) -> Service:
    used: Counter[int] = Counter()

    def answer(call: Call):
        minute = int(call.at // 60)
        if used[minute] >= per_minute:
            return failed(Reason.RATE_LIMITED, retry_after_s=60 * (minute + 1) - call.at, quota_id=PER_MINUTE), 0.1
        used[minute] += 1
        return steady(call)

    return answer


def sliding_minute(per_minute: int) -> Service:
    begun: deque[float] = deque()

    def answer(call: Call):
        while begun and begun[0] <= call.at - 60:
            begun.popleft()
        if len(begun) >= per_minute:
            return failed(Reason.RATE_LIMITED, retry_after_s=begun[0] + 60 - call.at, quota_id=PER_MINUTE), 0.1
        begun.append(call.at)
        return steady(call)

    return answer


def all_answered(night: Night) -> bool:
    return len(night.answered) == len(night.jobs)


# --- quotas ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quota", [fixed_minute, sliding_minute])
@pytest.mark.parametrize("per_minute", [33, 100, 1000])
def test_a_quota_is_kept_to_and_used_up(quota, per_minute):
    night = Night(jobs(2000), quota(per_minute), begins_at=7.0).run()

    assert all_answered(night)
    assert night.refused() <= 64 + 20
    assert night.took_s <= 1.10 * 2000 / per_minute * 60


def test_a_ceiling_below_the_quota_is_never_refused():
    night = Night(jobs(500), fixed_minute(100), gates=Gates(rpm=98)).run()

    assert night.refused() == 0
    assert night.took_s <= 1.10 * 500 / 98 * 60


def test_a_pace_that_was_kept_is_where_the_next_run_begins():
    learning = Night(jobs(300), fixed_minute(100)).run()
    kept = learning.gates.of("m").pace.per_s
    gates = Gates()
    gates.start_at("m", kept, learnt_at=0.0)

    night = Night(jobs(300), fixed_minute(100), gates=gates).run()

    assert all_answered(night)
    assert night.refused() < learning.refused()


def test_a_few_refusals_that_name_nothing_hardly_slow_a_run():
    clean = Night(jobs(2000), steady).run()

    def answer(call: Call):
        return (failed(Reason.RATE_LIMITED), 0.1) if call.random.random() < 0.02 else steady(call)

    night = Night(jobs(2000), answer).run()

    assert all_answered(night)
    assert night.took_s <= 1.25 * clean.took_s


def test_a_job_that_is_too_large_for_its_quota_is_parked_and_the_others_are_answered():
    def answer(call: Call):
        if call.job == 50:
            return failed(Reason.RATE_LIMITED, retry_after_s=40, quota_id=PER_MINUTE), 0.1
        return steady(call)

    night = Night(jobs(200), answer, workers=8).run()

    assert (len(night.answered), list(night.parked), night.pauses) == (199, [50], [])


@pytest.mark.parametrize("workers", [8, 64])
@pytest.mark.parametrize("large", [{50}, {0}, {10, 200, 299}])
@pytest.mark.parametrize("delay_s", [2, 40])
def test_jobs_that_are_too_large_for_their_quota_hold_nobody_up(workers, large, delay_s):
    def answer(call: Call):
        if call.job in large:
            return failed(Reason.RATE_LIMITED, retry_after_s=delay_s, quota_id=PER_MINUTE), 0.1
        return OK, 0.2

    night = Night(jobs(600), answer, workers=workers).run()

    assert set(night.parked) == large
    assert len(night.answered) == 600 - len(large)
    assert night.refused() == 9 * len(large)
    # Those that are known for it wait alone; until then each closes the gate twice.
    assert night.took_s <= 10 * delay_s + 4 * len(large) * delay_s + 60
    assert night.gates.of("m").pace.per_s is None  # the next night goes on at full speed


def test_a_quota_that_is_met_beside_a_job_that_is_too_large_is_kept_to():
    quota = sliding_minute(100)

    def answer(call: Call):
        if call.job == 50:
            return failed(Reason.RATE_LIMITED, retry_after_s=5, quota_id=PER_MINUTE), 0.1
        return quota(call)

    night = Night(jobs(1000), answer, begins_at=7.0).run()

    assert (len(night.answered), list(night.parked)) == (999, [50])
    assert night.refused() <= 64 + 20 + 9
    assert night.took_s <= 1.10 * 1000 / 100 * 60


def test_the_last_job_of_a_night_waits_for_a_quota_that_others_use_up():
    """One refusal while others were answered, as it happens, is no proof that a job is too large."""

    def answer(call: Call):
        if call.job == 18 and call.at < 300:
            return failed(Reason.RATE_LIMITED, retry_after_s=20, quota_id=PER_MINUTE), 0.1
        return steady(call)

    night = Night(jobs(20), answer, workers=2).run()

    assert all_answered(night)
    assert night.refused() > 9


def test_the_days_quota_pauses_until_its_reset_with_nothing_parked():
    def answer(call: Call):
        if call.at >= 10:
            return failed(Reason.DAILY_QUOTA_EXHAUSTED, quota_id=PER_DAY), 0.1
        return steady(call)

    night = Night(jobs(2000), answer).run()

    assert not night.parked
    assert [(pause.scope, pause.reason) for pause in night.pauses] == [("m", Reason.DAILY_QUOTA_EXHAUSTED)]
    assert night.pauses[0].for_s == DAY_LEFT_S
    assert night.calls_between(10, 1e9) <= 64
    assert night.gates.of("m").pace.per_s is None  # a day that is over says nothing of how many calls a minute takes
    again = Night(dict.fromkeys(night.pending, "m"), steady, strikes=night.strikes).run()
    assert all_answered(again)


def test_the_days_quota_of_a_whole_project_pauses_all_its_models():
    def answer(call: Call):
        if call.at >= 10:
            verdict = failed(Reason.DAILY_QUOTA_EXHAUSTED, quota_id="GenerateRequestsPerDayPerProject-FreeTier")
            return replace(verdict, scope=Scope.PROJECT), 0.1
        return steady(call)

    night = Night(jobs(2000, "a", "b"), answer).run()

    assert not night.parked
    assert [(pause.scope, pause.reason) for pause in night.pauses] == [(ALL, Reason.DAILY_QUOTA_EXHAUSTED)]
    assert night.calls_between(10, 1e9) <= 64
    assert night.gates.all.pace.per_s is None
    again = Night({job: night.jobs[job] for job in night.pending}, steady, strikes=night.strikes).run()
    assert all_answered(again)


@pytest.mark.parametrize("scope", [Scope.MODEL, Scope.PROJECT])
@pytest.mark.parametrize("workers", [8, 64])
def test_a_quota_per_day_that_was_a_minutes_pauses_nothing(workers, scope):
    def answer(call: Call):
        if 10 <= call.at < 46:
            verdict = failed(Reason.DAILY_QUOTA_EXHAUSTED, retry_after_s=46 - call.at, quota_id=PER_DAY)
            return replace(verdict, scope=scope), 0.1
        return steady(call)

    night = Night(jobs(600), answer, workers=workers).run()

    assert all_answered(night)
    assert not night.pauses


# --- outages -----------------------------------------------------------------------------------------------------


def test_ten_minutes_of_503_cost_few_calls_and_full_speed_is_back_soon():
    night = Night(jobs(4000), between(20, 620, Reason.OVERLOADED)).run()
    clean = Night(jobs(4000), steady).run()

    assert all_answered(night)
    assert night.calls_between(20, 620) <= 64 + 60
    assert night.answers_per_s(650, 660) >= 0.9 * clean.answers_per_s(20, 40)


def test_an_outage_for_half_of_all_calls_parks_hardly_anybody():
    def answer(call: Call):
        if call.at < 1800 and call.random.random() < 0.5:
            return failed(Reason.OVERLOADED), 0.3
        return steady(call)

    night = Night(jobs(4000), answer).run()

    assert len(night.parked) <= 8
    assert len(night.answered) + len(night.parked) == 4000


@pytest.mark.parametrize("workers", [1, 64])
def test_a_network_that_is_down_parks_nobody(workers):
    night = Night(jobs(200), between(5, 600, Reason.NETWORK), workers=workers).run()

    assert all_answered(night)


def test_a_network_that_stays_down_pauses_every_model_once():
    night = Night(jobs(200, "a", "b"), between(5, 1e9, Reason.NETWORK), workers=8).run()

    assert not night.parked
    assert [pause.scope for pause in night.pauses] == [""]
    assert night.took_s < 950


def test_an_outage_that_lasts_pauses_and_after_so_many_nights_its_jobs_are_parked():
    left = jobs(2)
    strikes: dict[int, int] = {}
    for _ in range(4):
        night = Night(left, between(0, 1e9, Reason.OVERLOADED), workers=8, strikes=strikes).run()
        parked, strikes = night.parked, night.strikes
        assert night.took_s < 950

    assert len(parked) == 2


def test_with_no_outage_forgiven_every_failure_counts():
    night = Night(jobs(10), between(0, 1e9, Reason.OVERLOADED), policy=Policy(max_outage_s=0)).run()

    assert len(night.parked) == 10
    assert len(night.calls) == 40


def test_a_lone_job_is_parked_by_its_own_strikes():
    night = Night(jobs(1), between(0, 600, Reason.OVERLOADED)).run()

    assert list(night.parked) == [0]
    assert len(night.calls) == 4


# --- jobs of their own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [20, 100])
def test_stubborn_jobs_at_the_head_of_a_file_are_parked_and_stop_nobody(bad):
    night = Night(jobs(500), first_ones(bad, Reason.SERVER_ERROR), workers=8).run()

    assert sorted(night.parked) == list(range(bad))
    assert len(night.answered) == 500 - bad
    assert not night.pauses


def test_a_stubborn_job_at_the_end_of_a_file_is_parked():
    night = Night(jobs(100), lambda call: (failed(Reason.OVERLOADED), 0.2) if call.job == 99 else steady(call)).run()

    assert list(night.parked) == [99]


@pytest.mark.parametrize("workers", [8, 64])
def test_exactly_the_bad_jobs_are_parked_among_flaky_ones_and_hardly_slow_them(workers):
    def answer(call: Call):
        if call.job % 100 == 7:
            return failed(Reason.INVALID_REQUEST), 0.2
        return (failed(Reason.SERVER_ERROR), 0.3) if call.random.random() < 0.05 else steady(call)

    night = Night(jobs(2000), answer, workers=workers).run()
    clean = Night(jobs(2000), steady, workers=workers).run()
    most = int(0.97 * 1980) - 1

    assert sorted(night.parked) == list(range(7, 2000, 100))
    assert sorted(night.answered.values())[most] <= 1.05 * sorted(clean.answered.values())[most]


@pytest.mark.parametrize("workers", [1, 8, 64])
@pytest.mark.parametrize("bad", [2, 30])
def test_jobs_whose_own_file_gives_403_are_parked_in_the_same_night(bad, workers):
    night = Night(jobs(200), first_ones(bad, Reason.PERMISSION_DENIED), workers=workers).run()

    assert sorted(night.parked) == list(range(bad))
    assert len(night.answered) == 200 - bad
    assert not night.pauses


def test_two_jobs_of_their_own_at_the_end_are_parked_in_the_next_night_at_the_latest():
    def answer(call: Call):
        return (failed(Reason.PERMISSION_DENIED), 0.1) if call.job >= 98 and call.job < 100 else steady(call)

    night = Night(jobs(100), answer, workers=8).run()
    tonight = dict.fromkeys(range(1000, 1100), "m") | dict.fromkeys(night.pending, "m")
    again = Night(tonight, answer, workers=8, failed_before=frozenset(night.pending)).run()

    assert sorted([*night.parked, *again.parked]) == [98, 99]
    assert len(again.answered) == 100


def test_blocked_prompts_in_a_row_are_parked_and_pause_nothing():
    night = Night(jobs(200), first_ones(25, Reason.PROMPT_BLOCKED), workers=8).run()

    assert (len(night.parked), len(night.answered), night.pauses) == (25, 175, [])


# --- what is everybody's -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 8, 64])
def test_a_revoked_key_parks_nothing_costs_few_calls_and_the_next_run_answers_all(workers):
    night = Night(jobs(1000), between(5, 1e9, Reason.AUTH_INVALID), workers=workers).run()

    assert not night.parked
    assert [pause.reason for pause in night.pauses] == [Reason.AUTH_INVALID]
    assert night.calls_between(5, 1e9) <= max(4, 2 * workers)
    next_night = Night(dict.fromkeys(night.pending, "m"), steady, strikes=night.strikes, workers=workers)
    assert all_answered(next_night.run())


@pytest.mark.parametrize("workers", [1, 64])
def test_a_dead_key_that_stays_dead_costs_one_call_in_the_next_run(workers):
    night = Night(jobs(100), between(0, 1e9, Reason.AUTH_INVALID), workers=workers, paused=(("", Reason.AUTH_INVALID),))
    night.run()

    assert not night.parked
    assert len(night.calls) == 1


def test_a_dead_key_parks_not_even_the_only_job():
    night = Night(jobs(1), between(0, 1e9, Reason.AUTH_INVALID)).run()

    assert (night.parked, night.pending) == ({}, {0})


def test_an_only_job_with_a_fault_that_it_can_cause_is_parked():
    night = Night(jobs(1), between(0, 1e9, Reason.PERMISSION_DENIED)).run()

    assert list(night.parked) == [0]


def test_a_model_that_is_retired_pauses_and_the_other_goes_on():
    def answer(call: Call):
        return (failed(Reason.MODEL_NOT_FOUND), 0.1) if call.model == "old" else steady(call)

    night = Night(jobs(200, "new", "old"), answer, workers=8).run()

    assert len(night.answered) == 100
    assert not night.parked
    assert [pause.scope for pause in night.pauses] == ["old"]


@pytest.mark.parametrize(
    "reason", [Reason.AUTH_INVALID, Reason.PERMISSION_DENIED, Reason.MODEL_NOT_FOUND, Reason.EMPTY_ANSWER,
               Reason.OVERLOADED, Reason.NETWORK],
)  # fmt: skip
@pytest.mark.parametrize("workers", [1, 8, 64])
def test_a_run_that_waits_at_a_pause_holds_no_job_and_answers_all_once_it_is_over(reason, workers):
    night = Night(jobs(1000), between(5, 5000, reason), workers=workers, waits=True).run()

    assert night.pauses
    assert night.held_at_pauses == 0
    assert all_answered(night)


@pytest.mark.parametrize("workers", [8, 64])
def test_empty_answers_for_everybody_pause_with_nothing_parked(workers):
    night = Night(jobs(400), lambda call: (failed(Reason.EMPTY_ANSWER), 0.5), workers=workers).run()

    assert not night.parked
    assert len(night.pending) == 400
    assert sum(night.strikes.values()) == 0
    assert len(night.calls) <= 64


def test_a_slow_model_does_not_keep_a_fast_one_waiting():
    slow = fixed_minute(10)

    def answer(call: Call):
        return slow(call) if call.model == "slow" else steady(call)

    night = Night(jobs(200, "slow", "fast"), answer, workers=8).run()

    assert all_answered(night)
    assert max(at for job, at in night.answered.items() if job % 2) < 30


# --- whatever comes ----------------------------------------------------------------------------------------------

FAULTS = sorted(Reason)


@settings(max_examples=40, deadline=None)
@example(24001)  # an outage is outlasted while all that is left are calls that hang
@given(st.integers(0, 10**6))
def test_every_run_ends_whatever_the_service_does(seed):
    rnd = random.Random(seed)
    count, faults = rnd.randint(1, 150), [rnd.choice(FAULTS) for _ in range(3)]
    shares = [rnd.choice([0.0, 0.05, 0.5, 1.0]) for _ in faults]
    times = [(begins := rnd.uniform(0, 300), begins + rnd.choice([30, 600, 1e9])) for _ in faults]
    delay_s = rnd.choice([None, 0.0, 7.0, 40.0])

    def answer(call: Call):
        for fault, share, (since, until) in zip(faults, shares, times, strict=True):
            if since <= call.at < until and call.random.random() < share:
                quota_id = rnd.choice([None, PER_MINUTE]) if fault is Reason.RATE_LIMITED else None
                return failed(fault, retry_after_s=delay_s, quota_id=quota_id), call.random.choice([0.05, 1, 600])
        return OK, call.random.uniform(0.2, 60)

    night = Night(jobs(count, "a", "b"), answer, workers=rnd.choice([1, 2, 8, 64]), seed=seed).run()

    ends = [*night.answered, *night.parked, *night.pending]
    assert sorted(ends) == list(range(count))


@pytest.mark.slow
def test_nights_with_a_healthy_service_park_no_good_job_and_leave_none_over():
    cases = 60
    left_over = 0
    for seed in range(cases):
        good_parked, good_pending = nights_with_bad_jobs(seed)
        assert good_parked == 0
        left_over += good_pending > 0

    assert left_over <= 1


CAUSES = [
    Reason.SERVER_ERROR, Reason.OVERLOADED, Reason.TIMEOUT, Reason.PERMISSION_DENIED, Reason.MODEL_NOT_FOUND,
    Reason.INVALID_REQUEST, Reason.EMPTY_ANSWER, Reason.PROMPT_BLOCKED,
]  # fmt: skip


def nights_with_bad_jobs(seed: int) -> tuple[int, int]:
    """Four nights of new jobs, up to a quarter of them bad, at one place or spread; good ones parked, and left over."""
    rnd = random.Random(seed)
    count, workers, lasts_s = rnd.randint(1, 200), rnd.choice([1, 2, 4, 8, 16, 64]), rnd.uniform(0.2, 20)
    some, reason, spread = int(count * rnd.uniform(0, 0.25)), rnd.choice(CAUSES), rnd.random() < 0.25
    begins = rnd.choice([0, (count - some) // 2, count - some])
    bad: set[int] = set()
    pending: set[int] = set()
    strikes: dict[int, int] = {}
    good_parked = 0

    def answer(call: Call):
        if call.job in bad:
            return failed(reason), min(lasts_s, 0.3)
        return OK, call.random.uniform(0.5, 1.5) * lasts_s

    paused: tuple = ()
    for number in range(4):
        tonight = [1000 * number + job for job in range(count)]
        bad.update(rnd.sample(tonight, some) if spread else tonight[begins : begins + some])
        night = Night(
            dict.fromkeys([*tonight, *sorted(pending)], "m"), answer, workers=workers, seed=seed, strikes=strikes,
            failed_before=frozenset(pending), paused=paused,
        ).run()  # fmt: skip
        strikes, pending = night.strikes, night.pending
        paused = tuple((pause.scope, pause.reason) for pause in night.pauses)
        good_parked += len(night.parked.keys() - bad)
    return good_parked, len(pending - bad)
