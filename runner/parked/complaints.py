"""What was refused of many lines or rows, and why: those with the same complaint together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

SHOWN: Final = 20  # complaints
NAMED: Final = 5  # lines or rows of each


@dataclass(slots=True)
class _Alike:
    first: list[int] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class Complaints:
    """Memory doesn't grow with what is refused: of the first complaints the first numbers are kept, and all counted."""

    noun: str  # `line`, or `row`
    _alike: dict[str, _Alike] = field(default_factory=dict)  # by what is said
    _others: int = 0

    def add(self, number: int, why: str) -> None:
        if why not in self._alike and len(self._alike) >= SHOWN:
            self._others += 1
            return
        alike = self._alike.setdefault(why, _Alike())
        alike.count += 1
        if len(alike.first) < NAMED:
            alike.first.append(number)

    def __bool__(self) -> bool:
        return bool(self._alike)

    def texts(self) -> Iterator[str]:
        """Yield `line 3: why`, `lines 1, 2, 4, 5, 6 and 15 more: why`, in the order of their first numbers."""
        for why, alike in self._alike.items():
            named = ", ".join(map(str, alike.first))
            more = alike.count - len(alike.first)
            yield f"{self.noun}{'s' * (alike.count > 1)} {named}{f' and {more} more' if more else ''}: {why}"
        if self._others:
            yield f"and {self._others} more {self.noun}{'s' * (self._others > 1)}"
