"""Spans that get to a collector which takes its time, and those that don't.

    python bench/telemetry.py [--seconds 30] [--rate 1000] [--takes 0.25]

`parked run` makes no-op attempts at that rate, each with a span for its job and one for itself, and an OTLP receiver in
a process of its own takes so many seconds for each request. Next to it the same with the sizes that OpenTelemetry's SDK
has by itself, and with a collector that is far too slow: what is lost there must be what the command says.

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
        began = time.monotonic()
        ran = subprocess.run(
            [sys.executable, "-m", "parked.cli", *words, "--out", "answers.jsonl"],
            cwd=folder, env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
        if ran.returncode != 0:
            raise SystemExit(f"parked run failed:\n{ran.stderr[-3000:]}")
        received, _ = receiver.communicate()
        said = re.search(r"spans_lost spans=(\d+)", ran.stderr)
        return Result(seconds, int(received), int(said[1]) if said else 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rate", type=int, default=1000, help="attempts a second")
    parser.add_argument("--takes", type=float, default=0.25, help="seconds that the collector takes for a request")
    parser.add_argument("--collector", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.collector is not None:
        receive(args.collector)
        return 0
    print_machine()
    jobs = args.seconds * args.rate
    wanted = jobs * SPANS_A_JOB
    cases = [
        Case("parked", args.takes, {}),
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
    return 0 if results["parked"].received == wanted and is_told else 1


if __name__ == "__main__":
    sys.exit(main())
