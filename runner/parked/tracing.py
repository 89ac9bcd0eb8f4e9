"""OpenTelemetry's SDK for the commands and the sidecar. A program that uses the library sets up its own, or none."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from parked.errors import SettingsError
from parked.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_log = logging.getLogger("parked.telemetry")


def set_up(service_name: str) -> Callable[[], None]:
    """Set the SDK up from the standard `OTEL_*` variables, if they ask for traces. Returns what flushes and ends it.

    Raises:
        SettingsError: an exporter or protocol that isn't known or isn't installed.

    Traces are asked for by `OTEL_TRACES_EXPORTER` (`otlp`, `console`) or by naming an OTLP endpoint.
    """
    env = os.environ
    endpoint = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    exporter_name = env.get("OTEL_TRACES_EXPORTER", "otlp" if endpoint else "none").strip().lower()
    if exporter_name == "none" or env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return lambda: None

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create(
        {"service.name": env.get("OTEL_SERVICE_NAME") or service_name, "service.version": __version__}
    )
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter_name)))
    trace.set_tracer_provider(provider)
    return lambda: _shut_down(provider)


def _shut_down(provider: TracerProvider) -> None:
    """Export what is left. An exporter may raise anything; what the command has done stands."""
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


def _exporter(name: str) -> Any:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)  # standard output is for data
    if name != "otlp":
        raise SettingsError(f"OTEL_TRACES_EXPORTER must be otlp, console or none, got {name!r}")
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol == "grpc":
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
