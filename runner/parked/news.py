"""What a line has to say: who may start, and what has to be done outside."""

from __future__ import annotations

from typing import NamedTuple

from parked.gate import Why
from parked.policy import GiveUp, LetGo, Rest
from parked.verdict import Reason, Verdict


class Go(NamedTuple):
    job: int
    is_probe: bool


class Wait(NamedTuple):
    wait_s: float  # until somebody may start; infinite: not before something changes
    look_s: float  # until time alone calls for a pause, or for a look at one


class Waits(NamedTuple):
    model: str  # `ALL`: any
    why: str  # `rate`, `outage`, or the reason of a pause
    wait_s: float


class Forgiven(NamedTuple):
    """A strike is taken back: what it was for turned out to be an outage."""

    job: int


class Leaves(NamedTuple):
    """A job that waits is to leave the line."""

    job: int
    then: LetGo | GiveUp
    verdict: Verdict | None  # of its last failure, None if it had none here


class Rests(NamedTuple):
    """A job that waits stays in line, but is to be pending in the ledger meanwhile."""

    job: int
    rest: Rest


class Pause(NamedTuple):
    """Nothing of the scope is started any more."""

    scope: str
    reason: Reason
    for_s: float | None  # until its cause ends by itself; None: nobody knows
    began_s: float  # how long ago the first call began that met it
    tries_in_s: float | None = None  # until one job tries; None: nobody does in this run


class TriesAgain(NamedTuple):
    """One job is about to try whether a scope that is paused answers again."""

    scope: str
    reason: Reason


class Resumed(NamedTuple):
    """A scope that was paused, here or elsewhere, has answered again."""

    scope: str


class GateMoved(NamedTuple):
    """A gate has closed, or is open again."""

    model: str  # `ALL`: in front of every model
    why: Why | None  # None: open
    for_s: float  # in an outage, until one job tries
    pauses_in_s: float | None = None  # until an outage that lasts pauses the model; None: it is none
    per_s: float | None = None  # the pace of calls from here on; None: none


class PaceKept(NamedTuple):
    """The first job of a model has come in hand, whose pace comes from an earlier run."""

    model: str
    per_s: float
    learnt_at: float  # by the clock of this run


News = PaceKept | Forgiven | Leaves | Rests | Pause | TriesAgain | Resumed | GateMoved
