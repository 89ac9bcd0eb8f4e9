"""Quotas by themselves, with the clock passed in; and the bodies of their refusals, as parked reads them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parked.judge import classify_http_error
from parked.simulator.quotas import Counted, Meters, Period, Quota, Said, Window
from parked.simulator.replies import quota_exceeded
from parked.simulator.request import Request
from parked.verdict import Reason, Scope

MODEL = "gemini-3.5-flash"


def admitted(meters, times, *, model=MODEL, tokens=1):
    return [meters.admit(model, tokens, at_s) is None for at_s in times]


# --- the windows -------------------------------------------------------------------------------------------------


def test_a_fixed_minute_gives_all_back_at_its_end():
    meters = Meters((Quota(2),))

    assert admitted(meters, [50, 58, 59, 60, 61, 62]) == [True, True, False, True, True, False]


def test_a_fixed_minute_can_begin_where_the_wall_clock_has_it():
    meters = Meters((Quota(1, resets_at_s=10.0),))

    assert admitted(meters, [9, 9.5, 10, 69, 70]) == [True, False, True, False, True]


def test_a_sliding_minute_gives_each_back_a_minute_later():
    meters = Meters((Quota(2, window=Window.SLIDING),))

    assert admitted(meters, [50, 58, 59, 60, 110, 117, 118]) == [True, True, False, False, True, False, True]


def test_a_bucket_gives_back_evenly_up_to_what_it_holds():
    meters = Meters((Quota(60, window=Window.BUCKET, holds=2),))

    assert admitted(meters, [0, 0, 0, 1, 1.5, 100, 100, 100]) == [True, True, False, True, False, True, True, False]


def test_a_day_is_as_many_minutes_as_a_day_has_and_ends_where_it_is_said_to():
    assert admitted(Meters((Quota(1, per=Period.DAY),), minute_s=2), [0, 2879, 2880]) == [True, False, True]
    assert admitted(Meters((Quota(1, per=Period.DAY, resets_at_s=40),)), [0, 39, 40]) == [True, False, True]


def test_tokens_are_counted_by_their_number():
    meters = Meters((Quota(100, counted=Counted.TOKENS),))

    assert [meters.admit(MODEL, tokens, 0) is None for tokens in (60, 60, 40, 1)] == [True, False, True, False]


def test_each_model_has_its_own_quota_unless_it_is_the_projects():
    own, shared = Meters((Quota(1),)), Meters((Quota(1, per_model=False),))

    assert [own.admit(model, 1, 0) is None for model in ("a", "b", "a")] == [True, True, False]
    assert [shared.admit(model, 1, 0) is None for model in ("a", "b", "a")] == [True, False, False]


def test_what_one_quota_refuses_is_charged_to_none():
    meters = Meters((Quota(2), Quota(1, window=Window.BUCKET, holds=1)))

    assert admitted(meters, [0, 1, 2]) == [True, False, False]
    assert [quota.window for quota in meters.admit(MODEL, 1, 3).violated] == [Window.BUCKET]


def test_a_request_larger_than_its_quota_is_told_to_wait_for_a_period_and_never_goes_through():
    for window in Window:
        meters = Meters((Quota(10, counted=Counted.TOKENS, window=window),))

        assert [meters.admit(MODEL, 11, at_s).delay_s for at_s in (0, 60)] == [60, 60]


# --- for all requests ---------------------------------------------------------------------------------------------

IN_ANY_TIME = settings(max_examples=200, deadline=None)
GAPS = st.floats(0, 30) | st.sampled_from([0.0, 0.001, 1.0, 20.0, 60.0])
ASKED = st.lists(st.tuples(GAPS, st.integers(0, 8)), max_size=80)
LIMITS, HOLDS, MINUTES = st.integers(1, 12), st.integers(1, 20), st.sampled_from([60.0, 2.0, 0.7])


def charged(meters, asked):
    """Ask for all of these in their order, and return when what was admitted."""
    now, through = 0.0, []
    for gap, cost in asked:
        now += gap
        if meters.admit(MODEL, cost, now) is None:
            through.append((now, cost))
    return through


@IN_ANY_TIME
@given(LIMITS, MINUTES, ASKED)
def test_no_fixed_minute_takes_more_than_its_quota(limit, minute_s, asked):
    through = charged(Meters((Quota(limit, counted=Counted.TOKENS),), minute_s=minute_s), asked)

    ends, used = 0.0, 0
    for at_s, cost in through:
        while at_s >= ends:
            ends, used = ends + minute_s, 0
        used += cost
        assert used <= limit


@IN_ANY_TIME
@given(LIMITS, MINUTES, ASKED)
def test_no_minute_takes_more_than_a_sliding_quota(limit, minute_s, asked):
    through = charged(Meters((Quota(limit, counted=Counted.TOKENS, window=Window.SLIDING),), minute_s=minute_s), asked)

    for at_s, _ in through:
        assert sum(cost for earlier, cost in through if earlier <= at_s < earlier + minute_s) <= limit


@IN_ANY_TIME
@given(LIMITS, HOLDS, MINUTES, ASKED)
def test_no_span_takes_more_than_a_bucket_holds_and_gets_meanwhile(limit, holds, minute_s, asked):
    quota = Quota(limit, counted=Counted.TOKENS, window=Window.BUCKET, holds=holds)
    through = charged(Meters((quota,), minute_s=minute_s), asked)

    for first, (from_s, _) in enumerate(through):
        used = 0
        for to_s, cost in through[first:]:
            used += cost
            assert used <= holds + (to_s - from_s) * limit / minute_s + 1e-6


@IN_ANY_TIME
@given(st.sampled_from(Window), LIMITS, HOLDS, MINUTES, ASKED)
def test_who_comes_back_after_the_delay_finds_room_and_a_refusal_costs_nothing(window, limit, holds, minute_s, asked):
    quota = Quota(limit, counted=Counted.TOKENS, window=window, holds=holds if window is Window.BUCKET else None)
    most = holds if window is Window.BUCKET else limit
    meters, untroubled, now = Meters((quota,), minute_s=minute_s), Meters((quota,), minute_s=minute_s), 0.0

    for gap, cost in asked:
        now += gap
        refusal = meters.admit(MODEL, cost, now)
        if refusal is None:
            assert untroubled.admit(MODEL, cost, now) is None
            continue
        assert 0 < refusal.delay_s <= (minute_s if cost > most else max(1.0, most / limit) * minute_s) + 0.001
        if cost <= most:
            now += refusal.delay_s
            assert meters.admit(MODEL, cost, now) is None
            assert untroubled.admit(MODEL, cost, now) is None


# --- what a refusal says ------------------------------------------------------------------------------------------


def refused(*quotas, tokens=1, now=20.0, minute_s=60.0):
    """Use the quotas up at second 0, and judge what is answered later."""
    meters = Meters(quotas, minute_s=minute_s)
    while meters.admit(MODEL, tokens, 0) is None:
        pass
    refusal = meters.admit(MODEL, tokens, now)
    assert refusal is not None
    request = Request(MODEL, "generateContent", {}, {}, "/", at=now, at_s=now, text="", call=1, number=1)
    reply = quota_exceeded(refusal)
    body = json.loads(json.dumps(reply.rendered(request)))
    return body["error"], classify_http_error(reply.status, body)


def detail(error, kind):
    return next((each for each in error["details"] if each["@type"].endswith(kind)), None)


def test_a_refusal_has_the_shape_of_the_real_one():
    error, verdict = refused(Quota(3))

    assert error == {
        "code": 429,
        "message": (
            "You exceeded your current quota, please check your plan and billing details. For more information on this"
            " error, head to: https://ai.google.dev/gemini-api/docs/rate-limits. \n* Quota exceeded for metric:"
            f" generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 3, model: {MODEL}\n"
            "Please retry in 40s."
        ),
        "status": "RESOURCE_EXHAUSTED",
        "details": [
            {
                "@type": "type.googleapis.com/google.rpc.Help",
                "links": [
                    {
                        "description": "Learn more about Gemini API quotas",
                        "url": "https://ai.google.dev/gemini-api/docs/rate-limits",
                    }
                ],
            },
            {
                "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                "violations": [
                    {
                        "quotaMetric": "generativelanguage.googleapis.com/generate_content_free_tier_requests",
                        "quotaId": "GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
                        "quotaDimensions": {"location": "global", "model": MODEL},
                        "quotaValue": "3",
                    }
                ],
            },
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "40s"},
        ],
    }
    assert (verdict.reason, verdict.scope, verdict.retry_after_s) == (Reason.RATE_LIMITED, Scope.MODEL, 40)


@pytest.mark.parametrize(
    ("quota", "reason", "scope", "retry_after_s"),
    [
        (Quota(3, counted=Counted.TOKENS), Reason.RATE_LIMITED, Scope.MODEL, 40),
        (Quota(3, window=Window.SLIDING), Reason.RATE_LIMITED, Scope.MODEL, 40),
        (Quota(3, window=Window.BUCKET, holds=300), Reason.RATE_LIMITED, Scope.MODEL, 20),
        (Quota(3, per_model=False), Reason.RATE_LIMITED, Scope.PROJECT, 40),
        (Quota(3, counted=Counted.TOKENS, per_model=False), Reason.RATE_LIMITED, Scope.PROJECT, 40),
        (Quota(3, per=Period.DAY), Reason.DAILY_QUOTA_EXHAUSTED, Scope.MODEL, None),
        (Quota(3, per=Period.DAY, counted=Counted.TOKENS), Reason.DAILY_QUOTA_EXHAUSTED, Scope.MODEL, None),
        (Quota(3, id="GenerateRequestsPerDayPerProjectPerModel"), Reason.DAILY_QUOTA_EXHAUSTED, Scope.MODEL, None),
        (Quota(3, says=frozenset()), Reason.RATE_LIMITED, Scope.MODEL, None),
        (Quota(3, says=frozenset({Said.QUOTA})), Reason.RATE_LIMITED, Scope.MODEL, None),
        (Quota(3, says=frozenset({Said.DELAY})), Reason.RATE_LIMITED, Scope.MODEL, 40),
    ],
)
def test_a_refusal_is_read_for_what_it_is(quota, reason, scope, retry_after_s):
    # A bucket of 300 at three a minute: one is there again after 20 s.
    _, verdict = refused(quota, now=0.0 if quota.window is Window.BUCKET else 20.0)

    assert (verdict.reason, verdict.scope, verdict.retry_after_s) == (reason, scope, retry_after_s)


def test_a_days_quota_names_a_delay_that_speaks_for_the_minute():
    error, _ = refused(Quota(3, per=Period.DAY), now=20.0)

    assert detail(error, "RetryInfo")["retryDelay"] == "40s"


def test_a_shorter_minute_names_shorter_delays():
    error, verdict = refused(Quota(3), now=0.5, minute_s=2.0)

    assert detail(error, "RetryInfo")["retryDelay"] == "1.5s"
    assert verdict.retry_after_s == 1.5


def test_all_quotas_that_have_no_room_are_named_and_the_longest_delay_of_a_minute():
    quotas = (Quota(2), Quota(2, window=Window.SLIDING), Quota(2, per=Period.DAY), Quota(9))

    error, verdict = refused(*quotas, now=20.0)

    assert [each["quotaValue"] for each in detail(error, "QuotaFailure")["violations"]] == ["2", "2", "2"]
    assert detail(error, "RetryInfo")["retryDelay"] == "40s"
    assert verdict.reason is Reason.DAILY_QUOTA_EXHAUSTED


def test_what_a_refusal_is_told_not_to_say_is_nowhere_in_it():
    bare, _ = refused(Quota(3, says=frozenset()))
    unnamed, _ = refused(Quota(3, says=frozenset({Said.DELAY})))
    undated, _ = refused(Quota(3, says=frozenset({Said.QUOTA})))

    assert "details" not in bare
    assert "QuotaFailure" not in str(unnamed)
    assert "retry in" not in str(undated).lower()


def test_every_kind_of_quota_has_a_name_of_its_own():
    ids = set()
    for counted in Counted:
        for per in Period:
            for per_model in (True, False):
                error, _ = refused(Quota(3, counted=counted, per=per, per_model=per_model))
                [violation] = detail(error, "QuotaFailure")["violations"]
                ids.add(violation["quotaId"])

    assert len(ids) == 8


def test_windows_that_lie_far_apart_are_passed_over_at_once():
    meters = Meters((Quota(1),), minute_s=0.01)

    assert admitted(meters, [0.0, 1e6, 1e9]) == [True] * 3
