"""Answers as lines, and the file that holds each exactly once however often its run was broken off.

Lines are JSON in ASCII: one line is one answer for every reader, whatever its locale and idea of a line's end, and a
terminal finds no control characters in it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, Self

from parked.errors import OutputFailed, SettingsError
from parked.job import State
from parked.judge import text_of
from parked.ledger.codec import decode
from parked.ledger.operations import JobRow
from parked.ledger.store import AnswerRow
from parked.spill import SpillingIndex

STDOUT: Final = "-"

# How each of our lines begins; a last line without an end is only cut off if it is the beginning of one.
LOOK_AGAIN_S: Final = 0.1  # whether a locked file is free

_HEAD: Final = b'{"job_id": "'
_SCHEMA: Final = """
    CREATE TABLE written (pipeline TEXT, batch TEXT, job_id TEXT, PRIMARY KEY (pipeline, batch, job_id)) WITHOUT ROWID
"""


class Key(NamedTuple):
    """Whose answer it is."""

    pipeline: str
    batch: str
    job_id: str


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """One answered job, with the fields and the order of CONTRACT, "Answer lines"."""

    job_id: str
    pipeline: str
    batch: str
    model: str
    state: State
    answer: Any  # a JSON value; of the Gemini adapter the response as the REST API spells it
    text: str | None
    attempts: int

    @classmethod
    def of(cls, row: AnswerRow) -> Self:
        return cls.of_job(row.job, decode(row.body))

    @classmethod
    def of_job(cls, job: JobRow, answer: Any) -> Self:
        return cls(
            job.job_id, job.pipeline, job.batch, job.model, job.state, answer, text=text_of(answer), attempts=job.calls
        )

    @property
    def key(self) -> Key:
        return Key(self.pipeline, self.batch, self.job_id)

    def as_dict(self) -> dict[str, Any]:
        return {field: getattr(self, field) for field in self.__slots__}

    def json(self) -> str:
        return json.dumps(self.as_dict())


class _Sink(Protocol):
    def append(self, line: bytes) -> None: ...
    def take_back(self) -> None: ...
    def close(self) -> None: ...


class AnswerOutput:
    """Where answers go, each key once. For one thread; close it, or use it as a context manager."""

    def __init__(self, sink: _Sink, *, known: Iterator[Key] | None = None) -> None:
        self._sink = sink
        self._index = SpillingIndex(_SCHEMA)
        try:
            self._index.executemany("INSERT OR IGNORE INTO written VALUES (?, ?, ?)", known or ())
        except BaseException:
            self._index.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            self._sink.take_back()
        self.close()

    def has(self, key: tuple[str, str, str]) -> bool:
        question = "SELECT 1 FROM written WHERE pipeline = ? AND batch = ? AND job_id = ?"
        return self._index.execute(question, key).fetchone() is not None

    def add(self, line: AnswerLine) -> bool:
        """Write an answer, unless it is there already; returns whether it was written.

        Raises:
            OutputFailed: it couldn't be written whole; a file is cut back to where it was.
        """
        if self.has(line.key):
            return False
        self._sink.append(line.json().encode("ascii") + b"\n")
        self._index.execute("INSERT INTO written VALUES (?, ?, ?)", line.key)
        return True

    def close(self) -> None:
        """Sync the file to disk and let go of it."""
        self._index.close()
        self._sink.close()


def open_answers(out: str | None, *, patience_s: float = 0.0) -> AnswerOutput:
    """Open the file that answers are added to (made with mode 0600), or standard output for None and `-`.

    What an existing file holds is kept: a torn last line is cut off, and the others are known. The file is locked
    until it is closed; for whoever has it locked, `patience_s` is waited. One that is made here goes again if an
    exception ends its use before an answer has come.

    Raises:
        SettingsError: a folder, no right to write, or a file that holds something else than answers.
        OutputFailed: another run is writing to it, or the disk doesn't work.
    """
    if out is None or out == STDOUT:
        return AnswerOutput(_Printed())
    gives_up = time.monotonic() + patience_s
    while True:
        file = _File.open(out)
        try:
            file.lock(gives_up)
            if file.is_still_there():  # else whoever had it locked has taken it back
                return AnswerOutput(file, known=file.known())
        except BaseException:
            file.close()
            raise
        file.close()


class _Printed:
    """Standard output, flushed per line: a reader at the other end of a pipe has each answer as it comes."""

    def append(self, line: bytes) -> None:
        try:
            sys.stdout.write(line.decode("ascii"))
            sys.stdout.flush()
        except OSError as exc:  # a pipe whose reader has gone, a full disk
            raise OutputFailed(
                f"answers can't be printed: {exc.strerror}; those missing: parked answers --new, with the same --ledger"
            ) from None

    def take_back(self) -> None:
        pass

    def close(self) -> None:
        pass


class _File:
    def __init__(self, name: str, fd: int, *, is_new: bool) -> None:
        self._name = name
        self._fd = fd
        self._is_new = is_new
        self._is_regular = stat.S_ISREG(os.fstat(fd).st_mode)  # else a pipe or a device: only written to
        self._end = 0  # where the last whole line ends

    @classmethod
    def open(cls, name: str) -> Self:
        try:
            is_new = not os.path.lexists(name)
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise SettingsError(
                f"answers can't be written to {name}: {why}; name a file that can be by --out"
            ) from None
        return cls(name, fd, is_new=is_new)

    def is_still_there(self) -> bool:
        """Whether the name means this file."""
        try:
            return os.path.samestat(Path(self._name).stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def take_back(self) -> None:
        """Remove the file again, if it was made here and is empty; it has to be locked."""
        if self._is_new and self._is_regular and not os.fstat(self._fd).st_size and self.is_still_there():
            with suppress(OSError):
                Path(self._name).unlink()

    def lock(self, gives_up: float) -> None:
        """Lock the file, trying until then, by the monotonic clock."""
        if not self._is_regular:
            return
        try:
            while not self._locked():
                if time.monotonic() >= gives_up:
                    raise OutputFailed(f"another run is writing to {self._name}; wait for it, or name another --out")
                time.sleep(LOOK_AGAIN_S)
        except OSError as exc:
            raise OutputFailed(f"can't lock {self._name}: {exc.strerror}") from exc

    def _locked(self) -> bool:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def known(self) -> Iterator[Key]:
        """Yield whose answers are in the file; the end is mended once all were seen."""
        if not self._is_regular:
            return
        with open(self._fd, "rb", closefd=False) as stream:
            yield from self._keys(stream)

    def append(self, line: bytes) -> None:
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as exc:
            with suppress(OSError):  # a torn line is cut off at the next opening too
                os.ftruncate(self._fd, self._end)
            raise OutputFailed(f"can't write to {self._name}: {exc.strerror}; the answers are in the ledger") from exc
        self._end += len(line)

    def close(self) -> None:
        try:
            if self._is_regular:
                os.fsync(self._fd)
        except OSError as exc:
            raise OutputFailed(f"can't write to {self._name}: {exc.strerror}; the answers are in the ledger") from exc
        finally:
            os.close(self._fd)

    def _keys(self, stream: BinaryIO) -> Iterator[Key]:
        for number, raw in enumerate(stream, start=1):
            is_whole = raw.endswith(b"\n")
            key = _key(raw)
            if key is None and not is_whole and _is_torn(raw):
                os.ftruncate(self._fd, self._end)
                return
            if key is None and raw.strip():
                raise SettingsError(
                    f"{self._name} holds something else than answers (line {number}); give --out a file of its own"
                )
            self._end += len(raw)
            if key is not None:
                yield key
            if not is_whole:
                self.append(b"\n")  # an editor took the last line's end away
                return


def _key(raw: bytes) -> Key | None:
    """Whose answer a line holds; None if it isn't one."""
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or "answer" not in line:
        return None
    names = [line.get(field) for field in Key._fields]
    return Key._make(names) if all(isinstance(name, str) for name in names) else None


def _is_torn(raw: bytes) -> bool:
    """Whether a line is the beginning of one of ours, and no more; after a loss of power a file can end in zeros."""
    begun = raw.rstrip(b"\0")
    try:
        json.loads(begun)
    except (ValueError, RecursionError):
        return begun.startswith(_HEAD) or _HEAD.startswith(begun)
    return False
