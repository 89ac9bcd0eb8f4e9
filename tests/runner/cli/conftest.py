"""A real ledger with a story in it, and the `parked` command run in this process."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from parked.cli import main
from parked.errors import LedgerMissing
from parked.ledger import Ledger, open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.simulator import Simulator
from parked.verdict import MEANINGS, Reason


class Said(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def url(url_on_each_database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The ledger that commands use unless told otherwise. It doesn't exist yet."""
    monkeypatch.setenv("PARKED_LEDGER", url_on_each_database)
    # A service that fails is here to have jobs parked; that outages are waited for is tested in test_outages.py.
    monkeypatch.setenv("PARKED_MAX_OUTAGE_S", "0")
    return url_on_each_database


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that sets how texts are kept from now on."""

    def keep(store: str, *keys: str) -> None:
        monkeypatch.setenv("PARKED_STORE", store)
        monkeypatch.setenv("PARKED_STORE_KEYS", ",".join(keys))
        if not keys:
            monkeypatch.delenv("PARKED_STORE_KEYS")

    return keep


@pytest.fixture
def no_ledger(url: str) -> Callable[[], bool]:
    """Returns a function that says whether there still is none."""

    def missing() -> bool:
        try:
            open_ledger(url, create=False).close()
        except LedgerMissing:
            return True
        return False

    return missing


@pytest.fixture
def parked(capsys: pytest.CaptureFixture[str], url: str) -> Callable[..., Said]:
    """Returns a function that runs a command and returns its status and what it wrote."""

    def run(*words: str) -> Said:
        status = main(words)
        return Said(status, *capsys.readouterr())

    return run


class Story:
    """Brings jobs into the states that a run would bring them into."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def pending(self, job_id: str, *, pipeline: str = "nightly", batch: str = "", payload: Any = "p") -> op.JobRow:
        return self._accept(job_id, pipeline, batch, payload, start_for=None).row

    def running(self, job_id: str, *, pipeline: str = "nightly", batch: str = "", payload: Any = "p") -> op.JobRow:
        accepted = self._accept(job_id, pipeline, batch, payload, start_for=self.ledger.owner_id)
        assert accepted.attempt == 1
        return accepted.row

    def answered(self, job_id: str, answer: Any = None, **where: Any) -> op.JobRow:
        row = self.running(job_id, **where)
        body = encode(gemini_answer("42") if answer is None else answer)
        closing = op.Closing(tokens_in=3, tokens_out=5, duration_s=0.5)
        answered: op.JobRow = self.ledger.record(op.Answer(row.id, self.ledger.owner_id, 1, body, closing))
        return answered

    def parked(
        self,
        job_id: str,
        *,
        error_class: str = "exhausted:503",
        reason: Reason = Reason.OVERLOADED,
        fingerprint: str = "f503",
        message: str = "The model is overloaded.",
        **where: Any,
    ) -> op.JobRow:
        row = self.running(job_id, **where)
        closing = op.Closing(
            kind=MEANINGS[reason].kind,
            reason=reason,
            scope=MEANINGS[reason].scope,
            status=int(error_class.partition(":")[2]),
            rule="http.test",
            fingerprint=fingerprint,
            message=message,
            span=op.SpanIds("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"),
        )
        parked: op.JobRow = self.ledger.record(op.Park(row.id, self.ledger.owner_id, 1, closing, error_class))
        return parked

    def _accept(self, job_id: str, pipeline: str, batch: str, payload: Any, *, start_for: int | None) -> op.Accepted:
        accept = op.Accept(pipeline, batch, job_id, "m", encode(payload), identity(payload), start_for=start_for)
        accepted: op.Accepted = self.ledger.record(accept)
        return accepted


@pytest.fixture
def telling(url: str) -> Callable[[], AbstractContextManager[Story]]:
    """Returns a function that opens the ledger as the settings are then, for a story."""

    @contextmanager
    def tell() -> Iterator[Story]:
        with open_ledger(url) as ledger:
            yield Story(ledger)

    return tell


@pytest.fixture
def story(telling: Callable[[], AbstractContextManager[Story]]) -> Iterator[Story]:
    with telling() as story:
        yield story


def gemini_answer(text: str) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]}


@pytest.fixture
def shell() -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Returns a function that runs a line of bash, for what only a real process shows."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """The simulator, where the SDK looks for the API."""
    with Simulator() as simulator:
        monkeypatch.setenv("GEMINI_API_KEY", "k")
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", simulator.url)
        yield simulator


@pytest.fixture
def jobs(tmp_path: Path) -> Callable[..., str]:
    """Returns a function that writes a job file of these prompts and returns its path."""

    def write(*prompts: str, name: str = "jobs.jsonl", prefix: str = "job") -> str:
        path = tmp_path / name
        lines = [
            {"job_id": f"{prefix}-{n}", "model": "gemini-3.5-flash", "payload": {"contents": prompt}}
            for n, prompt in enumerate(prompts)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    return write
