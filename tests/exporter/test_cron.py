"""Cron text means what cron means by it."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from parked.cron import parse

BERLIN = ZoneInfo("Europe/Berlin")
SATURDAY = datetime(2026, 2, 28, 12, 0, tzinfo=UTC)


def next_times(text, after, *, zone=UTC, count):
    cron, found = parse(text), [after]
    for _ in range(count):
        found.append(cron.next_after(found[-1], zone))
    return [due.astimezone(zone).isoformat() for due in found[1:]]


@pytest.mark.parametrize(
    ("weekday", "day"),
    [
        ("0", "2026-03-01"),
        ("sun", "2026-03-01"),
        ("7", "2026-03-01"),
        ("1", "2026-03-02"),
        ("mon", "2026-03-02"),
        ("2", "2026-03-03"),
        ("tue", "2026-03-03"),
        ("3", "2026-03-04"),
        ("wed", "2026-03-04"),
        ("4", "2026-03-05"),
        ("thu", "2026-03-05"),
        ("5", "2026-03-06"),
        ("fri", "2026-03-06"),
        ("6", "2026-03-07"),
        ("SAT", "2026-03-07"),
    ],
)
def test_weekdays_count_from_sunday(weekday, day):
    assert next_times(f"0 9 * * {weekday}", SATURDAY, count=1) == [f"{day}T09:00:00+00:00"]


def test_a_range_of_weekdays_may_end_on_the_second_sunday():
    days = [due[8:10] for due in next_times("0 9 * * 5-7", SATURDAY, count=4)]

    assert days == ["01", "06", "07", "08"]  # Sunday, Friday, Saturday, Sunday


def test_day_and_weekday_are_joined_with_or_when_both_are_restricted():
    days = [due[5:10] for due in next_times("0 9 1,15 * mon", SATURDAY, count=5)]

    assert days == ["03-01", "03-02", "03-09", "03-15", "03-16"]


def test_day_and_weekday_are_joined_with_and_when_one_begins_with_a_star():
    days = [due[5:10] for due in next_times("0 9 */2 * mon", SATURDAY, count=2)]

    assert days == ["03-09", "03-23"]  # odd Mondays


def test_minutes_hours_and_months_combine():
    assert next_times("*/30 8-9 * apr,12 *", SATURDAY, count=5) == [
        "2026-04-01T08:00:00+00:00",
        "2026-04-01T08:30:00+00:00",
        "2026-04-01T09:00:00+00:00",
        "2026-04-01T09:30:00+00:00",
        "2026-04-02T08:00:00+00:00",
    ]


def test_a_time_that_summer_time_skips_comes_an_hour_later_that_day():
    assert next_times("30 2 * * *", datetime(2026, 3, 28, 12, 0, tzinfo=BERLIN), zone=BERLIN, count=2) == [
        "2026-03-29T03:30:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_a_time_that_winter_time_repeats_comes_once():
    assert next_times("30 2 * * *", datetime(2026, 10, 24, 12, 0, tzinfo=BERLIN), zone=BERLIN, count=2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


def test_every_half_hour_goes_by_the_clock_through_the_ends_of_summer_time():
    assert next_times("*/30 * * * *", datetime(2026, 10, 25, 1, 45, tzinfo=BERLIN), zone=BERLIN, count=5) == [
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:00:00+01:00",
    ]
    assert next_times("15 */2 * * *", datetime(2026, 3, 28, 23, 0, tzinfo=BERLIN), zone=BERLIN, count=3) == [
        "2026-03-29T00:15:00+01:00",
        "2026-03-29T04:15:00+02:00",
        "2026-03-29T06:15:00+02:00",
    ]


def test_the_29th_of_february_is_waited_for():
    assert next_times("0 0 29 2 *", SATURDAY, count=1) == ["2028-02-29T00:00:00+00:00"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0 9 * *", "five fields"),
        ("", "five fields"),
        ("60 9 * * *", "minute is 0 to 59"),
        ("0 24 * * *", "hour is 0 to 23"),
        ("0 9 0 * *", "day of month is 1 to 31"),
        ("0 9 * 13 *", "month is 1 to 12 or jan to dec"),
        ("0 9 * * 8", "day of week is 0 to 7 or sun to sat"),
        ("0 9 * * fri-mon", "from the lower to the higher"),
        ("*/0 9 * * *", "a whole number from 1"),
        ("5/10 9 * * *", "a step needs a range"),
        ("0 9 31 2,4 *", "never comes"),
        ("0 9 -1 * *", "day of month is 1 to 31"),
        ("0, 9 * * *", "minute is 0 to 59"),
    ],
)
def test_text_that_is_no_cron_text_is_refused_with_the_part_and_the_rule(text, why):
    with pytest.raises(ValueError, match=why):
        parse(text)
