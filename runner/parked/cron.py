"""Cron text with cron's own meaning: when a scheduled task is due. Pure; nothing here knows a scheduler.

APScheduler's own cron trigger counts weekdays from Monday, joins day and weekday with *and*, and fires twice in the
hour that the end of summer time repeats. Cron counts from Sunday (0 and 7 are both it), joins the two with *or* when
both are restricted, and a task of a fixed time runs once a day, while one with `*` for its hour or minute goes by what
the clock shows. Source: crontab(5), "Daylight Saving" in cron(8).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Final, NamedTuple

# The longest pause between two 29ths of February, around a century that is no leap year.
HORIZON_DAYS: Final = 8 * 366


class _Field(NamedTuple):
    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()  # names[0] stands for `first`


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")),
    _Field("day of week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """What five fields of cron text mean."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday, 6 Saturday
    any_day: bool  # both day fields are restricted: a day that fits either of them is one
    fixed_time: bool  # neither the minute nor the hour begins with *

    def next_after(self, moment: datetime, zone: tzinfo) -> datetime | None:
        """Return the first time after `moment` (both aware) by the clock of `zone`; None if it never comes.

        A fixed time that the start of summer time skips comes as much later; one that its end repeats comes the first
        time. Others come whenever the clock shows them.
        """
        today = moment.astimezone(zone).date()
        for ahead in range(-1, HORIZON_DAYS):
            day = today + timedelta(days=ahead)
            if self._is_due_on(day):
                # Not simply the first: a skipped time, made later, may overtake the ones after it.
                later = min((due for due in self._times_of(day, zone) if due > moment), default=None)
                if later is not None:
                    return later
        return None

    def _is_due_on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_date, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_date or by_weekday if self.any_day else by_date and by_weekday

    def _times_of(self, day: date, zone: tzinfo) -> Iterator[datetime]:
        for hour in self.hours:
            for minute in self.minutes:
                due = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                # By way of UTC: aware datetimes of one zone are compared by their wall clocks alone.
                first = due.astimezone(UTC)
                if self.fixed_time or due.utcoffset() == due.replace(fold=1).utcoffset():
                    yield first
                elif first.astimezone(zone).replace(tzinfo=None) == due.replace(tzinfo=None):  # else it is skipped
                    yield first
                    yield due.replace(fold=1).astimezone(UTC)


def parse(text: str) -> Cron:
    """Read `minute hour day-of-month month day-of-week`.

    Raises:
        ValueError: the text is no cron text, or names a date that never comes; the message says which part and why.
    """
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise ValueError("cron text has five fields; every day at nine is '0 9 * * *'")
    minutes, hours, days, months, weekdays = (_values(part, field) for part, field in zip(parts, _FIELDS, strict=True))
    minute_text, hour_text, day_text, _, weekday_text = parts
    cron = Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(weekday % 7 for weekday in weekdays),
        any_day=not day_text.startswith("*") and not weekday_text.startswith("*"),
        fixed_time=not minute_text.startswith("*") and not hour_text.startswith("*"),
    )
    if cron.next_after(datetime(2096, 3, 1, tzinfo=UTC), UTC) is None:  # the longest wait for a 29th of February
        raise ValueError("that date never comes: no such month has that day")
    return cron


def _values(text: str, field: _Field) -> frozenset[int]:
    return frozenset(value for item in text.split(",") for value in _item(item, field))


def _item(text: str, field: _Field) -> range:
    span, slash, step_text = text.partition("/")
    first_text, dash, last_text = span.partition("-")
    if span == "*":
        first, last = field.first, field.last
    else:
        first = _number(first_text, field)
        last = _number(last_text, field) if dash else first
    if slash and not dash and span != "*":
        raise ValueError(f"{field.name}: a step needs a range or *, got {text!r}")
    if slash and not (step_text.isascii() and step_text.isdigit() and int(step_text) > 0):
        raise ValueError(f"{field.name}: a step is a whole number from 1, got {text!r}")
    if last < first:
        raise ValueError(f"{field.name}: a range goes from the lower to the higher, got {text!r}")
    return range(first, last + 1, int(step_text) if slash else 1)


def _number(text: str, field: _Field) -> int:
    if text.lower() in field.names:
        return field.first + field.names.index(text.lower())
    if text.isascii() and text.isdigit() and field.first <= int(text) <= field.last:
        return int(text)
    names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    raise ValueError(f"{field.name} is {field.first} to {field.last}{names}, got {text!r}")
