"""What became of each call that reached the simulator: how a client behaved, to be measured afterwards."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from parked.errors import ParkedError
from parked.simulator.replies import Delivery
from parked.simulator.request import Request

TEXT: Final = 200  # characters of a prompt that are kept: enough to tell whose call it was


@dataclass(frozen=True, slots=True)
class Call:
    """One call, once it is over. Headers and keys are no part of it."""

    number: int  # 1-based: which call it was, by arrival
    at_s: float  # when it arrived, in seconds since the first one did
    took_s: float  # until it was answered, or given up
    model: str
    text: str  # how the prompt begins
    call: int  # 1-based: how often this prompt had been asked by then, this call included
    status: int | None  # None: nothing was sent
    delivery: Delivery  # `cut`: the connection was closed in the middle of the body

    @classmethod
    def of(cls, request: Request, *, took_s: float, status: int | None, delivery: Delivery) -> Self:
        return cls(
            number=request.number,
            at_s=round(request.at_s, 6),
            took_s=round(took_s, 6),
            model=request.model,
            text=request.text[:TEXT],
            call=request.call,
            status=status,
            delivery=delivery,
        )

    def as_json(self) -> str:
        """Return one line, without its end."""
        return json.dumps(asdict(self))


class RecordFile:
    """Calls as JSON lines, each written when its call is over; use it in a `with`. Mode 0600: it quotes prompts."""

    def __init__(self, path: Path) -> None:
        """Begin the file anew.

        Raises:
            ParkedError: it can't be written.
        """
        self._path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise ParkedError(f"can't write the record {path}: {exc.strerror}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def add(self, call: Call) -> None:
        """Raises ParkedError if it can't be written, e.g. because the disk is full."""
        line = (call.as_json() + "\n").encode()
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError as exc:
            raise ParkedError(f"can't write the record {self._path}: {exc.strerror}") from exc
