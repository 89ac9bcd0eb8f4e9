"""The demo's night: photos to describe, and what goes wrong with some of them, by the words of their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from parked.simulator.script import Script, parse_script

MODEL: Final = "gemini-3.5-flash"

_SUBJECTS: Final = (
    "a lighthouse in the morning sun",
    "two cyclists on a gravel road",
    "a bakery window full of bread",
    "a harbour in the fog",
    "an old tram on a hill",
    "a child with a red kite",
    "the night market in the rain",
    "a goalkeeper in mid-air",
    "a field of sunflowers",
    "a crowd in front of a stage",
    "a cat asleep on a keyboard",
    "a bridge under construction",
    "a chess game in the park",
    "a page of handwritten sheet music",
    "a canoe on a still lake",
    "a storm above the sea",
    "a carpenter at his bench",
    "a family photo from the archive",
    "a street in Lisbon",
    "a plate of noodles",
    "an owl on a fence",
    "a hot-air balloon at dusk",
    "a wound after surgery",
    "a snowed-in village",
    "a ferry at the quay",
)

# Trouble that passes by itself: each of these prompts is answered in the same night.
_PASSING: Final[list[dict[str, Any]]] = [
    {"when": {"text": "fog", "first": 1}, "reply": "no_parts"},
    {"when": {"text": "storm", "first": 1}, "reply": "overloaded"},
    {"when": {"text": "night market", "first": 1}, "reply": {"rate_limited": {"retry_delay_s": 2}}},
    {"when": {"text": "quay", "first": 1}, "reply": "drop_connection"},
]
# Trouble that somebody can mend: the model's overload ends, the file is uploaded again.
_MENDABLE: Final[list[dict[str, Any]]] = [
    {"when": {"text": "crowd"}, "reply": "overloaded"},
    {"when": {"text": "archive"}, "reply": "file_missing"},
]
# Trouble that stays until the input is another.
_LASTING: Final[list[dict[str, Any]]] = [
    {"when": {"text": "wound"}, "reply": "blocked_prompt"},
]


def demo_prompts(count: int = 50) -> Iterator[str]:
    """Prompts of which three in 25 end parked: two causes can be mended, one can't."""
    for number in range(count):
        yield f"Photo {number + 1}: describe {_SUBJECTS[number % len(_SUBJECTS)]} in one sentence."


def demo_script(*, mended: bool = False) -> Script:
    """What the simulator answers to these prompts; `mended`: after the causes that can be mended were."""
    return parse_script({"rules": [*_PASSING, *([] if mended else _MENDABLE), *_LASTING]})
