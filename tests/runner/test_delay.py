"""How long the API asks us to wait."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from parked.delay import asked_delay_s, duration_s, next_pacific_midnight, retry_after_s, sentence_s

NOON = datetime(2026, 3, 2, 12, 0, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("value", "delay_s"),
    [
        ("26s", 26.0),
        ("34.074824224s", 34.074824224),
        ("0s", 0.0),
        ({"seconds": 34, "nanos": 70_000_000}, 34.07),
        ({"seconds": "3"}, 3.0),
        ("-5s", None),
        ("26", None),
        ("26m", None),
        ("soon", None),
        ("999999999999s", None),
        ({"seconds": "x"}, None),
        (26, None),
        (None, None),
    ],
)
def test_a_protobuf_duration(value, delay_s):
    assert duration_s(value) == pytest.approx(delay_s)


@pytest.mark.parametrize(
    ("value", "delay_s"),
    [
        ("120", 120.0),
        ("1.5", 1.5),
        ("Mon, 02 Mar 2026 12:00:30 GMT", 30.0),
        ("Mon, 02 Mar 2026 11:59:00 GMT", None),
        ("-1", None),
        ("99999999", None),
        ("tomorrow", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, delay_s):
    assert retry_after_s({"RETRY-After": value}, now=NOON) == delay_s


@pytest.mark.parametrize(
    ("message", "delay_s"),
    [
        ("limit: 20\nPlease retry in 51.606482386s.", 51.606482386),
        ("Please retry in 1h2m3.5s.", 3723.5),
        ("Please retry in 958.6ms.", 0.9586),
        ("Please try again in 5 minutes.", 300.0),
        ("retry after 30 seconds", 30.0),
        ("Your quota will reset after 2h0m1s.", 7201.0),
        ("Please retry in a while.", None),
        ("Please retry in 9999h.", None),
        ("Please retry in 5 minstrels.", None),
        ("", None),
    ],
)
def test_the_sentence_in_the_message(message, delay_s):
    assert sentence_s(message) == pytest.approx(delay_s)


def test_retry_info_goes_before_the_header_and_the_header_before_the_sentence():
    header, message = {"retry-after": "20"}, "Please retry in 30s."

    assert asked_delay_s("10s", headers=header, message=message) == 10
    assert asked_delay_s("-10s", headers=header, message=message) == 20
    assert asked_delay_s(None, headers={"retry-after": "-1"}, message=message) == 30
    assert asked_delay_s(None) is None


@pytest.mark.parametrize(
    ("now", "midnight"),
    [
        ("2026-01-15T07:59:59+00:00", "2026-01-15T08:00:00+00:00"),
        ("2026-01-15T08:00:00+00:00", "2026-01-16T08:00:00+00:00"),
        ("2026-07-15T12:00:00+00:00", "2026-07-16T07:00:00+00:00"),
        ("2026-03-08T09:00:00+00:00", "2026-03-09T07:00:00+00:00"),  # a day of 23 hours: the clock goes forward
        ("2026-11-01T08:00:00+00:00", "2026-11-02T08:00:00+00:00"),  # a day of 25 hours: it goes back
    ],
)
def test_the_daily_quota_starts_anew_at_midnight_pacific_time(now, midnight):
    assert (
        next_pacific_midnight(datetime.fromisoformat(now).timestamp()) == datetime.fromisoformat(midnight).timestamp()
    )
