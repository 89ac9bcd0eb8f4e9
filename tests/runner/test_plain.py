"""Numbers as people read them."""

from __future__ import annotations

import pytest

from parked.plain import number_text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.00005, "0.00005"),
        (0.15, "0.15"),
        (33.000001, "33"),
        (33.333333, "33.3"),
        (99.96, "100"),
        (1643.4, "1643"),
        (19_200, "19200"),
        (1e9, "1000000000"),
        (-2, "-2"),
    ],
)
def test_a_number_is_shown_with_what_matters_of_it_and_never_with_an_exponent(number, text):
    assert number_text(number) == text
