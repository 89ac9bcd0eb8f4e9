"""The `dead_letter` table of the article, read as it stands: each row a job that failed elsewhere.

Tables differ in what they keep and how they call it, so columns are looked for under several names, and most may be
missing. The database is opened read-only and never changed.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from parked.elsewhere import FailedElsewhere
from parked.errors import InvalidJob, SettingsError, SourceUnavailable
from parked.job import Job, check_name
from parked.ledger.sqlite_file import APPLICATION_ID

TABLE: Final = "dead_letter"
PAGE_ROWS: Final = 256  # as a batch of the ledger's writer, also in bytes
PAGE_BYTES: Final = 8_000_000
LOCK_TIMEOUT_S = 5.0  # how long to wait for the program that fills the table

# What a column is called, likeliest first. Compared without regard to case.
NAMES: Final = {
    "job_id": ("job_id", "job", "key", "id"),
    "payload": ("payload", "payload_json", "request", "request_json", "input", "body"),
    "model": ("model", "model_name"),
    "error_class": ("error_class", "class", "failure_class", "error_type"),
    "status": ("status_code", "http_status", "error_code", "code"),
    "message": ("error_message", "last_error", "error", "message", "reason"),
    "attempts": ("attempts", "attempt_count", "tries", "retries"),
    "parked_at": ("parked_at", "failed_at", "created_at", "created", "first_failed_at", "updated_at", "timestamp"),
}
# A row that was dealt with already: a time or a mark in one of these columns, or one of these words as its state.
OVER_COLUMNS: Final = (
    "recovered_at", "replayed_at", "resolved_at", "succeeded_at", "recovered", "replayed", "resolved", "succeeded"
)  # fmt: skip
TRUE_WORDS: Final = frozenset({"true", "t", "yes", "y", "on"})
STATE_COLUMNS: Final = ("status", "state")
OVER_WORDS: Final = frozenset({"recovered", "replayed", "resolved", "succeeded", "success", "done", "discarded"})

_COUNT: Final = "SELECT count(*) FROM dead_letter"
# What SQLite calls the number of a row, unless a column goes by that name: https://www.sqlite.org/rowidtable.html
_ROW_NUMBERS: Final = ("rowid", "_rowid_", "oid")
_ROWS: Final = "SELECT {number}, * FROM dead_letter WHERE {number} > ? ORDER BY {number} LIMIT ?"
# The table is another than expected, or the file none of SQLite's; whatever else goes wrong lies in its surroundings.
_WRONG_INPUT: Final = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB})
_WAL_MODE: Final = 2  # in byte 18 of the file, https://www.sqlite.org/fileformat.html#file_format_version_numbers
_MILLISECONDS_FROM: Final = 1e11  # as seconds that would be the year 5138


class DeadRow(NamedTuple):
    rowid: int
    values: dict[str, Any]  # by the table's own names, in lower case


class DeadTable:
    """An open table; to be closed. For one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = _open(path)
        try:
            self._check()
            columns = [row[1].lower() for row in self._ask(f"PRAGMA table_xinfo({TABLE})")]
            number = next((name for name in _ROW_NUMBERS if name not in columns), None)
            if number is None:
                raise SettingsError(
                    f"the table {TABLE} of {path} has columns called {', '.join(_ROW_NUMBERS)}, which hide the numbers"
                    " of its rows; copy it to a table that calls one of them something else"
                )
            self._rows = _ROWS.format(number=number)
            self._ask(self._rows, 0, 0)  # a table without rowids can't be read in pages
            self.columns = {
                field: next(name for name in names if name in columns)
                for field, names in NAMES.items()
                if any(name in columns for name in names)
            }
            for field in ("job_id", "payload"):
                if field not in self.columns:
                    raise SettingsError(
                        f"the table {TABLE} of {path} has no column for the {field} (looked for"
                        f" {', '.join(NAMES[field])}), so nothing of it could be run again"
                    )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def __len__(self) -> int:
        return int(self._ask(_COUNT)[0][0])

    def pages(self) -> Iterator[list[DeadRow]]:
        """Yield the rows in the order in which they came, at most 256 and about 8 MB at a time.

        Each page is a question of its own, so that the program which fills the table isn't kept from writing.

        Raises:
            SourceUnavailable: the rows behind the last one can't be read.
        """
        last = -(2**63)
        while page := self._page(last):
            yield page
            last = page[-1].rowid

    def is_over(self, row: DeadRow) -> bool:
        """Whether the table says that this job was dealt with already. What nobody can read as that doesn't."""
        if any(_is_mark(row.values.get(name)) for name in OVER_COLUMNS):
            return True
        return any(str(row.values.get(name)).strip().lower() in OVER_WORDS for name in STATE_COLUMNS)

    def failed(self, row: DeadRow, *, default_model: str | None, now: float) -> FailedElsewhere:
        """Return what a row tells.

        Raises:
            InvalidJob: it has no usable id, model or payload.
        """
        payload = _payload(self._value(row, "payload"))
        message = self._value(row, "message")
        return FailedElsewhere(
            Job(_id(self._value(row, "job_id")), self._model(row, default_model), payload),
            self._class(row),
            _whole_text(message) if isinstance(message, str) else "",
            _count(self._value(row, "attempts")),
            _moment(self._value(row, "parked_at"), now=now),
        )

    def _page(self, last: int) -> list[DeadRow]:
        page: list[DeadRow] = []
        size = 0
        try:
            with closing(self._connection.execute(self._rows, (last, PAGE_ROWS))) as rows:
                names = [column[0].lower() for column in rows.description[1:]]
                for rowid, *values in rows:
                    page.append(DeadRow(rowid, dict(zip(names, values, strict=True))))
                    size += sum(len(value) for value in values if isinstance(value, (str, bytes)))
                    if size >= PAGE_BYTES:
                        break
        except sqlite3.Error as exc:
            if not page:
                raise self._unreadable(exc) from exc
            # What was read of it counts; the next page begins where the damage does.
        return page

    def _check(self) -> None:
        if self._ask("PRAGMA application_id")[0][0] == APPLICATION_ID:
            raise SettingsError(f"{self.path} is a ledger of parked already; name it with --ledger to use it")
        tables = [name for (name,) in self._ask("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        if TABLE not in map(str.lower, tables):
            there = f"it has {', '.join(tables[:5])}" if tables else "it has no table at all"
            raise SettingsError(f"{self.path} has no table {TABLE}; {there}")

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        """
        Raises:
            SettingsError: this is no such table.
            SourceUnavailable: it can't be read, being locked or damaged.
        """
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            raise self._unreadable(exc) from exc

    def _unreadable(self, exc: sqlite3.Error) -> SettingsError | SourceUnavailable:
        code = getattr(exc, "sqlite_errorcode", None)  # none, where it is Python's own
        kind = SettingsError if code in _WRONG_INPUT else SourceUnavailable
        return kind(f"the table {TABLE} of {self.path} can't be read: {exc}")

    def _value(self, row: DeadRow, field: str) -> Any:
        return row.values.get(self.columns.get(field, ""))

    def _class(self, row: DeadRow) -> str | None:
        error_class = self._value(row, "error_class")
        if isinstance(error_class, str) and error_class.strip():
            check_name("its error class", error_class)
            return error_class
        status = self._value(row, "status")
        return f"exhausted:{status}" if isinstance(status, int) else None

    def _model(self, row: DeadRow, default: str | None) -> str:
        model = self._value(row, "model") or default
        if model is None:
            raise InvalidJob("it names no model; say --model M for such rows")
        check_name("its model", model)
        return str(model)


def _open(path: Path) -> sqlite3.Connection:
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError as exc:
        raise SettingsError(f"{path} can't be read: {exc.strerror}") from exc
    if len(head) < 20 or not head.startswith(b"SQLite format 3\0"):
        raise SettingsError(f"{path} is not a SQLite database")
    name = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    wal = Path(f"{path}-wal")
    # Without a WAL to read along, a database in WAL mode is read as it is: else SQLite would put one beside it.
    alone = head[18] == _WAL_MODE and not (wal.exists() and wal.stat().st_size)
    how = "mode=ro&immutable=1" if alone else "mode=ro"
    connection = sqlite3.connect(f"file:{name}?{how}", uri=True, isolation_level=None, timeout=LOCK_TIMEOUT_S)
    # Bytes that are no UTF-8 come as lone surrogates, so that one bad row doesn't hide the others.
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    return connection


def _id(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    if value is None:
        raise InvalidJob("it has no job_id")
    check_name("its job_id", value)
    return str(value)


def _payload(value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str):
        raise InvalidJob("it has no payload" if value is None else "its payload is no JSON text")
    if _whole_text(value) != value:
        raise InvalidJob("its payload is no UTF-8")
    try:
        return json.loads(value)
    except RecursionError:
        raise InvalidJob("its payload is nested too deeply") from None
    except ValueError as exc:
        raise InvalidJob(f"its payload is no JSON: {exc}") from None


def _whole_text(text: str) -> str:
    """The text with what was no UTF-8 replaced."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_mark(value: Any) -> bool:
    """Whether what stands in a column such as `recovered` or `recovered_at` says yes: a true word, or a time."""
    if isinstance(value, str):
        word = value.strip().lower()
        return word in TRUE_WORDS or word in OVER_WORDS or _moment(word.upper(), now=math.inf) is not None
    return isinstance(value, (int, float)) and value > 0


def _count(value: Any) -> int:
    with suppress(ValueError, TypeError, OverflowError):
        return max(1, min(int(value), 1_000_000))
    return 1


def _moment(value: Any, *, now: float) -> float | None:
    """A time as epoch seconds, from seconds, milliseconds or ISO 8601 (in UTC if it names no zone); None if unknown."""
    at = math.nan
    with suppress(ValueError, TypeError, OverflowError):
        at = float(value)
        at = at / 1000 if at >= _MILLISECONDS_FROM else at
    if isinstance(value, str) and math.isnan(at):
        with suppress(ValueError, OverflowError):
            read = datetime.fromisoformat(value.strip())
            at = (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    return min(at, now) if at > 0 else None
