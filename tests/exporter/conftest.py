"""A real ledger with jobs in it, and a real sidecar process to ask over HTTP."""

from __future__ import annotations

import http.client
import json
import logging
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from parked.ledger import Ledger, open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, encode_answer, identity
from parked.simulator import Simulator
from parked.verdict import Kind, Reason, Scope
from parked_exporter import metrics

PATIENCE_S = 20.0
TRACE = op.SpanIds("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@dataclass(frozen=True)
class Pipeline:
    """Runs jobs to their end as a runner would, by operations alone."""

    ledger: Ledger
    name: str = "captions"
    model: str = "gemini-3.5-flash"

    def submit(self, job_id: str, *, start_for: int | None = None) -> op.Accepted:
        payload = {"contents": job_id}
        accepted: op.Accepted = self.ledger.record(
            op.Accept(
                self.name,
                "",
                job_id,
                self.model,
                encode(payload),
                identity(payload),
                caller="tests:call",
                start_for=start_for,
                span=TRACE,
            )
        )
        return accepted

    def start(self, job_id: str) -> op.Accepted:
        return self.submit(job_id, start_for=self.ledger.owner_id)

    def succeed(self, job_id: str, *, duration_s: float = 0.3) -> op.JobRow:
        job = self.start(job_id)
        return self._answer(job.row.id, job.attempt or 0, duration_s=duration_s)

    def park(self, job_id: str, *, error_class: str = "exhausted:503", reason: Reason = Reason.OVERLOADED) -> op.JobRow:
        job = self.start(job_id)
        closing = op.Closing(
            Kind.RETRYABLE, reason, Scope.MODEL, 503, rule="http.503", fingerprint="f00d", duration_s=2.0, span=TRACE
        )
        row: op.JobRow = self.ledger.record(
            op.Park(job.row.id, self.ledger.owner_id, job.attempt or 0, closing, error_class=error_class)
        )
        return row

    def replay(self, job_id: str) -> op.JobRow:
        """Run a parked job again, and have it answered."""
        replay_id = self.ledger.record(op.OpenReplay("mend", "me", "{}"))
        row: op.JobRow = self.ledger.record(op.Start(self._row(job_id).id, self.ledger.owner_id, replay_id)).row
        return self._answer(row.id, row.calls, duration_s=0.3)

    def discard(self, job_id: str) -> op.JobRow:
        row: op.JobRow = self.ledger.record(op.Discard(self._row(job_id).id, "no longer wanted"))
        return row

    def live_through_everything(self) -> None:
        """All that moves a metric, once."""
        self.succeed("a-1")
        for number in range(2, 5):
            self.park(f"a-{number}")
        self.replay("a-2")
        self.discard("a-3")
        self.start("a-5")
        self.submit("a-6")
        for operation in (
            op.NoteDelivery(self._row("a-2").id),
            op.SetPause(self.name, self.model, "model_not_found", 1.0, None, self.ledger.owner_id),
            op.Consult((op.GateState(self.model, "rate", closed_for_s=60.0),)),
            op.SetMark(metrics.AUDIT_MARK, metrics.AuditFound(1.0, {}).as_mark()),
            op.SetMark(metrics.task_mark("audit"), 1.0),
        ):
            self.ledger.record(operation)

    def _row(self, job_id: str) -> op.JobRow:
        with self.ledger.ask() as reader:
            (row,) = reader.jobs_by_key(job_id, pipeline=self.name, batch=None)
            return row

    def _answer(self, id: int, attempt: int, *, duration_s: float) -> op.JobRow:
        closing = op.Closing(rule="ok", duration_s=duration_s, tokens_in=10, tokens_out=20, span=TRACE)
        row: op.JobRow = self.ledger.record(
            op.Answer(id, self.ledger.owner_id, attempt, encode_answer({"text": "42"}), closing)
        )
        return row


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'parked.db'}"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """The simulator, where the SDK looks for the API."""
    with Simulator() as simulator:
        monkeypatch.setenv("GEMINI_API_KEY", "k")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", simulator.url)
        yield simulator


@pytest.fixture
def events(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[dict[str, Any]]]:
    """Returns a function that gives the fields of all records of a name."""
    caplog.set_level(logging.DEBUG)

    def named(name: str) -> list[dict[str, Any]]:
        return [record.parked_fields for record in caplog.records if record.getMessage() == name]  # type: ignore[attr-defined]

    return named


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    ledger = open_ledger(url)
    yield ledger
    ledger.close()


@pytest.fixture
def pipeline(ledger: Ledger) -> Pipeline:
    return Pipeline(ledger)


@dataclass
class Sidecar:
    """A running `parked-exporter`. What it logs is kept by event."""

    process: subprocess.Popen[str]
    address: tuple[str, int] = ("", 0)
    lines: queue.Queue[str | None] = field(default_factory=queue.Queue)
    passed_over: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.follower = threading.Thread(target=self.follow, daemon=True)
        self.follower.start()

    def follow(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)
        self.lines.put(None)

    def event(self, name: str, **wanted: Any) -> dict[str, Any]:
        """Wait for the next record of that event (with these fields) and return its fields.

        Records that were passed over in waiting for another event count as to come.
        """
        deadline = time.monotonic() + PATIENCE_S
        for record in self.passed_over:
            if record.get("event") == name and wanted.items() <= record.items():
                self.passed_over.remove(record)
                return record
        while True:
            line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            assert line is not None, f"the sidecar ended without {name}: {self.passed_over}"
            record = json.loads(line) if line.startswith("{") else {"text": line}
            if record.get("event") == name and wanted.items() <= record.items():
                return record
            self.passed_over.append(record)

    def get(
        self, path: str, *, headers: Mapping[str, str] | None = None, method: str = "GET"
    ) -> tuple[int, Mapping[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def scrape(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Return {sample name: {sorted labels without `ledger`: value}}."""
        status, _, body = self.get("/metrics")
        assert status == 200
        samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "ledger"))
                samples.setdefault(sample.name, {})[labels] = sample.value
        return samples

    def until(self, holds: Callable[[dict[str, dict[tuple[tuple[str, str], ...], float]]], bool]) -> None:
        """Scrape until that holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(samples := self.scrape()):
            assert time.monotonic() < deadline, samples

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


StartSidecar = Callable[..., Sidecar]


@pytest.fixture
def start_sidecar(url: str) -> Iterator[StartSidecar]:
    started: list[Sidecar] = []

    def start(*flags: str, ledger: str = url, env: Mapping[str, str] | None = None, code: str | None = None) -> Sidecar:
        """`code` is a program of its own, which calls the command's `main`."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PARKED_")}
        program = ["-m", "parked_exporter.cli"] if code is None else ["-c", code]
        process = subprocess.Popen(
            [sys.executable, *program, "--ledger", ledger, "--listen", "127.0.0.1:0", *flags],
            env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), "PARKED_LOG_FORMAT": "json", **(env or {})},
            stderr=subprocess.PIPE,
            text=True,
        )
        sidecar = Sidecar(process)
        started.append(sidecar)
        url = sidecar.event("sidecar_started")["url"]
        host, _, port = url.removeprefix("http://").partition(":")
        sidecar.address = (host, int(port))
        return sidecar

    yield start
    for sidecar in started:
        if sidecar.process.poll() is None:
            sidecar.process.kill()
        sidecar.process.wait()
        sidecar.follower.join(PATIENCE_S)  # it reads to the end
        assert sidecar.process.stderr is not None
        sidecar.process.stderr.close()


@pytest.fixture
def edit(tmp_path: Path) -> Callable[[str], None]:
    """Change the ledger's file behind its back."""

    def execute(statement: str) -> None:
        with closing(sqlite3.connect(tmp_path / "parked.db")) as connection, connection:
            connection.execute(statement)

    return execute


@pytest.fixture
def locked(ledger: Ledger, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Hold the whole ledger locked, as no program of parked ever does, until the connection is closed."""
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "parked.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN IMMEDIATE")
        yield connection
