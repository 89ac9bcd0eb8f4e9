"""A whole night through what is real: `parked run` over the SDK, SQLite on disk, an OTLP receiver, the sidecar."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections import Counter

import pytest

from parked.simulator import Simulator
from parked.simulator import replies as reply
from servers import free_port

pytestmark = pytest.mark.slow

# What each tenth job meets, and the class it must end in; None: it is answered in the end.
FATES = {
    "bad field": (reply.invalid_request(), "permanent:400"),
    "gone file": (reply.file_missing(), "permanent:403"),
    "no such model": (reply.model_not_found(), "permanent:404"),
    "too long": (reply.too_large(), "permanent:400"),
    "blocked": (reply.blocked_prompt("PROHIBITED_CONTENT"), "permanent:prompt_blocked"),
    "withheld": (reply.stopped("SAFETY"), "permanent:answer_blocked"),
    "cut off": (reply.stopped("MAX_TOKENS", text="This secur"), "permanent:answer_truncated"),
    "recited": (reply.stopped("RECITATION"), "exhausted:recitation"),
    "nothing": (reply.no_candidates(), "exhausted:empty_answer"),
    "only thoughts": (reply.thoughts_only(), "exhausted:empty_answer"),
    "null": (reply.null_body(), "exhausted:empty_answer"),
    "error in a 200": (reply.error_under_200(), "exhausted:503"),
    "server error": (reply.server_error(), "exhausted:500"),
    "gateway": (reply.html(502), "exhausted:502"),
    "hung up": (reply.drop_connection(), "exhausted:network"),
    "cut body": (reply.cut_body(), "exhausted:network"),
    "other": (reply.stopped("OTHER"), "exhausted:stopped_other"),
    "new reason": (reply.stopped("SOMETHING_NEW"), "exhausted:stopped_other"),
    "once overloaded": (reply.overloaded(), None),
    "once refused": (reply.rate_limited(retry_delay_s=0.1), None),
}
JOBS = 60


def test_every_failing_job_ends_parked_with_the_right_class_and_every_other_is_answered_once(on_disk, collector):
    endpoint, received = collector
    prompts = {f"job-{n:02}": _prompt(n) for n in range(JOBS)}
    file, out = on_disk / "jobs.jsonl", on_disk / "answers.jsonl"
    file.write_text("".join(json.dumps(_line(id, prompt)) + "\n" for id, prompt in prompts.items()))
    with Simulator() as api:
        api.answers(_fate)
        env = {**os.environ, "GEMINI_API_KEY": "secret-key", "GOOGLE_GEMINI_BASE_URL": api.url}
        env |= {"PARKED_LEDGER": f"sqlite:///{on_disk}/parked.db", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}

        def parked(*words: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "parked.cli", *words]
            return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

        run = parked("run", str(file), "--out", str(out), "--concurrency", "20", "--max-attempts", "2")
        listed = parked("list", "--json")
        audit = parked("audit")
        calls = len(api.requests)
        metrics = _scrape(env)

    expected = {id: FATES[prompt][1] for id, prompt in prompts.items() if prompt in FATES and FATES[prompt][1]}
    assert len(expected) == 18
    assert run.returncode == 1, run.stderr
    assert run.stderr.splitlines()[-1] == f"{JOBS} lines: {JOBS - len(expected)} answered, {len(expected)} parked"
    assert {job["job_id"]: job["error_class"] for job in json.loads(listed.stdout)["jobs"]} == expected
    answered = [json.loads(line)["job_id"] for line in out.read_text().splitlines()]
    assert sorted(answered) == sorted(prompts.keys() - expected.keys())
    assert audit.returncode == 0, audit.stdout

    counted: Counter[str] = Counter()
    for labels, value in metrics["parked_jobs"]:
        counted[labels["error_class"]] += int(value)
    assert counted == Counter(expected.values())
    assert [value for _, value in metrics["parked_unaccounted_jobs"]] == [0.0]

    spans = received()
    assert spans.count(": parked.job\n") == JOBS
    assert spans.count("generate_content gemini-3.5-flash\n") == calls
    for secret in ("secret-key", "describe", "bad field"):
        assert secret not in spans
        assert secret not in run.stderr


def _prompt(n: int) -> str:
    fates = list(FATES)
    return fates[n // 3] if n % 3 == 0 else f"describe photo {n}"


def _line(id: str, prompt: str) -> dict:
    if id.endswith("1"):  # some in the REST form
        return {"key": id, "model": "gemini-3.5-flash", "request": {"contents": [{"parts": [{"text": prompt}]}]}}
    return {"job_id": id, "model": "gemini-3.5-flash", "payload": {"contents": prompt}}


def _fate(request):
    fate = FATES.get(request.text)
    if fate is None or (fate[1] is None and request.call > 1):
        return None
    return fate[0]


def _scrape(env) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Scrape a real sidecar beside the ledger; returns the samples by name."""
    listen = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "parked_exporter.cli", "--listen", listen]
    sidecar = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        for line in sidecar.stderr:
            if "listening" in line or listen in line:
                break
        with urllib.request.urlopen(f"http://{listen}/metrics", timeout=20) as response:
            text = response.read().decode()
    finally:
        sidecar.terminate()
        assert sidecar.wait(10) == 0
        sidecar.stderr.close()
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        samples.setdefault(name, []).append((dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)))
    return samples
