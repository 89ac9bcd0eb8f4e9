"""Spans on their way to a collector: in batches large enough for a slow one, and counted, so that a loss is said once.

Imports OpenTelemetry's SDK; `tracing.py` imports this where traces are asked for.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
from collections.abc import Mapping, Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from parked.errors import SettingsError

# A collector that takes 250 ms for a request gets 2,000 spans a second, two for each of a thousand attempts, in a
# request a second. With the SDK's own 512 in 2,048 it is at its limit there, and whatever else holds it up costs spans.
BATCH_SPANS: Final = 2048
QUEUE_SPANS: Final = 8192
# Where spans tell what was asked and answered: 64 attempts of up to 48 KB (`content.MOST_BYTES`). OpenTelemetry's
# collector takes 4 MiB by gRPC and 20 MiB by HTTP unless told otherwise, and refuses a larger request as a whole.
CONTENT_BATCH_SPANS: Final = 128
DELAY_MS: Final = 5000  # the SDK's own

EXPORTERS: Final = "opentelemetry.exporter"  # under this name an exporter tells of each try that fails
_STATUSES: Final = {status.phrase: status.value for status in HTTPStatus if status >= HTTPStatus.BAD_REQUEST}
_MOST_LINKS: Final = 10  # of a chain of exceptions

_log = logging.getLogger("parked.telemetry")


class SpanBatches(BatchSpanProcessor):
    """A batch processor that knows how many spans it has lost, and says so when that begins and at its end.

    `batch_spans` go in a request, unless `env` says otherwise. `collector` is the address that people are shown.

    Raises:
        SettingsError: the sizes in `env` (`OTEL_BSP_…`) can't be used.
    """

    def __init__(
        self, exporter: SpanExporter, env: Mapping[str, str], *, batch_spans: int = BATCH_SPANS, collector: str = ""
    ) -> None:
        queue_spans = _number("OTEL_BSP_MAX_QUEUE_SIZE", env, QUEUE_SPANS)
        batch_spans = _number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", env, min(batch_spans, queue_spans))
        if batch_spans > queue_spans:
            raise SettingsError(
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE must be at most OTEL_BSP_MAX_QUEUE_SIZE,"
                f" got {batch_spans} and {queue_spans}"
            )
        self._fate = Fate(capacity=queue_spans + batch_spans, collector=collector)
        self._listener = _Listener(self._fate)
        logging.getLogger(EXPORTERS).addHandler(self._listener)
        super().__init__(
            _Counted(exporter, self._fate),
            max_queue_size=queue_spans,
            max_export_batch_size=batch_spans,
            schedule_delay_millis=_number("OTEL_BSP_SCHEDULE_DELAY", env, DELAY_MS),
        )

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self._fate.ended()
        super().on_end(span)

    def shutdown(self) -> None:
        self._fate.is_ending = True
        super().shutdown()  # type: ignore[no-untyped-call]  # the SDK's own

    def tell(self) -> None:
        """Say how many were lost in all; for the end."""
        logging.getLogger(EXPORTERS).removeHandler(self._listener)
        self._fate.tell()


def _number(name: str, env: Mapping[str, str], default: int) -> int:
    text = env.get(name, "").strip() or str(default)
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise SettingsError(f"{name} must be a whole number from 1, got {text!r}")
    return int(text)


class Fate:
    """What became of the spans that ended. `capacity` is how many may be waiting or on their way."""

    def __init__(self, *, capacity: int, collector: str) -> None:
        self.is_ending = False  # then it is left to `tell`
        self._capacity = capacity
        self._collector = f"the collector at {collector}" if collector else "the collector"
        self._lock = threading.Lock()
        self._ended = self._handed_over = self._delivered = 0
        self._met = ""  # what the exporter met when it last failed, if it was told
        self._why = ""  # why the first of them were lost; empty as long as none was seen to be

    def ended(self) -> None:
        with self._lock:
            self._ended += 1
            overflows = self._ended - self._handed_over > self._capacity
        if overflows:
            self._begins("is slower than the spans come")

    def handed_over(self, spans: int) -> None:
        with self._lock:
            self._handed_over += spans

    def delivered(self, spans: int) -> None:
        with self._lock:
            self._delivered += spans
            self._met = ""

    def met(self, what: str) -> None:
        with self._lock:
            self._met = what

    def refused(self) -> None:
        self._begins("doesn't take them")

    def tell(self) -> None:
        if lost := self._ended - self._delivered:
            why = self._why or self._sentence("has not taken them in time")
            _log.warning("spans_lost spans=%d of=%d why=%s", lost, self._ended, json.dumps(why))

    def _begins(self, does: str) -> None:
        with self._lock:
            is_news, self._why = not (self._why or self.is_ending), self._why or self._sentence(does)
        if is_news:
            _log.warning("losing_spans why=%s", json.dumps(self._why))

    def _sentence(self, does: str) -> str:
        """What was met explains all else."""
        return f"{self._collector} doesn't take them: {self._met}" if self._met else f"{self._collector} {does}"


class _Listener(logging.Handler):
    """Learns from an exporter's log what it has met: it tries again by itself, longer than a command waits at its end.

    No text of a server is taken over, and none of the exporter's, which may hold the URL.
    """

    def __init__(self, fate: Fate) -> None:
        super().__init__(logging.WARNING)
        self._fate = fate

    def emit(self, record: logging.LogRecord) -> None:
        for value in record.args if isinstance(record.args, tuple) else ():
            if what := _what(value):
                self._fate.met(what)
                return


def _what(value: Any) -> str | None:
    match value:
        case BaseException():
            return _what_failed(value)
        case Enum():  # a status of gRPC
            return value.name
        case int() if value in _STATUSES.values():
            return f"HTTP {value}"
        case str() if value in _STATUSES:
            return f"HTTP {_STATUSES[value]}"
    return None


def _what_failed(error: BaseException) -> str:
    """The innermost error of a chain, in the words of the system: `Connection refused`; else its class."""
    for _ in range(_MOST_LINKS):
        inner = error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    if isinstance(error, ssl.SSLError):
        return getattr(error, "reason", None) or type(error).__name__
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


class _Counted(SpanExporter):
    def __init__(self, exporter: SpanExporter, fate: Fate) -> None:
        self._exporter = exporter
        self._fate = fate

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._fate.handed_over(len(spans))
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._fate.delivered(len(spans))
            else:
                self._fate.refused()
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return self._exporter.force_flush(timeout_millis)
