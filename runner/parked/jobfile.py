"""Files of jobs, one JSON object a line, read twice in bounded memory: first every line is checked, then they run.

The first reading keeps an index on disk of which id stands on which line with which payload. Nothing of a file is
handed out before all of it was found good, and what is handed out is what was checked: a file that changes in
between is noticed.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Literal, NoReturn, Self

from parked.complaints import Complaints
from parked.errors import InvalidJob, OutputFailed
from parked.job import Job, check_name
from parked.ledger.codec import identity
from parked.spill import SpillingIndex

STDIN: Final = "-"
MAX_LINE_BYTES: Final = 128 * 2**20  # Gemini takes requests of up to 100 MB; a longer line is no job
MAX_CHUNK_BYTES: Final = 8 * 2**20  # as a batch of the ledger's writer

# The id's field and the payload's: ours, and the input format of Google's Batch API.
FORMS: Final = (("job_id", "payload"), ("key", "request"))
FIELDS: Final = frozenset({"model", *(field for form in FORMS for field in form)})
OTHER_WORDS: Final = frozenset({"mode"})  # near to one of these, and fields that people have
MAX_FIELD_CHARS: Final = 20  # of a name that may be a misspelt one of these
# Of 1: one letter is another, too much or missing, or two are exchanged. `code` is further from `model`.
NEAR: Final = 0.8

_BOM: Final = b"\xef\xbb\xbf"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_SCHEMA: Final = """
    CREATE TABLE seen (job_id TEXT PRIMARY KEY, line INTEGER, model TEXT, identity BLOB) WITHOUT ROWID;
    CREATE TABLE skipped (line INTEGER PRIMARY KEY);
    CREATE TABLE refused (line INTEGER PRIMARY KEY)
"""


class InvalidJobFile(InvalidJob):
    """A job file that can't be run as it is: missing, unreadable, or with bad lines. Nothing of it was started."""


class Scan:
    """A job file whose every line was checked. Holds the file open until it is closed; for one thread."""

    def __init__(self, name: str, stream: BinaryIO, *, default_model: str | None, rejects: Path | None = None) -> None:
        """`rejects` is the file for bad lines; None: they aren't to be set aside."""
        self.name = name  # for messages: the path as it was given, or `standard input`
        self.lines = 0  # all but blank ones
        self.jobs = 0  # what `chunks` will yield: each id once
        self.repeated = 0  # lines that say again what an earlier one said
        self.rejected = 0  # bad lines that were set aside
        self.rejected_to: Path | None = None  # the file that holds them
        self.bad = Complaints("line")  # of them; numbers are 1-based, as editors count
        self.remedies: list[str] = []  # what helps besides mending them
        self._stream = stream
        self._stamp = _stamp(stream)
        self._default_model = default_model
        self._rejects = rejects
        self._index = SpillingIndex(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        self._index.close()

    def chunks(self, size: int) -> Iterator[list[Job]]:
        """Yield the jobs in the order of the file, at most `size` (and about 8 MB) at a time.

        May be called again once the last iteration has ended.

        Raises:
            InvalidJobFile: the file was changed since it was checked.
        """
        skipped = self._index.execute("SELECT line FROM skipped ORDER BY line")
        skip = next(skipped, None)
        chunk: list[Job] = []
        chunk_bytes = 0
        for number, raw in _lines(self._stream, self.name):
            if skip == (number,):
                skip = next(skipped, None)
                continue
            try:
                chunk.append(_job(raw, self._default_model))
            except InvalidJob:
                self._refuse_changed()
            chunk_bytes += len(raw)
            if len(chunk) == size or chunk_bytes >= MAX_CHUNK_BYTES:
                self._check_unchanged()
                yield chunk
                chunk, chunk_bytes = [], 0
        self._check_unchanged()
        if chunk:
            yield chunk

    def line_of(self, job_id: str) -> int | None:
        """Return the line on which a job stands; None if it isn't in the file."""
        row = self._index.execute("SELECT line FROM seen WHERE job_id = ?", (job_id,)).fetchone()
        return None if row is None else int(row[0])

    def refuse(self, refusals: Callable[[list[Job]], Iterable[tuple[str, str]]], *, size: int) -> None:
        """Have the jobs looked at once more, so many at a time: what `refusals` yields, as id and why, is a bad line.

        `refuse_bad` is to follow, once it is known what else can be said.

        Raises:
            InvalidJobFile: the file was changed since it was checked.
            OutputFailed: the file of rejected lines can't be written.
        """
        refused = 0
        for jobs in self.chunks(size):
            for job_id, why in refusals(jobs):
                number = self.line_of(job_id)
                assert number is not None
                self.bad.add(number, why)
                self._index.execute("INSERT INTO refused VALUES (?)", (number,))
                refused += 1
        self.rejected += refused
        self.jobs -= refused
        if refused and self._rejects is not None:
            self._set_refused_aside(self._rejects)

    def refuse_bad(self) -> None:
        """
        Raises:
            InvalidJobFile: there are bad lines, and they aren't to be set aside.
        """
        if self.bad and self._rejects is None:
            raise InvalidJobFile(_complaint(self))

    def _set_refused_aside(self, rejects: Path) -> None:
        refused = self._index.execute("SELECT line FROM refused ORDER BY line")
        wanted = next(refused, None)
        with _Rejects(rejects, adds=self.rejected_to is not None) as out:
            for number, raw in _lines(self._stream, self.name):
                if wanted == (number,):
                    out.add(raw)
                    wanted = next(refused, None)
        self._check_unchanged()
        self._index.execute("INSERT INTO skipped SELECT line FROM refused")
        self._index.execute("DELETE FROM seen WHERE line IN (SELECT line FROM refused)")
        self.rejected_to = rejects

    def names(self, model: str) -> bool:
        """Whether a job of the file is for that model."""
        return self._index.execute("SELECT 1 FROM seen WHERE model = ? LIMIT 1", (model,)).fetchone() is not None

    def _check(self, number: int, raw: bytes, check_payload: Callable[[Any], None] | None) -> None:
        """Take one line up, or raise `InvalidJob` with what is wrong with it."""
        job = _job(raw, self._default_model)
        try:
            payload_identity = identity(job.payload)
        except (ValueError, RecursionError) as exc:
            raise InvalidJob(f"its payload is not a JSON value: {exc}") from exc
        if check_payload is not None:
            check_payload(job.payload)
        known = self._index.execute("SELECT line, model, identity FROM seen WHERE job_id = ?", (job.job_id,)).fetchone()
        if known is None:
            row = (job.job_id, number, job.model, payload_identity)
            self._index.execute("INSERT INTO seen VALUES (?, ?, ?, ?)", row)
            self.jobs += 1
            return
        line, model, first_identity = known
        if first_identity != payload_identity:
            raise InvalidJob(f"the job_id {job.job_id!r} stands on line {line} with another payload")
        if model != job.model:
            raise InvalidJob(f"the job_id {job.job_id!r} stands on line {line} with another model")
        self.repeated += 1
        self._skip(number)

    def _skip(self, number: int) -> None:
        self._index.execute("INSERT INTO skipped VALUES (?)", (number,))

    def _check_unchanged(self) -> None:
        if _stamp(self._stream) != self._stamp:
            self._refuse_changed()

    def _refuse_changed(self) -> NoReturn:
        raise InvalidJobFile(
            f"{self.name} was changed while it was being run; what was taken on so far stands. Run it again"
        ) from None


def scan(
    source: str,
    *,
    default_model: str | None = None,
    check_payload: Callable[[Any], None] | None = None,
    skip_bad_lines: bool = False,
    stdin: BinaryIO | None = None,
) -> Scan:
    """Check every line of a job file, `-` being standard input, and return it ready to be read in chunks.

    `default_model` is for lines that name none; `check_payload` raises `InvalidJob` for a payload it can't send. An
    id that comes again with the same payload and model is one job. With `skip_bad_lines`, bad lines go unchanged to
    `<source>.rejected.jsonl` (mode 0600) and the rest is good.

    Raises:
        InvalidJobFile: no such file, not readable, or bad lines: up to 20 complaints, each with the first of its lines.
        OutputFailed: the spool, the index or the file of rejected lines can't be written.
    """
    name, stream = _open(source, stdin)
    rejected_to = rejects_of(source)
    scanned = Scan(name, stream, default_model=default_model, rejects=rejected_to if skip_bad_lines else None)
    with _Rejects(rejected_to) as rejects:
        try:
            for number, raw in _lines(stream, name):
                scanned.lines += 1
                try:
                    scanned._check(number, raw, check_payload)
                except InvalidJob as exc:
                    scanned.rejected += 1
                    scanned.bad.add(number, str(exc))
                    if skip_bad_lines:
                        scanned._skip(number)
                        rejects.add(raw)
            scanned.refuse_bad()
        except BaseException:
            scanned.close()
            raise
    if scanned.bad:
        scanned.rejected_to = rejected_to
    return scanned


def rejects_of(source: str) -> Path:
    """Return the file to which the bad lines of a job file go."""
    return Path(f"{'stdin' if source == STDIN else source}.rejected.jsonl")


def payloads_in(source: str, *, stdin: BinaryIO | None = None) -> tuple[dict[str, Any] | None, Any]:
    """Return the payloads of a file of job lines by their job ids, and None; or None and the one payload it holds.

    A line needs no model. All of it is held in memory: it is for jobs that somebody has mended.

    Raises:
        InvalidJobFile: no such file, not readable, or bad lines.
    """
    name, stream = _open(source, stdin)
    with stream:
        text = b"".join(raw for _, raw in _lines(stream, name))
        try:
            whole = _decoded(text)
        except InvalidJob:
            whole = None
        if whole is not None and not (isinstance(whole, dict) and whole.keys() & {"job_id", "key"}):
            return None, whole
        stream.seek(0)
        payloads: dict[str, Any] = {}
        for number, raw in _lines(stream, name):
            try:
                job = _job(raw, "-")
            except InvalidJob as exc:
                raise InvalidJobFile(f"line {number} of {name}: {exc}") from None
            if payloads.setdefault(job.job_id, job.payload) != job.payload:
                raise InvalidJobFile(f"line {number} of {name}: it has another payload for {job.job_id!r}")
        if not payloads:
            raise InvalidJobFile(f"{name} holds no payload")
    return payloads, None


def _open(source: str, stdin: BinaryIO | None) -> tuple[str, BinaryIO]:
    """Open a job file for reading it twice; what can be read only once is spooled first."""
    if source == STDIN:
        if stdin is None and sys.stdin is None:
            raise InvalidJobFile("standard input is closed; name a JSONL file, or send one there")
        return "standard input", _spooled(sys.stdin.buffer if stdin is None else stdin)
    try:
        stream = Path(source).open("rb")  # noqa: SIM115 - the scan holds it open
    except IsADirectoryError:
        raise InvalidJobFile(f"the job file {source} is a folder; name a JSONL file, or - for standard input") from None
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else str(exc)
        raise InvalidJobFile(f"the job file {source} can't be read: {why}") from None
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return source, stream
    with stream:
        return source, _spooled(stream)


def _spooled(stream: BinaryIO) -> BinaryIO:
    """Copy a stream to a file without a name, which nobody else can open and which is gone with this process."""
    spool = None
    try:
        spool = tempfile.TemporaryFile()  # noqa: SIM115 - the scan holds it open
        shutil.copyfileobj(stream, spool, 2**20)
        spool.flush()
    except OSError as exc:
        if spool is not None:
            with suppress(OSError):  # what it still holds finds no room either
                spool.close()
        raise OutputFailed(
            f"can't keep a copy of the input in {tempfile.tempdir or 'TMPDIR'}: {exc.strerror};"
            " make room there, or name another folder in TMPDIR"
        ) from exc
    return spool


def _lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line that isn't blank, from the beginning."""
    stream.seek(0)
    if stream.read(2) in _UTF_16:
        raise InvalidJobFile(f"{name} is UTF-16; a job file must be UTF-8")
    stream.seek(0)
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise InvalidJobFile(f"line {number} of {name} is longer than {MAX_LINE_BYTES // 2**20} MB; is it JSONL?")
        if raw.removeprefix(_BOM).strip():
            yield number, raw


def _job(raw: bytes, default_model: str | None) -> Job:
    line = _decoded(raw)
    if not isinstance(line, dict):
        raise InvalidJob("it is JSON, but not an object in braces")
    for id_field, payload_field in FORMS:
        if id_field not in line:
            continue
        if payload_field not in line:
            raise InvalidJob(f'it has "{id_field}", but no "{payload_field}"{_misspelt(line, payload_field)}')
        check_name(id_field, line[id_field])
        model = line.get("model") or _model_of(line[payload_field])
        if not model and (misspelt := _misspelt(line, "model")):  # the default one was not meant
            raise InvalidJob(f'it has no "model"{misspelt} If not, name the model, or call that field something else')
        model = model or default_model
        if model is None:
            raise InvalidJob("it names no model; add one to the line, or give all such lines one with --model")
        return Job(line[id_field], model=model, payload=line[payload_field])
    near = _misspelt(line, "job_id") or _misspelt(line, "key")
    raise InvalidJob(f'it has no id; a line needs "job_id" and "payload", or "key" and "request"{near}')


def _misspelt(line: dict[str, Any], wanted: str) -> str:
    """`; did you mean "model" by "modle"?` where a line that lacks a field has one that is spelt almost like it.

    Other fields are its user's own, and let through.
    """
    near = next(
        (name for name in line if name not in FIELDS | OTHER_WORDS and _is_near(name[:MAX_FIELD_CHARS], wanted)), None
    )
    return "" if near is None else f'; did you mean "{wanted}" by "{near}"?'


@lru_cache(maxsize=256)  # such a field stands in every line
def _is_near(name: str, wanted: str) -> bool:
    from difflib import SequenceMatcher  # only for fields that parked doesn't know

    return SequenceMatcher(None, name.lower(), wanted).ratio() >= NEAR


def _model_of(request: Any) -> Any:
    """The model that a request of the Batch API names itself, `models/gemini-…`."""
    model = request.get("model") if isinstance(request, dict) else None
    return model.removeprefix("models/") if isinstance(model, str) else model


def _decoded(raw: bytes) -> Any:
    try:
        return _DECODER.decode(raw.removeprefix(_BOM).decode("utf-8").strip())
    except InvalidJob:
        raise
    except UnicodeDecodeError as exc:
        raise InvalidJob(f"byte {exc.start + 1} of it is not UTF-8") from None
    except json.JSONDecodeError as exc:
        raise InvalidJob(f"it is not JSON: {exc.msg} at column {exc.colno}") from None
    except (ValueError, RecursionError) as exc:  # a number of more than 4,300 digits; nested a thousand deep
        raise InvalidJob(f"it can't be read as JSON: {exc}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidJob(f"it holds {name}, which is not JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _complaint(scanned: Scan) -> str:
    said = [f"{scanned.rejected} of {scanned.lines} lines of {scanned.name} can't be run, so nothing was started:"]
    said += [f"  {text}" for text in scanned.bad.texts()]
    said += ["Mend them, or run the others with --skip-bad-lines.", *scanned.remedies]
    return "\n".join(said)


def _stamp(stream: BinaryIO) -> tuple[int, int]:
    facts = os.fstat(stream.fileno())
    return facts.st_size, facts.st_mtime_ns


class _Rejects:
    """The file of bad lines, made with the first one; an old one of the same name is replaced then, or added to."""

    def __init__(self, path: Path, *, adds: bool = False) -> None:
        self._path, self._adds = path, adds
        self._stream: BinaryIO | None = None

    def add(self, raw: bytes) -> None:
        try:
            if self._stream is None:
                mode: Literal["ab", "wb"] = "ab" if self._adds else "wb"
                self._stream = open(self._path, mode, opener=_open_private)  # noqa: SIM115 - closed at exit
            self._stream.write(raw)
            self._stream.flush()
        except OSError as exc:
            raise OutputFailed(f"can't write the bad lines to {self._path}: {exc.strerror}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self._stream is not None:
            with suppress(OSError):  # each line was flushed: what could fail here has been reported
                self._stream.close()


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
