"""The summary on its way to PARKED_NOTIFY: to chat, mail or a webhook, by Apprise.

What is to be sent stands in the ledger until every address has taken it, so that it outlives this process. Two marks,
each with one writer: the task `summary` leaves a `Notice`, the task `notify` notes its `Progress` with it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Final, Self

from parked.clock import iso_text, minute_text
from parked.errors import ParkedError, SettingsError
from parked.extras import install
from parked.ledger import Ledger
from parked.ledger import operations as op
from parked.logs import fields
from parked_exporter.courier import LIFE_S, Errand, Message

NOTICE_MARK: Final = "notice"
PROGRESS_MARK: Final = "notice_sent"

FIRST_RETRY_S: Final = 60.0
LAST_RETRY_S: Final = 3600.0
# A notice that nobody has tried to send by then was meant for nobody: PARKED_NOTIFY was set later.
STALE_S: Final = 24 * 3600.0

log = logging.getLogger(__name__)


class NotSent(ParkedError):
    """An address did not take the summary. The text names none: addresses hold secrets."""


class AppriseMissing(ParkedError):
    def __str__(self) -> str:
        return f"apprise is not installed; {install('notify')} brings it"


class NotDue(ParkedError):
    """Something is to be done, and its time hasn't come: neither a success nor a failure."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The summary that was made last, as people are sent it."""

    made_at: float  # epoch seconds; tells one notice from the next
    title: str
    body: str
    good: bool  # nothing is parked

    def as_mark(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a notice has come."""

    made_at: float = 0.0  # of the notice
    sent: tuple[str, ...] = ()  # the tags of the addresses that have taken it
    done: bool = True  # all of those that were set then
    tries: int = 0  # in vain
    after: float = 0.0  # not tried again before
    overdue_since: float | None = None  # the first notice before it that did not get everywhere, if that was the last

    @classmethod
    def of(cls, notice: Notice, mark: Mapping[str, Any] | None) -> Self:
        """What is known of the notice; of a new one, what became of the one before."""
        before = cls() if mark is None else cls(**{**mark, "sent": tuple(mark["sent"])})
        if before.made_at == notice.made_at:
            return before
        overdue = None if before.done else (before.overdue_since or before.made_at)
        return cls(notice.made_at, done=False, overdue_since=overdue)

    def wait_s(self, now: float) -> float:
        """How long until the next try is due. Only by a clock that was set back is it longer than the longest wait."""
        left_s = self.after - now
        return left_s if 0 < left_s <= LAST_RETRY_S else 0.0

    def failed(self, now: float) -> Self:
        wait_s = min(FIRST_RETRY_S * 2**self.tries, LAST_RETRY_S)
        return replace(self, tries=self.tries + 1, after=now + wait_s)

    def as_mark(self) -> dict[str, Any]:
        return {**asdict(self), "sent": list(self.sent)}


class Sender:
    """Sends what the last summary left to be sent. The first try of a process doesn't wait for its time."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._addresses = tagged(urls)
        self._is_new = True

    def send(self, ledger: Ledger, *, now: float) -> None:
        """Send the notice to those who lack it.

        Raises:
            NotSent: not all of them took it; it is tried again.
            NotDue: not yet.
        """
        with ledger.ask() as reader:
            mark = reader.mark(NOTICE_MARK)
            notice = None if mark is None else Notice(**mark)
            progress = None if notice is None else Progress.of(notice, reader.mark(PROGRESS_MARK))
        if notice is None or progress is None:
            return
        lacking = [tag for tag in self._addresses if tag not in progress.sent]
        if not lacking or (not progress.tries and now - notice.made_at > STALE_S):
            return
        if progress.wait_s(now) and not self._is_new:
            raise NotDue
        self._is_new = False
        faults: dict[str, str] = {}
        for tag in lacking:
            fault = _deliver(self._addresses[tag], _message(notice, progress))
            if fault is not None:
                faults[tag] = fault
            else:
                progress = replace(progress, sent=(*progress.sent, tag))
                # At once: who has it must not get it again because the next one hangs, or this process ends.
                ledger.record(op.SetMark(PROGRESS_MARK, progress.as_mark()))
        left = [tag for tag in lacking if tag not in progress.sent]
        progress = progress.failed(now) if left else replace(progress, done=True, tries=0)
        ledger.record(op.SetMark(PROGRESS_MARK, progress.as_mark()))
        if left:
            raise NotSent(
                f"the summary of {minute_text(notice.made_at)} did not reach {_named(left, list(self._addresses))} of"
                f" PARKED_NOTIFY ({', '.join(sorted(set(faults.values())))}); it is tried again"
            )
        log.info("summary_sent", extra=fields(made_at=iso_text(notice.made_at), addresses=len(lacking)))


def check(urls: Sequence[str]) -> None:
    """Look whether Apprise understands each address. Nothing is sent.

    Raises:
        AppriseMissing: the extra isn't installed.
        SettingsError: it doesn't; the message says which one by its place.
        NotSent: it could not be asked.
    """
    if importlib.util.find_spec("apprise") is None:
        raise AppriseMissing
    answers = _run({"urls": list(urls), "message": None})
    if answers is None:
        raise NotSent("PARKED_NOTIFY can't be checked: a process for it did not come to an end")
    unknown = [str(place) for place, fault in enumerate(answers, 1) if fault is not None]
    if unknown:
        raise SettingsError(
            f"PARKED_NOTIFY must be URLs of services that Apprise knows, with all their parts, but number"
            f" {' and '.join(unknown)} of {len(urls)} is none; try it with `apprise -b test URL`"
        )


def tagged(urls: Sequence[str]) -> dict[str, str]:
    """Name each address so that the ledger can tell them apart: by 16 bits, too few to find out a password by."""
    tags: dict[str, str] = {}
    for url in dict.fromkeys(urls):
        tag = sha256(url.encode()).hexdigest()[:4]
        while tag in tags:
            tag += "+"
        tags[tag] = url
    return tags


def _named(left: Sequence[str], all_tags: Sequence[str]) -> str:
    return f"number {' and '.join(str(all_tags.index(tag) + 1) for tag in left)} of the {len(all_tags)} addresses"


def _message(notice: Notice, progress: Progress) -> Message:
    body = notice.body
    if progress.overdue_since is not None:
        since = iso_text(progress.overdue_since)
        body += f"\nsummaries since {since} did not get everywhere; to see what is new since then:"
        body += f"\n  parked summary --since {since}"
    return {"title": notice.title, "body": body, "good": notice.good}


def _deliver(url: str, message: Message) -> str | None:
    """Return what is wrong with an address; None: it has the message."""
    answers = _run({"urls": [url], "message": message})
    return "the process for it did not come to an end" if answers is None else answers[0]


def _run(errand: Errand) -> list[str | None] | None:
    """Send a courier. None: it met something that it has no answer for, or took too long."""
    try:
        ended = subprocess.run(
            # -P: not from whatever lies in the working folder.
            [sys.executable, "-P", "-m", "parked_exporter.courier"],
            input=json.dumps(errand),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=LIFE_S,
            check=True,
        )
        answers: list[str | None] = json.loads(ended.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return answers
