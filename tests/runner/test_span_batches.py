"""Spans on their way to a real OTLP receiver that is slow, refuses them, or hangs."""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from pages import DOCS
from parked import tracing
from parked.errors import SettingsError
from parked.span_batches import SpanBatches

PATIENCE_S = 30.0
SMALL = {"OTEL_BSP_MAX_QUEUE_SIZE": "16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}


class Collector:
    """Receives OTLP over HTTP. It answers with `status` after `takes_s`, and not before it `may_answer`."""

    def __init__(self) -> None:
        self.takes_s = 0.0
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = threading.Event()
        self.spans = self.largest = 0  # the largest: of the spans in one request
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked.set()
                collector.may_answer.wait(PATIENCE_S)
                time.sleep(collector.takes_s)
                if collector.status == 200:
                    request = ExportTraceServiceRequest.FromString(body)
                    scopes = [scope for resource in request.resource_spans for scope in resource.scope_spans]
                    spans = sum(len(scope.spans) for scope in scopes)
                    collector.spans, collector.largest = collector.spans + spans, max(collector.largest, spans)
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture
def said(caplog):
    """Returns a function that gives what parked has logged of spans, and the numbers in it."""
    caplog.set_level(logging.WARNING)

    def said():
        messages = [record.getMessage() for record in caplog.records if record.name == "parked.telemetry"]
        return [
            (message.split()[0], [int(number) for number in re.findall(r"=(\d+)", message)]) for message in messages
        ]

    return said


def provider_to(collector, env=None, **more):
    batches = SpanBatches(OTLPSpanExporter(endpoint=collector.url), env or {})
    provider = TracerProvider(shutdown_on_exit=False, **more)
    provider.add_span_processor(batches)
    return provider, batches


def end_spans(provider, number):
    tracer = provider.get_tracer("test")
    for _ in range(number):
        tracer.start_span("parked.job").end()


def test_a_collector_that_takes_250_ms_gets_all_of_many_spans_at_once(collector, said):
    collector.takes_s = 0.25
    provider, batches = provider_to(collector)

    end_spans(provider, 6000)
    provider.shutdown()
    batches.tell()

    assert collector.spans == 6000
    assert said() == []


@pytest.mark.parametrize(("content", "largest"), [("no_content", 300), ("span_only", 128)])
def test_spans_that_tell_prompts_and_answers_go_in_requests_that_collectors_take(
    collector, monkeypatch, content, largest
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", content)
    providers: list[TracerProvider] = []
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", providers.append)

    with tracing.tracing("parked"):
        end_spans(providers[0], 300)

    assert (collector.spans, collector.largest) == (300, largest)


def test_spans_that_a_collector_refuses_are_counted_and_said_once_when_it_begins_and_once_at_the_end(collector, said):
    collector.status = 400
    provider, batches = provider_to(collector, SMALL)

    for _ in range(3):
        end_spans(provider, 5)
        provider.force_flush()
    while_it_runs = said()
    provider.shutdown()
    batches.tell()

    assert while_it_runs == [("losing_spans", [])]
    assert said() == [*while_it_runs, ("spans_lost", [15, 15])]


def test_spans_that_are_refused_at_the_end_are_said_with_the_reason(collector, said, caplog):
    collector.status = 400
    provider, batches = provider_to(collector)

    end_spans(provider, 3)
    provider.shutdown()
    batches.tell()

    assert said() == [("spans_lost", [3, 3])]
    assert 'why="the collector doesn\'t take them: HTTP 400"' in caplog.text


@pytest.fixture
def lost_at(caplog, monkeypatch):
    """Returns a function that gives what is said of spans which a command sends to a host."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")  # for all tries of a request
    providers: list[TracerProvider] = []
    monkeypatch.setattr("opentelemetry.trace.set_tracer_provider", providers.append)

    def lost_at(host):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://user:s3cret@{host}/v1/s3cret?key=s3cret")
        with tracing.tracing("parked"):
            end_spans(providers[0], 3)
        return [record.getMessage() for record in caplog.records if record.name == "parked.telemetry"]

    return lost_at


def test_a_collector_that_is_not_there_is_said_with_its_address_and_what_was_met(lost_at):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host = f"127.0.0.1:{taken.getsockname()[1]}"

    assert lost_at(host) == [
        f'spans_lost spans=3 of=3 why="the collector at {host} doesn\'t take them: Connection refused"'
    ]


def test_a_collector_that_refuses_spans_is_said_with_its_address_and_the_status(collector, lost_at):
    collector.status = 401
    host = collector.url.split("/")[2]

    assert lost_at(host) == [f'spans_lost spans=3 of=3 why="the collector at {host} doesn\'t take them: HTTP 401"']


class Rpc(Enum):  # as grpc has it
    UNAVAILABLE = (14, "unavailable")


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        ((ssl.SSLCertVerificationError(1, "quotes its subject"), 1.0), "take them: SSLCertVerificationError"),
        ((socket.gaierror(-2, "Name or service not known"), 1.0), "take them: Name or service not known"),
        ((TimeoutError("quotes the URL"), 1.0), "take them: TimeoutError"),
        ((Rpc.UNAVAILABLE, 1.0), "take them: UNAVAILABLE"),
        (("Service Unavailable", 1.0), "take them: HTTP 503"),
        (("Whatever a server says", 1.0), "take them"),
        (("unknown", None), "take them"),
    ],
)
def test_what_an_exporter_met_is_said_without_texts_of_servers_and_urls(arguments, ends, caplog):
    class Failing(SpanExporter):
        def export(self, spans):
            logging.getLogger("opentelemetry.exporter.otlp").warning("Transient error %s, retrying in %s", *arguments)
            return SpanExportResult.FAILURE

    batches = SpanBatches(Failing(), {}, collector="otlp.example:4317")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(batches)

    end_spans(provider, 1)
    provider.shutdown()
    batches.tell()

    assert caplog.messages[-1].endswith(f'why="the collector at otlp.example:4317 doesn\'t {ends}"')


def test_spans_for_which_there_is_no_room_are_counted_and_said_once_when_it_begins_and_once_at_the_end(collector, said):
    collector.may_answer.clear()
    provider, batches = provider_to(collector, SMALL)

    end_spans(provider, 4)
    assert collector.asked.wait(PATIENCE_S)
    end_spans(provider, 96)
    while_it_runs = said()
    collector.may_answer.set()
    provider.shutdown()
    batches.tell()

    assert while_it_runs == [("losing_spans", [])]
    assert said() == [*while_it_runs, ("spans_lost", [100 - collector.spans, 100])]
    assert collector.spans == 20  # on its way, and waiting


def test_spans_that_are_not_sampled_are_none_that_could_be_lost(collector, said):
    provider, batches = provider_to(collector, sampler=ALWAYS_OFF)

    end_spans(provider, 10)
    provider.shutdown()
    batches.tell()

    assert said() == []


def test_a_collector_that_hangs_keeps_a_command_from_its_end_for_a_while_only(collector, said, caplog, monkeypatch):
    collector.may_answer.clear()
    monkeypatch.setattr(tracing, "END_PATIENCE_S", 0.2)
    provider, batches = provider_to(collector)
    end_spans(provider, 7)
    began = time.monotonic()

    tracing.shut_down(provider, batches)

    assert time.monotonic() - began < 5.0  # its own patience is 10 s
    assert said() == [("spans_lost", [7, 7])]
    assert 'why="the collector has not taken them in time"' in caplog.text
    collector.may_answer.set()


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "many"}, "OTEL_BSP_MAX_QUEUE_SIZE must be a whole number from 1, got 'many'"),
        ({"OTEL_BSP_SCHEDULE_DELAY": "0"}, "OTEL_BSP_SCHEDULE_DELAY must be a whole number from 1, got '0'"),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9000"}, "must be at most OTEL_BSP_MAX_QUEUE_SIZE, got 9000 and 8192"),
    ],
)
def test_a_size_that_makes_no_sense_is_a_sentence(collector, env, sentence):
    with pytest.raises(SettingsError, match=re.escape(sentence)):
        provider_to(collector, env)


def test_a_smaller_queue_alone_is_one_that_works(collector):
    provider, _ = provider_to(collector, {"OTEL_BSP_MAX_QUEUE_SIZE": "100"})

    end_spans(provider, 50)
    provider.shutdown()

    assert collector.spans == 50


@pytest.mark.slow
def test_a_program_of_one_s_own_sends_its_spans_by_the_lines_of_the_page_and_none_without_them(collector, tmp_path):
    page = (DOCS / "operating.md").read_text("utf-8").partition("### Traces of your own program")[2]
    (lines,) = re.findall(r"^```python\n(.*?)^```", page.partition("\n### ")[0], re.MULTILINE | re.DOTALL)
    program = (
        "import parked\n"
        "runner = parked.Runner(parked.open_ledger(), lambda payload, model: 'hello')\n"
        "assert runner.run(parked.Job('a-1', model='m', payload={})).state == 'succeeded'\n"
    )
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url.removesuffix("/v1/traces")}
    received = []

    for script in (program, lines + program.replace("a-1", "a-2")):
        subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, check=True, timeout=PATIENCE_S)
        received.append(collector.spans)

    assert received == [0, 2]
