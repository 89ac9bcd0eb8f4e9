"""What became of the jobs of a run: counted as they come, told in one line, and said as an exit status."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from parked.answers import TRUNCATED
from parked.cli.exits import Exit
from parked.clock import day_text
from parked.course import Hold
from parked.job import ANSWERED, State
from parked.ledger.operations import JobRow


@dataclass(slots=True)
class Tally:
    lines: int = 0  # of the file, all but blank ones
    repeated: int = 0  # lines that say again what an earlier one said
    rejected: int = 0  # bad lines that were set aside
    answered: int = 0
    truncated: int = 0  # of these, cut off at the token limit where that is allowed
    parked: int = 0
    answered_before: int = 0
    parked_before: int = 0
    discarded: int = 0
    elsewhere: int = 0  # another living owner runs them
    pending: int = 0
    not_taken_on: int = 0  # the run ended before it came to them
    first_before: float | None = None  # when the answers that were there before were given, epoch seconds
    last_before: float | None = None
    taken_up: Counter[State] = field(
        default_factory=Counter
    )  # jobs that earlier runs had left over, by their state now

    def add(self, hold: Hold) -> None:
        """Count one job that is out of the run's hands."""
        if hold.claimed:
            self.taken_up[hold.row.state] += 1
            return
        self.add_row(hold.row, called=hold.called)
        if hold.called and hold.row.state in ANSWERED:
            self.truncated += hold.verdict is not None and hold.verdict.rule == TRUNCATED

    def add_row(self, row: JobRow, *, called: bool) -> None:
        """Count one job of the file as it stands in the ledger, called by this command or not."""
        if row.state in ANSWERED:
            if called:
                self.answered += 1
            else:
                self._answered_before(row.finished_at)
        elif row.state is State.PARKED:
            if called:
                self.parked += 1
            else:
                self.parked_before += 1
        elif row.state in (State.DISCARDED, State.FORGOTTEN):
            self.discarded += 1
        elif row.state is State.PENDING:
            self.pending += 1
        else:
            self.elsewhere += 1

    @property
    def seen(self) -> int:
        """How many jobs of the file were counted so far."""
        return (
            self.answered + self.parked + self.answered_before + self.parked_before
            + self.discarded + self.elsewhere + self.pending
        )  # fmt: skip

    def text(self) -> str:
        """`50 lines: 47 answered, 2 answered before (2026-03-01), 1 parked before`."""
        parts = [
            (self.answered, "answered" + (f" ({self.truncated} truncated)" if self.truncated else "")),
            (self.answered_before, f"answered before ({self._days()})"),
            (self.parked, "parked"),
            (self.parked_before, "parked before"),
            (self.discarded, "discarded before"),
            (self.elsewhere, "run by another process"),
            (self.pending, "pending"),
            (self.not_taken_on, "not taken on"),
            (self.repeated, "repeated"),
            (self.rejected, "rejected"),
        ]
        told = ", ".join(f"{number} {what}" for number, what in parts if number) or "nothing to do"
        lines = "1 line" if self.lines == 1 else f"{self.lines} lines"
        return f"{lines}: {told}{self._taken_up_text()}"

    def as_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "answered": self.answered,
            "truncated": self.truncated,
            "answered_before": self.answered_before,
            "parked": self.parked,
            "parked_before": self.parked_before,
            "discarded": self.discarded,
            "elsewhere": self.elsewhere,
            "pending": self.pending,
            "not_taken_on": self.not_taken_on,
            "repeated": self.repeated,
            "rejected": self.rejected,
            "taken_up": {str(state): jobs for state, jobs in sorted(self.taken_up.items())},
        }

    def exit(self, *, parked_ok: bool) -> Exit:
        """The status that says it; where several hold, jobs that are still pending go first."""
        open_states = self.taken_up.keys() - ANSWERED - {State.PARKED, State.DISCARDED}
        if self.pending or self.not_taken_on or self.elsewhere or any(self.taken_up[state] for state in open_states):
            return Exit.PENDING
        if (self.parked or self.parked_before or self.taken_up[State.PARKED]) and not parked_ok:
            return Exit.PARKED
        return Exit.OK

    def _answered_before(self, at: float | None) -> None:
        self.answered_before += 1
        if at is not None:
            self.first_before = at if self.first_before is None else min(at, self.first_before)
            self.last_before = at if self.last_before is None else max(at, self.last_before)

    def _days(self) -> str:
        if self.first_before is None or self.last_before is None:
            return "unknown when"
        first, last = day_text(self.first_before), day_text(self.last_before)
        return first if first == last else f"{first} to {last}"

    def _taken_up_text(self) -> str:
        if not self.taken_up:
            return ""
        told = ", ".join(f"{jobs} {state}" for state, jobs in sorted(self.taken_up.items()))
        return f"; left over from earlier: {told}"
