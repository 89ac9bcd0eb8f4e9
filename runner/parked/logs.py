"""How both programs log: one line a record, a fixed event name and fields, as text or as JSON.

A record is made with the standard library: `log.warning("task_failed", extra=fields(task="audit", why="…"))`.
Fields carry ids, reasons, counts and times; never a payload, an answer, a key, or a message that quotes them.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")

_FIELDS: Final = "parked_fields"
_SHOWN: Final = "parked_shown"

_OURS: Final = ("parked", "parked_exporter")

# What the library logs for handlers that show no fields: an event, with its fields and a sentence in the message.
_FIELD: Final = r' ([a-z_]+)=([^\s=":]+|"(?:[^"\\\x00-\x1f\x7f]|\\.)*")'
_MESSAGE: Final = re.compile(rf"([a-z_]+)((?:{_FIELD})*)(?:: (.+))?", re.DOTALL)


def fields(**values: Any) -> dict[str, Any]:
    """Return what `extra=` takes, so that the formatters find these fields. Values are what JSON holds."""
    return {_FIELDS: values}


def as_text(*names: str) -> dict[str, Any]:
    """Return what `extra=` takes besides, so that the text shows these fields alone: of a page, what fits on a line."""
    return {_SHOWN: names}


def configure(level: str, format: str) -> None:
    """Send all records from `level` up to standard error, as `text` or `json`. Call once, from a command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """`2026-03-02T02:07:00Z WARNING task_failed task=audit why="the ledger is away"`, always on one line.

    A field that is None is left out: there is nothing to say of it.
    """

    def format(self, record: logging.LogRecord) -> str:
        entry = _entry(record)
        event = entry.pop("event")
        head = f"{entry.pop('time')} {entry.pop('level')} {_plain(event)}"
        entry.pop("logger")
        if (shown := getattr(record, _SHOWN, None)) is not None:
            for name in getattr(record, _FIELDS, {}).keys() - set(shown):
                del entry[name]
        return " ".join([head, *(f"{name}={_plain(value)}" for name, value in entry.items() if value is not None)])


class JsonFormatter(logging.Formatter):
    """One JSON object: `time`, `level`, `event`, `logger`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_entry(record), default=str)


def _entry(record: logging.LogRecord) -> dict[str, Any]:
    moment = datetime.fromtimestamp(record.created, UTC)
    event, said = split_message(record.getMessage()) if _is_ours(record.name) else (record.getMessage(), {})
    entry = {
        "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname,
        "event": event,
        "logger": record.name,
        **said,
        **getattr(record, _FIELDS, {}),
        **_trace(),
    }
    if record.exc_info and record.exc_info[0] is not None:
        entry["traceback"] = logging.Formatter().formatException(record.exc_info)
    return entry


def split_message(message: str) -> tuple[str, dict[str, Any]]:
    """Return the event of a message of ours and the fields that it holds; a sentence after a colon is `why`.

    `owner_lost owner=22 role=runner` is `("owner_lost", {"owner": 22, "role": "runner"})`. A message of another form is
    an event without fields.
    """
    found = _MESSAGE.fullmatch(message)
    if found is None:
        return message, {}
    said = {name: _value(text) for name, text in re.findall(_FIELD, found[2])}
    return found[1], said | ({"why": found[5]} if found[5] else {})


def _value(text: str) -> Any:
    return json.loads(text) if text[0] == '"' or text.isdecimal() else text


def _is_ours(logger: str) -> bool:
    return logger.partition(".")[0] in _OURS


def _trace() -> dict[str, str]:
    """Where the sampled span is to be found in which this was logged, if it was in one."""
    telemetry = sys.modules.get("parked.telemetry")  # who hasn't imported it has no spans
    ids = telemetry.current_ids() if telemetry is not None else None
    return {"trace_id": ids.trace_id, "span_id": ids.span_id} if ids is not None and ids.trace_id is not None else {}


def _plain(value: Any) -> str:
    """A value as it is where it can't be mistaken, else quoted: no text can forge a field or a second line."""
    if isinstance(value, str) and value and value.isprintable() and not set(value) & set(' "='):
        return value
    return json.dumps(value, default=str)
