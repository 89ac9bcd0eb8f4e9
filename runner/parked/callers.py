"""Who calls and who checks, found by the names that jobs remember: for programs that run jobs which others took on."""

from __future__ import annotations

from parked.gates import Gates
from parked.ledger import Ledger
from parked.ledger.operations import Called
from parked.lone import NamedDelays
from parked.named import caller_named, checker_named, names_a_function
from parked.policy import Policy
from parked.running import CallModel, Running
from parked.timing import Clock, SystemClock


class Callers:
    """The callers and checks that can be found here, each made once. All that they run has the same gates."""

    def __init__(self, ledger: Ledger, policy: Policy, *, stand_in: str | None = None) -> None:
        """`stand_in` is the function that calls instead of the Gemini adapter, and for those that have no name."""
        self.ledger = ledger
        self.policy = policy
        self._stand_in = stand_in
        self.clock: Clock = SystemClock()
        self.gates = Gates()
        self.delays = NamedDelays()
        self._callers: dict[str, CallModel] = {}
        self._runnings: dict[Called, Running] = {}

    def running(self, called: Called) -> Running:
        """Return what runs the jobs of this caller and check.

        Raises:
            SettingsError: one of them can't be found here, or lacks credentials.
        """
        if called not in self._runnings:
            call_model = self._caller(called.caller)
            with self.ledger.ask() as reader:
                checker = checker_named(called.checker, mark=reader.mark)
            self._runnings[called] = Running(
                self.ledger,
                call_model,
                policy=self.policy,
                check=checker.check,
                allow_truncated=checker.allow_truncated,
                caller=called.caller,
                checker=called.checker,
                clock=self.clock,
                gates=self.gates,
                delays=self.delays,
            )
        return self._runnings[called]

    async def aclose(self) -> None:
        """Close what was opened on the running loop."""
        for caller in self._callers.values():
            if (aclose := getattr(caller, "aclose", None)) is not None:
                await aclose()

    def _caller(self, name: str) -> CallModel:
        if self._stand_in is not None and not names_a_function(name):
            name = self._stand_in
        if name not in self._callers:
            self._callers[name] = caller_named(name, timeout_s=self.policy.attempt_timeout_s)
        return self._callers[name]
