"""What a caller of parked may have to handle. A failed attempt is a value (a `Verdict`), never one of these."""

from __future__ import annotations

from typing import Final

__all__ = [
    "InvalidJob",
    "JobConflict",
    "LedgerMissing",
    "LedgerTooNew",
    "LedgerUnavailable",
    "NotAnswered",
    "OutputFailed",
    "ParkedError",
    "SettingsError",
    "SourceUnavailable",
    "TextMissing",
    "TransitionError",
]

# Said by whoever needs it, and is the first to notice.
WORKING_FOLDER_GONE: Final = "the folder that this was started in is gone; change into one that is there"


class ParkedError(Exception):
    """The base of every exception that parked raises on purpose."""


class SettingsError(ParkedError, ValueError):
    """A setting, a flag or an argument is wrong; the message names it, its value and the rule."""


class InvalidJob(ParkedError, ValueError):
    """A job that can't be taken on as it is: a bad id, or a payload that JSON can't hold. Nothing was accepted."""


class JobConflict(ParkedError):
    """A known job id came with another payload. The first payload stands."""

    def __init__(self, pipeline: str, batch: str, job_id: str) -> None:
        super().__init__(pipeline, batch, job_id)  # as args, so that it survives pickling
        self.pipeline = pipeline
        self.batch = batch
        self.job_id = job_id

    def __str__(self) -> str:
        where = f"pipeline {self.pipeline!r}" + (f", batch {self.batch!r}" if self.batch else "")
        return (
            f"job {self.job_id!r} of {where} was accepted before with another payload;"
            " give the new payload its own job_id, or a --batch of its own"
        )


class NotAnswered(ParkedError):
    """A call of a wrapped client named a job that is known and has no answer to give. It was not called again."""

    def __init__(self, pipeline: str, batch: str, job_id: str, state: str, error_class: str | None) -> None:
        super().__init__(pipeline, batch, job_id, state, error_class)  # as args, so that it survives pickling
        self.pipeline = pipeline
        self.batch = batch
        self.job_id = job_id
        self.state = (
            state  # `running` elsewhere, `parked`, `replaying`, `discarded`; an answered one whose text is gone
        )
        self.error_class = error_class  # of a parked job, e.g. `exhausted:503`

    def __str__(self) -> str:
        where = f"job {self.job_id!r} of pipeline {self.pipeline!r}" + (f", batch {self.batch!r}" if self.batch else "")
        if self.error_class is not None:
            return f"{where} is parked ({self.error_class}); to run it again: parked replay --job {self.job_id} --apply"
        if self.state == "discarded":
            return f"{where} was discarded; to take it back: parked restore {self.job_id}"
        if self.state in ("succeeded", "recovered"):
            return (
                f"{where} was answered before, but its answer was erased, or not stored (PARKED_STORE=none); to call"
                " again, give it another id"
            )
        return f"{where} is {self.state}: another process has it; ask again when that is done"


class LedgerUnavailable(ParkedError):
    """The ledger can't be read or written now. What was to be accepted was not taken on."""


class LedgerMissing(LedgerUnavailable):
    """There is no ledger where one was expected. It is never created by a command that only looks."""


class LedgerReplaced(LedgerUnavailable):
    """The ledger's name means another file than the one that was opened."""


class LedgerTooNew(LedgerUnavailable):
    """A newer parked has changed this ledger in a way that this version can't follow; upgrade parked."""


class TextMissing(LedgerUnavailable):
    """A text of the ledger can't be read here: it was never stored, or the key that it is encrypted with isn't there.

    `why` says which.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"a text of the ledger was {self.why}"


class TextDamaged(TextMissing):
    """A text of the ledger isn't what was stored: the disk or somebody else has changed it. The others may be whole."""

    def __init__(self, why: str = "damaged; `parked audit --bodies` names its job") -> None:
        super().__init__(why)

    def __str__(self) -> str:
        return f"a payload or answer in the ledger is {self.why}"


class OutputFailed(ParkedError):
    """A file or stream that parked writes can't be written: disk full, locked, gone. What is in the ledger stands."""


class SourceUnavailable(ParkedError):
    """What is to be taken over can't be read now, or not on: it is locked or damaged. What was taken before stands."""


class OwnerLost(ParkedError):
    """This process was declared lost, since its beat stood still: it can start nothing under its old owner id.

    Its jobs were parked as orphaned; answers that it still brings are kept. `Ledger.owner_id` registers it anew.
    """

    def __init__(self, owner_id: int) -> None:
        super().__init__(owner_id)
        self.owner_id = owner_id

    def __str__(self) -> str:
        return (
            f"owner {self.owner_id} was declared lost, because its beat stood still, or has ended;"
            " it has to register anew before it starts another job"
        )


class TransitionError(ParkedError):
    """An event that the table of transitions does not list: a bug in parked, please report it."""

    def __init__(self, state: str, event: str) -> None:
        super().__init__(state, event)
        self.state = state
        self.event = event

    def __str__(self) -> str:
        return f"a job that is {self.state} has no event {str(self.event)!r}; this is a bug in parked, please report it"
