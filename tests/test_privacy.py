"""A whole night in which everything quotes what users wrote: where do the key and the texts turn up afterwards?

Real processes: `parked` with a log of everything, the library in a script, an OTLP receiver, the sidecar, and whoever
it notifies.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.simulator import Simulator
from parked.simulator import replies as reply
from parked_exporter.metrics import task_mark
from parked_exporter.notify import PROGRESS_MARK
from servers import free_port, sqlite_only

pytestmark = pytest.mark.slow

API_KEY = "AIza" + "Sy0f8Jq3mXw7Lk2Vt9Rn4Bp6Dc1Hg5Zs8Eu"
STORE_KEY = "c3RvcmUga2V5IHN0b3JlIGtleSBzdG9yZSBrZXkgc3Q="
TOKEN = "a-token-of-the-sidecar-0123456789"
CHANNEL = "xoxb-4711-of-the-chat"  # the secret in the address that is notified
# What users write: a name each that is found nowhere else, and that ends in how the ledger keeps it.
WRITTEN = {
    "quoted": "the patient Wolframsky{} sleeps badly",  # by a server's message
    "echoed": "the patient Ostrowiecka{} asks",  # by the answer, which then breaks the schema
    "answered": "the patient Lindqvistova{} eats",
    "raised": "the patient Vandersloot{} called",  # by an exception of the caller
    "checked": "the patient Pietrzykowski{} said",  # by an exception of the check
    "rejected": "the patient Hallgrimsson{} stands in a line that is no job",
}
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["nobody"]}}, "required": ["name"]}

# What a script of somebody's does with the library, its log of everything on standard error.
SCRIPT = """
import json, logging, sys, parked

logging.basicConfig(level=logging.DEBUG)
ledger = parked.open_ledger()

def call(payload, model):
    if "Vandersloot" in payload["contents"]:
        raise ValueError("can't do: " + payload["contents"])
    return payload["contents"]

def check(answer):
    raise RuntimeError("unheard of: " + answer)

policy = parked.Policy(max_attempts=1)
for id, contents in json.load(sys.stdin).items():
    job = parked.Job(id, model="m", payload={"contents": contents})
    outcome = parked.Runner(ledger, call, pipeline="script", check=check, policy=policy).run(job)
    print(outcome.state, outcome.error_class)
try:
    parked.Runner(ledger, call, pipeline="script").run(parked.Job("raised", model="m", payload={"contents": 1}))
except parked.JobConflict as exc:
    print(exc)
ledger.close()
"""


@pytest.fixture
def notified() -> Iterator[tuple[str, queue.Queue[bytes]]]:
    """A receiver of notifications: its URL for PARKED_NOTIFY, and the bodies that it is sent."""
    bodies: queue.Queue[bytes] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """To nobody."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"json://127.0.0.1:{server.server_port}/{CHANNEL}", bodies
        server.shutdown()


@pytest.mark.parametrize(("store", "log_format"), [("plain", "text"), ("encrypted", "json"), ("none", "text")])
def test_neither_a_key_nor_what_users_wrote_leaves_the_ledger(
    url_on_each_database, tmp_path, collector, notified, files, store, log_format
):
    endpoint, received = collector
    notify_url, notifications = notified
    prompts = {id: written.format(store) for id, written in WRITTEN.items()}
    names = {id: prompt.split()[2].encode() for id, prompt in prompts.items()}
    jobs, schema = tmp_path / "jobs.jsonl", tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    lines: list[dict[str, Any]] = [{"payload": prompts["rejected"]}]
    lines += [{"job_id": id, "payload": {"contents": prompts[id]}} for id in ("quoted", "echoed", "answered")]
    jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown: dict[str, bytes] = {}
    with Simulator() as api:
        api.answers(_answer)
        env = {**os.environ, "GEMINI_API_KEY": API_KEY, "GOOGLE_GEMINI_BASE_URL": api.url}
        env |= {"PARKED_LEDGER": url_on_each_database, "PARKED_TOKEN": TOKEN, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        env |= {"PARKED_STORE": store, "PARKED_STORE_KEYS": STORE_KEY}
        env |= {"PARKED_LOG_LEVEL": "debug", "PARKED_LOG_FORMAT": log_format, "PARKED_NOTIFY": notify_url}

        def ran(name: str, command: list[str], input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
            done = subprocess.run(command, input=input, env=env, cwd=tmp_path, capture_output=True, check=False)
            shown[name] = done.stdout + done.stderr
            return done

        def parked(*words: str) -> subprocess.CompletedProcess[bytes]:
            return ran(" ".join(words), [sys.executable, "-m", "parked.cli", *words])

        flags = ("--model", "gemini-3.5-flash", "--max-attempts", "1", "--debug", "--skip-bad-lines")
        run = parked("run", str(jobs), "--out", str(tmp_path / "out.jsonl"), *flags, "--schema", str(schema), "--json")
        theirs = json.dumps({id: prompts[id] for id in ("raised", "checked")}).encode()
        script = ran("script", [sys.executable, "-c", SCRIPT], theirs)
        for words in (("summary",), ("list", "--json"), ("audit", "--bodies", "--json"), ("replay", "--json")):
            parked(*words)
        with open_ledger(url_on_each_database) as ledger:  # a summary was missed, so that one is made at the start
            ledger.record(op.SetMark(task_mark("summary"), 1_700_000_000.0))
        with _sidecar(env, shown) as address:
            shown["the notification"] = notifications.get(timeout=60)
            _until_sent(url_on_each_database)
            for path in ("/metrics", "/-/ready", "/", "/api/parked", "/api/summary"):
                asked = urllib.request.Request(f"http://{address}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
                with urllib.request.urlopen(asked, timeout=20) as response:
                    shown[path] = response.read()
        causes = parked("causes").stdout
        del shown["causes"]
    shown["spans"] = received().encode()

    counted = json.loads(run.stdout)
    assert (counted["answered"], counted["parked"], counted["rejected"]) == (1, 2, 1), run.stderr
    said = script.stdout.decode().splitlines()
    assert [line.split()[0] for line in said[:2]] == ["parked", "parked"], script.stderr
    assert "was accepted before with another payload" in said[2]
    assert b": parked.job\n" in shown["spans"]
    assert b"4 parked" in shown["the notification"]
    assert b"4 parked" in shown["the sidecar's log"], "the record of the summary"
    secrets = (API_KEY.encode(), STORE_KEY.encode(), TOKEN.encode(), CHANNEL.encode())
    for secret in (*secrets, *names.values()):
        assert [place for place, content in shown.items() if secret in content] == []

    ledger = files()
    assert [secret for secret in secrets if secret in ledger] == []
    kept = {id for id, name in names.items() if name in ledger}
    assert kept == (names.keys() - {"rejected"} if store == "plain" else set())
    assert (names["quoted"] in causes) is (store != "none")  # a message is shown where it is asked for, and only there


@sqlite_only
def test_messages_leave_the_ledger_where_somebody_wants_them_to_and_keys_do_not(
    url_on_each_database, tmp_path, notified
):
    notify_url, notifications = notified
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"job_id": "a", "payload": {"contents": "the patient Wolframsky"}}))
    shown: dict[str, bytes] = {}
    with Simulator() as api:
        api.answers(_answer)
        env = {**os.environ, "GEMINI_API_KEY": API_KEY, "GOOGLE_GEMINI_BASE_URL": api.url, "PARKED_TOKEN": TOKEN}
        env |= {"PARKED_LEDGER": url_on_each_database, "PARKED_NOTIFY": notify_url, "PARKED_EXPORT_MESSAGES": "true"}
        env |= {"PARKED_LOG_FORMAT": "json"}

        def parked(*words: str, **more: str) -> bytes:
            command = [sys.executable, "-m", "parked.cli", *words]
            done = subprocess.run(command, env=env | more, cwd=tmp_path, capture_output=True, check=False)
            return done.stdout + done.stderr

        shown["spans"] = parked("run", "jobs.jsonl", "--model", "m", OTEL_TRACES_EXPORTER="console")
        shown["summary"] = parked("summary")
        with open_ledger(url_on_each_database) as ledger:
            ledger.record(op.SetMark(task_mark("summary"), 1_700_000_000.0))
        with _sidecar(env, shown) as address:
            shown["the notification"] = notifications.get(timeout=60)
            for path in ("/api/summary", "/metrics"):
                asked = urllib.request.Request(f"http://{address}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
                with urllib.request.urlopen(asked, timeout=20) as response:
                    shown[path] = response.read()

    metrics = shown.pop("/metrics")
    assert {place for place, content in shown.items() if b"Wolframsky" not in content} == set()
    assert b'"parked.failure.message": "This can' in shown["spans"]
    assert [place for place, content in shown.items() if API_KEY.encode() in content] == []
    assert b"Wolframsky" not in metrics


@sqlite_only
def test_prompts_and_answers_are_on_spans_where_opentelemetrys_variable_says_so_and_nowhere_else(
    url_on_each_database, tmp_path, collector
):
    endpoint, received = collector
    asked, answered = "the patient Lindqvistova eats", f"the patient Ostrowiecka asks, by {API_KEY}"
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"job_id": "a", "payload": {"contents": asked}}))
    with Simulator() as api:
        api.answers(lambda _: reply.text(answered))
        env = {**os.environ, "GEMINI_API_KEY": API_KEY, "GOOGLE_GEMINI_BASE_URL": api.url}
        env |= {"PARKED_LEDGER": url_on_each_database, "PARKED_LOG_LEVEL": "debug"}
        env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}
        command = [sys.executable, "-m", "parked.cli", "run", "jobs.jsonl", "--model", "m", "--out", "out.jsonl"]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
    spans = received()

    assert asked in spans
    assert "the patient Ostrowiecka asks, by [removed]" in spans
    assert API_KEY not in spans
    assert [name for name in ("Lindqvistova", "Ostrowiecka", API_KEY) if name in done.stdout + done.stderr] == []


def _until_sent(url: str) -> None:
    """Wait until the sidecar has noted in the ledger that everybody was notified, which it logs then."""
    deadline, pause = time.monotonic() + 60, threading.Event()
    with open_ledger(url) as ledger:
        while time.monotonic() < deadline:
            with ledger.ask() as reader:
                if (reader.mark(PROGRESS_MARK) or {}).get("done"):
                    return
            pause.wait(0.05)
    raise AssertionError("the notification was sent, and that is noted nowhere")


def _answer(request: Any) -> Any:
    if "Wolframsky" in request.text:
        return reply.invalid_request(f"This can't be done with key {API_KEY}: {request.text}")
    if "Ostrowiecka" in request.text:
        return reply.text(json.dumps({"name": request.text}))
    return reply.text(json.dumps({"name": "nobody", "said": request.text}))


@contextlib.contextmanager
def _sidecar(env: dict[str, str], shown: dict[str, bytes]) -> Iterator[str]:
    listen = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "parked_exporter.cli", "--listen", listen, "--debug"]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
    assert process.stderr is not None
    log = b""
    try:
        for line in process.stderr:
            log += line
            if listen.encode() in line:
                break
        yield listen
    finally:
        process.terminate()
        log += process.stderr.read()
        process.stderr.close()
        assert process.wait(20) == 0
        shown["the sidecar's log"] = log
