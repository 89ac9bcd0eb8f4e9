"""The gates of one process, and the numbers of its starts and answers."""

from __future__ import annotations

from parked.gate import Gate
from parked.pace import Pace
from parked.pauses import ALL


class Gates:
    """The gates of one process, by model, and the numbers of its starts and answers.

    `all` is in front of every model: it closes for network faults, and for limits that aren't per model.
    """

    def __init__(self, *, rpm: float | None = None) -> None:
        self._ceiling_per_s = None if rpm is None else rpm / 60
        self._n = 0
        self.all = Gate(grows=False)
        self._of: dict[str, Gate] = {ALL: self.all}

    def number(self) -> int:
        """Return the next number."""
        self._n += 1
        return self._n

    @property
    def last_n(self) -> int:
        return self._n

    def of(self, model: str) -> Gate:
        """Return a model's gate; `ALL` is in front of every one."""
        gate = self._of.get(model)
        if gate is None:
            gate = self._of[model] = Gate(Pace(ceiling_per_s=self._ceiling_per_s))
        return gate

    def start_at(self, model: str, per_s: float, *, learnt_at: float) -> None:
        """Begin with a pace that was kept from an earlier run, where this one has none: neither learned nor given."""
        gate = self.of(model)
        if gate.pace.per_s is None:
            gate.pace = Pace(per_s, learnt_at=learnt_at)

    def known(self) -> dict[str, Gate]:
        return self._of
