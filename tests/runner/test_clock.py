"""Times as people write and read them."""

import pytest

from parked.clock import iso_text, minute_text, moment, second_text, span_text
from parked.errors import SettingsError

NOW = 1772417271.25  # 2026-03-02T02:07:51.250Z


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2h", NOW - 7200),
        (" 3d ", NOW - 3 * 86400),
        ("1.5h", NOW - 5400),
        ("2026-03-02T02:07:51.250Z", NOW),
        ("2026-03-02T03:07:51.250+01:00", NOW),
        ("2026-03-02T02:07:51.250", NOW),
        ("2026-03-02", NOW - 2 * 3600 - 7 * 60 - 51.25),
        ("900000000s", NOW - 9e8),
        ("99999999d", 0.0),
        ("0001-01-01T00:00+23:00", 0.0),
    ],
)
def test_a_moment_is_a_length_before_now_or_a_date(text, at):
    assert moment(text, now=NOW) == pytest.approx(at)


@pytest.mark.parametrize("text", ["", "2", "2 hours", "yesterday", "-2h", "2026-13-01"])
def test_anything_else_is_no_moment(text):
    with pytest.raises(SettingsError, match="must be like 2h, 3d or 2026-03-02T02:00Z, got"):
        moment(text, now=NOW)


def test_times_are_told_in_utc():
    assert minute_text(NOW) == "2026-03-02 02:07Z"
    assert second_text(NOW) == "2026-03-02 02:07:51Z"
    assert iso_text(NOW) == "2026-03-02T02:07:51.250Z"
    assert iso_text(None) is None


@pytest.mark.parametrize(
    ("length_s", "text"), [(-1, "0 s"), (99.9, "99 s"), (150, "2 min"), (7200, "2 h"), (3 * 86400, "3 days")]
)
def test_a_length_is_told_in_whole_units(length_s, text):
    assert span_text(length_s) == text
