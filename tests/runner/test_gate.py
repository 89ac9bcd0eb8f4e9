"""When one model may be called, with a clock of plain numbers."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parked.gate import HEALED, PROBE_MAX_S, PROBE_S, RUN_START, WITNESSES, Gate, Why
from parked.pace import CUT, SLOWEST_PER_S, Pace


class Calls:
    """A gate, and the calls made through it: numbers them as a run does."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = gate or Gate()
        self.n = 0

    def begin(self, now: float) -> int:
        self.n += 1
        self.gate.started(now)
        return self.n

    def fail(self, job: int, now: float, begun: int | None = None, *, left: int = 100, **changed) -> list[int]:
        begun = self.begin(now) if begun is None else begun
        self.n += 1
        told = {"workers": 64, "first": True, "stubborn": False} | changed
        return self.gate.failed(now, job=job, started_n=begun, n=self.n, left=left, **told)

    def succeed(self, now: float, begun: int | None = None) -> None:
        begun = self.begin(now) if begun is None else begun
        self.n += 1
        self.gate.succeeded(now, started_n=begun, n=self.n, first=True)

    def refuse(self, now: float, delay_s: float, begun: int | None = None) -> None:
        begun = self.begin(now) if begun is None else begun
        self.n += 1
        self.gate.refused(now, started_n=begun, n=self.n, delay_s=delay_s)

    def close(self, now: float) -> None:
        for job in range(WITNESSES):
            self.fail(job, now)


@pytest.fixture
def calls() -> Calls:
    return Calls()


def test_a_gate_is_open_until_something_closes_it(calls):
    assert calls.gate.wait_s(0.0) == 0.0
    assert not calls.gate.closed(0.0)


def test_a_run_begins_with_few_calls_at_a_time_and_doubles_each_second(calls):
    first, doubled_s = RUN_START
    for _ in range(first):
        assert calls.gate.wait_s(0.0) == 0.0
        calls.begin(0.0)

    assert 0 < calls.gate.wait_s(0.0) <= doubled_s
    assert calls.gate.wait_s(doubled_s) == 0.0
    assert calls.gate.limit(2 * doubled_s) == 4 * first


def test_a_refusal_closes_for_as_long_as_the_server_asks(calls):
    calls.refuse(100.0, 34.0)

    assert calls.gate.wait_s(100.0) == 34.0
    assert calls.gate.wait_s(133.0) == 1.0
    assert calls.gate.wait_s(134.0) == 0.0


def test_a_shorter_delay_does_not_reopen_a_gate(calls):
    first, second = calls.begin(0.0), calls.begin(0.0)
    calls.refuse(0.0, 30.0, first)
    calls.refuse(10.0, 1.0, second)

    assert calls.gate.wait_s(12.0) == 18.0


def test_a_refusal_sets_the_pace_from_what_was_accepted_in_the_last_minute(calls):
    for second in range(120):
        calls.succeed(float(second))
    calls.refuse(120.0, 5.0)

    assert calls.gate.pace.per_s == pytest.approx(CUT * 60 / 60, rel=0.05)


def test_one_closing_cuts_the_pace_once(calls):
    begun = [calls.begin(second / 2) for second in range(120)]
    calls.refuse(60.0, 30.0, begun[0])
    pace = calls.gate.pace.per_s
    for each in begun[1:20]:
        calls.refuse(60.0, 30.0, each)

    assert calls.gate.pace.per_s == pace


def test_the_first_call_of_a_run_being_refused_tells_nothing_of_the_pace(calls):
    calls.refuse(now=0.0, delay_s=30.0)

    assert calls.gate.pace.per_s is None


def test_a_refusal_before_any_other_call_has_begun_again_tells_nothing_of_the_pace(calls):
    for at in range(30):
        calls.succeed(now=float(at))
    calls.refuse(now=30.0, delay_s=2.0)
    learnt = calls.gate.pace.per_s

    for again in range(20):
        calls.refuse(now=40.0 + 10 * again, delay_s=2.0)

    assert calls.gate.pace.per_s == learnt


def test_a_pace_grows_again_while_nothing_is_refused():
    pace = Pace(1.0)
    waits = [pace.wait_s(float(second)) for second in range(600)]

    assert max(waits) == 0.0
    assert pace.per_s is not None
    assert pace.per_s > 1.1


def test_a_ceiling_is_start_and_bound():
    pace = Pace(ceiling_per_s=2.0)

    assert pace.per_s == 2.0
    for second in range(0, 6000, 10):
        pace.wait_s(float(second))
    assert pace.per_s == 2.0
    assert Pace(9.0, ceiling_per_s=2.0).per_s == 2.0
    assert Pace(0.0).per_s == SLOWEST_PER_S


def test_a_refusal_never_sets_a_pace_over_its_ceiling():
    pace = Pace(ceiling_per_s=SLOWEST_PER_S / 10)
    pace.started(0.0)

    pace.refused(1.0, started_n=1, n=2, delay_s=1.0, until=2.0)

    assert pace.per_s == SLOWEST_PER_S / 10


def test_different_jobs_failing_in_a_row_close_the_gate_and_none_of_it_is_a_strike(calls):
    told = [calls.fail(job, 1.0) for job in range(WITNESSES)]

    assert told[:-1] == [[]] * (WITNESSES - 1)
    assert told[-1] == list(range(WITNESSES))
    assert calls.gate.why is Why.OUTAGE
    assert calls.gate.wait_s(1.0) == PROBE_S


def test_the_same_job_failing_again_and_again_closes_nothing(calls):
    for _ in range(4):
        calls.fail(1, 1.0, first=False)

    assert calls.gate.why is None


def test_a_stubborn_job_is_no_witness(calls):
    for job in range(2 * WITNESSES):
        calls.fail(job, 1.0, first=False, stubborn=True)

    assert calls.gate.why is None


def test_a_lone_job_closes_nothing_and_two_do(calls):
    calls.fail(1, 1.0, left=0)
    assert calls.gate.why is None

    calls.fail(2, 1.0, left=1)
    assert calls.gate.why is Why.OUTAGE


def test_probes_come_at_growing_intervals_without_waiting_for_the_last_ones_answer(calls):
    calls.close(0.0)
    probed_at, now = [], 0.0
    for _ in range(6):
        now += calls.gate.wait_s(now)
        probed_at.append(now)
        calls.begin(now)

    gaps = [later - sooner for sooner, later in itertools.pairwise(probed_at)]
    assert gaps == [4.0, 8.0, PROBE_MAX_S, PROBE_MAX_S, PROBE_MAX_S]


def test_an_answer_to_a_call_begun_before_the_closing_proves_nothing(calls):
    early = calls.begin(0.0)
    calls.close(0.0)
    calls.succeed(1.0, early)

    assert calls.gate.why is Why.OUTAGE


def test_a_probe_that_is_answered_reopens_for_two_calls_at_once(calls):
    calls.close(0.0)
    calls.succeed(2.0)

    assert calls.gate.why is None
    assert calls.gate.limit(2.0) == 2
    assert calls.gate.limit(4.0) == 4


def test_an_outage_is_over_after_some_successes_and_until_then_explains_failures(calls):
    calls.close(0.0)
    for _ in range(HEALED - 1):
        calls.succeed(3.0)
    assert calls.fail(99, 3.0) == [99]

    calls.succeed(3.0)
    assert calls.gate.outage_since is None


def test_half_of_the_first_attempts_failing_closes_though_some_succeed(calls):
    for job in range(20):
        if job % 2:
            calls.succeed(1.0)
        calls.fail(job, 1.0)
        if calls.gate.why is Why.OUTAGE:
            break

    assert calls.gate.why is Why.OUTAGE


def test_a_job_is_stubborn_once_another_has_succeeded_since(calls):
    calls.fail(1, 0.0)
    failed_n = calls.n
    assert not calls.gate.is_stubborn(failed_n)

    calls.succeed(1.0)
    assert calls.gate.is_stubborn(failed_n)


def test_a_failure_in_a_proven_outage_makes_no_job_stubborn(calls):
    calls.close(0.0)
    failed_n = calls.n
    calls.fail(50, 2.0)  # the probe that proves it
    calls.succeed(6.0)

    assert not calls.gate.is_stubborn(failed_n)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["ok", "blocked", "fail", "bare", "refuse", "hang"]),
        st.integers(0, 12),
        st.floats(0, 40),
        st.floats(0, 100),
    ),
    max_size=120,
)


@settings(deadline=None)
@given(EVENTS)
def test_whatever_comes_a_gate_lets_no_more_through_than_it_says_and_always_reopens(events):
    calls, now, running = Calls(), 0.0, {}
    for what, job, wait_s, delay_s in events:
        now += wait_s
        if calls.gate.wait_s(now) == 0.0:
            probing = calls.gate.why is Why.OUTAGE
            assert probing or calls.gate.inflight < calls.gate.limit(now)
            running[job, calls.n] = calls.begin(now)
            assert not probing or calls.gate.wait_s(now) > 0
        if what == "hang" or not running:
            continue
        (job, _), begun = running.popitem()
        if what == "ok":
            calls.succeed(now, begun)
        elif what == "refuse":
            calls.refuse(now, delay_s, begun)
        elif what == "blocked":
            calls.n += 1
            calls.gate.answered(now, started_n=begun, n=calls.n)
        else:
            was_closed = calls.gate.why is Why.OUTAGE
            explained = calls.fail(job, now, begun, bare=what == "bare")
            assert job in explained or not was_closed
    # Left alone it opens, for a probe at least, within the longest delay that was named.
    assert calls.gate.inflight == len(running)
    for begun in running.values():
        calls.succeed(now, begun)
    assert calls.gate.wait_s(now) < math.inf
    now += max(PROBE_MAX_S, 100.0) + 1 / SLOWEST_PER_S
    assert calls.gate.wait_s(now) == 0.0
    calls.succeed(now)
    assert calls.gate.why is not Why.OUTAGE
