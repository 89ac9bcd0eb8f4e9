"""OpenTelemetry's SDK for the commands and the sidecar. A program that uses the library sets up its own, or none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from opentelemetry import trace

from parked.errors import SettingsError
from parked.version import __version__


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
    return provider.shutdown


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
