"""OpenTelemetry's SDK for the commands and the sidecar. A program that uses the library sets up its own, or none."""

from __future__ import annotations

import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from opentelemetry import trace

from parked.errors import SettingsError
from parked.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from parked.span_batches import SpanBatches

# A collector that is down may not keep a command from its end for the 10 s of each of its tries. One that takes 250 ms
# for a batch is done with a full queue in two.
END_PATIENCE_S: Final = 5.0
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

_log = logging.getLogger("parked.telemetry")


def set_up(service_name: str) -> Callable[[], None]:
    """Set the SDK up from the standard `OTEL_*` variables, if they ask for traces. Returns what flushes and ends it.

    Raises:
        SettingsError: an exporter or protocol that isn't known or isn't installed.

    Traces are asked for by `OTEL_TRACES_EXPORTER` (`otlp`, `console`) or by naming an OTLP endpoint.
    """
    exporter_name = _exporter_asked_for()
    if exporter_name is None:
        return lambda: None

    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider

    from parked.span_batches import BATCH_SPANS, CONTENT_BATCH_SPANS, EXPORTERS, SpanBatches
    from parked.telemetry import content_wanted

    own = {"service.name": service_name, "service.version": __version__, "service.instance.id": str(uuid.uuid4())}
    given = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    resource = Resource.create({name: value for name, value in own.items() if name not in given})
    # Who ends the provider decides how long that may take; at the exit nobody would.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    batch_spans = CONTENT_BATCH_SPANS if content_wanted() else BATCH_SPANS
    collector = _collector() if exporter_name == "otlp" else ""
    batches = SpanBatches(_exporter(exporter_name), os.environ, batch_spans=batch_spans, collector=collector)
    provider.add_span_processor(batches)
    trace.set_tracer_provider(provider)
    if not _log.isEnabledFor(logging.DEBUG):
        # From here on they would tell of each batch that fails, and of each try; `SpanBatches` says once what is lost.
        logging.getLogger("opentelemetry.sdk").setLevel(logging.CRITICAL)
        logging.getLogger(EXPORTERS).propagate = False
        logging.getLogger(EXPORTERS).addHandler(logging.NullHandler())  # without any, warnings go to standard error
    return lambda: shut_down(provider, batches)


def check() -> None:
    """See whether the SDK could be set up.

    Raises:
        SettingsError: it couldn't, as in `set_up`.
    """
    if (name := _exporter_asked_for()) is not None:
        _exporter(name)


def shut_down(provider: TracerProvider, batches: SpanBatches) -> None:
    """Export what is left, for a while. An exporter may raise anything; what the command has done stands."""
    ending = threading.Thread(target=_end, args=(provider,), name="parked-spans", daemon=True)
    ending.start()
    ending.join(END_PATIENCE_S)
    batches.tell()


def _end(provider: TracerProvider) -> None:
    try:
        provider.shutdown()
    except Exception as exc:  # noqa: BLE001 - as above
        _log.warning("telemetry_not_ended error=%s", type(exc).__name__)


@contextmanager
def tracing(service_name: str) -> Iterator[None]:
    """The same for as long as a command runs."""
    shut_down = set_up(service_name)
    try:
        yield
    finally:
        shut_down()


def _exporter_asked_for() -> str | None:
    env = os.environ
    name = env.get("OTEL_TRACES_EXPORTER", "otlp" if _first_of(ENDPOINTS) else "none").strip().lower()
    return None if name == "none" or env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" else name


def _first_of(variables: Sequence[str]) -> str | None:
    return next((value for name in variables if (value := os.environ.get(name))), None)


def _collector() -> str:
    """The host and port that spans go to; never a user, path or query, which may hold a token."""
    endpoint = _first_of(ENDPOINTS) or ("localhost:4317" if _first_of(PROTOCOLS) == "grpc" else "localhost:4318")
    try:
        return urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").netloc.rpartition("@")[2]
    except ValueError:  # said by the exporter
        return ""


def _exporter(name: str) -> Any:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)  # standard output is for data
    if name != "otlp":
        raise SettingsError(f"OTEL_TRACES_EXPORTER must be otlp, console or none, got {name!r}")
    if _first_of(PROTOCOLS) == "grpc":
        try:
            grpc = import_module("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
        except ImportError:
            raise SettingsError(
                "OTEL_EXPORTER_OTLP_PROTOCOL=grpc needs a package that is not installed:"
                " pip install opentelemetry-exporter-otlp-proto-grpc, or use http/protobuf"
            ) from None
        return grpc.OTLPSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
