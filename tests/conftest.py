"""What many tests need: a clock that never waits, a real ledger, the simulator, a clean environment."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import pytest

from parked.job import State
from parked.ledger import Ledger, open_ledger, shared
from parked.ledger.operations import SetMark
from parked.ledger.store import AttemptRow
from parked.simulator import Simulator

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from parked.gemini import Gemini

pytest_plugins = ("servers", "disks", "containers")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Who works on PostgreSQL is slow: `make test-quick` is for machines without it, too."""
    for item in items:
        asks_for = getattr(item, "fixturenames", ())
        given = getattr(item, "callspec", None)
        if "postgres" in asks_for or (given is not None and "postgres" in given.params.values()):
            item.add_marker("slow")


class ManualClock:
    """Time that passes only by being slept through; each sleep is kept."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.slept_s: list[float] = []

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, wait_s: float, stop: threading.Event) -> None:
        self._pass(wait_s)

    async def asleep(self, wait_s: float) -> None:
        self._pass(wait_s)
        await asyncio.sleep(0)

    def _pass(self, wait_s: float) -> None:
        self.slept_s.append(round(wait_s, 3))
        self.now += wait_s


def settle(ledger: Ledger) -> None:
    """Wait until everything that was handed to the ledger so far is committed, and then what that handed back."""
    for _ in range(2):
        ledger.record(SetMark("settled", True))


@pytest.fixture
def states(ledger: Ledger) -> Callable[[], dict[State, int]]:
    """Returns a function that counts the jobs by state, and checks that the ledger's law holds."""

    def count() -> dict[State, int]:
        settle(ledger)
        with ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            return {state: jobs for (_, state), jobs in reader.states().items()}

    return count


@pytest.fixture(scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with the certificate of one authority."""
    bundle, end = Path(certifi.where()).read_text("utf-8"), "-----END CERTIFICATE-----\n"
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(bundle[bundle.index("-----BEGIN") : bundle.index(end)] + end, "utf-8")
    return str(file)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_authority: str) -> None:
    """No test sees the settings, keys or exporters of whoever runs it, nor leaves a ledger in the working folder."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PARKED_", "OTEL_", "GEMINI_", "GOOGLE_")):
            monkeypatch.delenv(name)
    # The SDK reads all authorities for each of its clients, which takes 70 ms; the simulator speaks no TLS.
    monkeypatch.setenv("SSL_CERT_FILE", one_authority)
    for name in ("SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", *(f"{what}_proxy" for what in ("http", "https", "all", "no"))):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that ran in this process leaves no handler behind: its stream is the test's, and closed after it."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(autouse=True)
def _shared_ledgers_are_closed() -> Iterator[None]:
    """What a test has opened for its whole process is gone with its folder."""
    yield
    for ledger in shared._open.values():
        ledger.close()
    shared._open.clear()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ledger_url(tmp_path: Path) -> str:
    """Where `ledger` is: on SQLite, unless a module says otherwise (`url_on_each_database`)."""
    return f"sqlite:///{tmp_path}/parked.db"


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with open_ledger(ledger_url) as opened:
        yield opened


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator() as running:
        yield running


@pytest.fixture
def gemini(simulator: Simulator) -> Iterator[Gemini]:
    """The real adapter over the real SDK, pointed at the simulator."""
    from google import genai  # takes a second
    from google.genai import types

    from parked.gemini import Gemini

    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=simulator.url))
    yield Gemini(client)
    client.close()


@pytest.fixture
def exported() -> InMemorySpanExporter:
    """The spans that the `provider`'s tracers have ended."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return InMemorySpanExporter()


@pytest.fixture
def provider(exported: InMemorySpanExporter) -> Iterator[TracerProvider]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    yield provider
    provider.shutdown()


@pytest.fixture
def scripted() -> Callable[..., Callable[[Any, str], Any]]:
    """Returns a function that makes a caller which gives these outcomes in their order; exceptions are raised."""

    def make(*outcomes: Any) -> Callable[[Any, str], Any]:
        waiting = iter(outcomes)

        def call(payload: Any, model: str) -> Any:
            outcome = next(waiting)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        return call

    return make


@pytest.fixture
def attempts(ledger: Ledger) -> Callable[[str], list[AttemptRow]]:
    """Returns a function that reads the attempts of a job."""

    def read(job_id: str) -> list[AttemptRow]:
        settle(ledger)
        with ledger.ask() as reader:
            (row,) = reader.jobs_by_key(job_id, pipeline=None, batch=None)
            return reader.attempts(row.id)

    return read
