"""Spans that get to a collector which takes its time, and those that don't.

    python bench/telemetry.py [--seconds 30] [--rate 1000] [--takes 0.25]

`parked run` makes no-op attempts at that rate, each with a span for its job and one for itself, and an OTLP receiver in
a process of its own takes so many seconds for each request. Next to it the same spans without jobs behind them, since
the ledger keeps the rate down; then with the sizes that OpenTelemetry's SDK has by itself, and with a collector that is
far too slow: what is lost there must be what the command says.

Ends with status 1 if parked lost a span to the first collector, or said another number than was lost.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import NamedTuple

from benchlib import HERE, environment, print_machine, table

SPANS_A_JOB = 2
SDK_SIZES = {"OTEL_BSP_MAX_QUEUE_SIZE": "2048", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "512"}
FAR_TOO_SLOW = 16  # times


class Case(NamedTuple):
    name: str
    takes_s: float
    env: dict[str, str]
    spans_alone: bool = False


class Result(NamedTuple):
    seconds: float
    received: int
    said_lost: int


def receive(takes_s: float) -> None:
    """Be the collector until standard input is closed; print the port, and at the end how many spans came."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received, lock = 0, Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal received
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(takes_s)
            request = ExportTraceServiceRequest.FromString(body)
            with lock:
                received += sum(len(scope.spans) for part in request.resource_spans for scope in part.scope_spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    print(received, flush=True)


@contextmanager
def collector(takes_s: float) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--collector", str(takes_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def measure(case: Case, *, jobs: int, rate: int) -> Result:
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder, collector(case.takes_s) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        with (Path(folder) / "jobs.jsonl").open("w") as lines:
            for number in range(jobs):
                lines.write(json.dumps({"job_id": f"j-{number}", "model": "m", "payload": number}) + "\n")
        env = environment()
        env["PYTHONPATH"] += os.pathsep + str(HERE)
        env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", **case.env}
        words = ["run", "jobs.jsonl", "--call", "noop:answer", "--concurrency", "64", "--rpm", str(rate * 60)]
        command = [sys.executable, "-m", "parked.cli", *words, "--out", "answers.jsonl"]
        if case.spans_alone:
            command = [sys.executable, __file__, "--emit", "--rate", str(rate), "--seconds", str(jobs // rate)]
        began = time.monotonic()
        ran = subprocess.run(
            command,
            cwd=folder, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        if ran.returncode != 0:
            raise SystemExit(f"{case.name} failed:\n{ran.stderr[-3000:]}")
        received, _ = receiver.communicate()
        said = re.search(r"spans_lost spans=(\d+)", ran.stderr)
        return Result(seconds, int(received), int(said[1]) if said else 0)


def emit(seconds: int, rate: int) -> None:
    """Begin and end the spans of jobs with one attempt each, at that rate, as a run does."""
    from parked.ledger import open_ledger
    from parked.ledger import operations as op
    from parked.ledger.codec import encode, identity
    from parked.telemetry import JobName, Spans
    from parked.tracing import tracing

    with open_ledger("sqlite:///one.db") as ledger:
        accept = op.Accept("p", "", "j", "m", encode("p"), identity("p"), start_for=ledger.owner_id)
        row = ledger.record(accept).row
        answer = op.Answer(row.id, ledger.owner_id, 1, encode("a"), op.Closing(tokens_in=3, tokens_out=5))
        answered = ledger.record(answer)
    with tracing("parked"):
        spans, began = Spans(), time.monotonic()
        for number in range(seconds * rate):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            job = spans.job(JobName("p", "", f"j-{number}", "m"))
            with job.asking(1, None):
                pass
            job.recorded(answer, ("STOP",))
            job.end(answered)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rate", type=int, default=1000, help="attempts a second")
    parser.add_argument("--takes", type=float, default=0.25, help="seconds that the collector takes for a request")
    parser.add_argument("--collector", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--emit", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.emit:
        emit(args.seconds, args.rate)
        return 0
    if args.collector is not None:
        receive(args.collector)
        return 0
    print_machine()
    jobs = args.seconds * args.rate
    wanted = jobs * SPANS_A_JOB
    cases = [
        Case("parked", args.takes, {}),
        Case("parked, the spans alone", args.takes, {}, spans_alone=True),
        Case("the SDK's own sizes", args.takes, SDK_SIZES),
        Case("parked, and a collector that is far too slow", args.takes * FAR_TOO_SLOW, {}),
    ]
    results = {case.name: measure(case, jobs=jobs, rate=args.rate) for case in cases}
    table(
        ["case", "attempts/s", "spans", "lost", "lost as the log says"],
        [
            [
                name,
                f"{jobs / found.seconds:,.0f}",
                f"{wanted:,}",
                f"{wanted - found.received:,}",
                f"{found.said_lost:,}",
            ]
            for name, found in results.items()
        ],
    )
    is_told = all(wanted - found.received == found.said_lost for found in results.values())
    lost_none = all(results[name].received == wanted for name in ("parked", "parked, the spans alone"))
    return 0 if lost_none and is_told else 1


if __name__ == "__main__":
    sys.exit(main())
