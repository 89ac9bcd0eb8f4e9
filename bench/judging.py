"""How long it takes to judge an outcome, and to scrub a message: ordinary bodies, and bodies of 10 MB.

    python bench/judging.py

The bounds are 1 ms for an ordinary body and 50 ms for one of 10 MB; it ends with status 1 where one is broken. Each
number is the median of several rounds, so that a busy machine doesn't decide.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from parked import pasted
from parked.judge import HttpAnswer, classify, classify_http_error, judge_answer
from parked.scrub import scrubbed

ORDINARY_MS = 1.0
LARGE_MS = 50.0
LARGE_BYTES = 10_000_000
CASES = Path(__file__).parents[1] / "tests/cases/gemini_failures.jsonl"


def median_ms(call: Callable[[], Any], *, rounds: int) -> float:
    call()  # compiles the patterns
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        took.append((time.perf_counter() - started) * 1000)
    return statistics.median(took)


def ordinary() -> dict[str, Callable[[], Any]]:
    """The slowest of the labelled cases is looked for, so each is a subject of its own."""
    subjects: dict[str, Callable[[], Any]] = {}
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        given = case["given"]
        if given["kind"] == "http_error":
            body = given["body"] if isinstance(given["body"], str) else json.dumps(given["body"])
            subjects[case["id"]] = partial(classify_http_error, given["status"], body)
        elif given["kind"] == "http_response":
            answer = HttpAnswer(200, {}, json.dumps(given["body"]))
            subjects[case["id"]] = partial(judge_answer, answer, request=given.get("request"))
    subjects["an exception with a cause"] = partial(classify, _chained())
    return subjects


def large() -> dict[str, Callable[[], Any]]:
    text = "The harbour was built in 1801. " * (LARGE_BYTES // 31)
    answer = {"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]}
    bodies = {
        "an answer": json.dumps(answer).encode(),
        "an error object": json.dumps({"error": {"code": 400, "message": text}}).encode(),
        "one long word": b"a" * LARGE_BYTES,
        "tags": b"<p>" * (LARGE_BYTES // 3),
        "quotes": b"' " * (LARGE_BYTES // 2),
        "what looks like tokens": b"eyJ-" * (LARGE_BYTES // 4),
        "what looks like keys": b"key= " * (LARGE_BYTES // 5),
        "no UTF-8": b"\xff" * LARGE_BYTES,
        "brackets": b"[" * LARGE_BYTES,
    }
    subjects: dict[str, Callable[[], Any]] = {}
    # As an answer these can't but be decoded whole, and `json` alone takes 0.3 s for them.
    subjects["small values, as an error"] = partial(classify_http_error, 400, f"[{'1,' * (LARGE_BYTES // 2)}1]")
    for name, body in bodies.items():
        subjects[f"{name}, as an error"] = partial(classify_http_error, 400, body)
        subjects[f"{name}, as an answer"] = partial(judge_answer, HttpAnswer(200, {}, body))
    subjects["a message, scrubbed"] = partial(scrubbed, text)
    subjects["one long word, pasted"] = partial(pasted.read, "a" * LARGE_BYTES)
    return subjects


def _chained() -> BaseException:
    outer = RuntimeError("the call failed")
    outer.__cause__ = ConnectionResetError(104, "Connection reset by peer")
    return outer


def main() -> int:
    broken = 0
    for title, subjects, bound_ms, rounds in (
        ("ordinary", ordinary(), ORDINARY_MS, 50),
        ("10 MB", large(), LARGE_MS, 5),
    ):
        took = {name: median_ms(call, rounds=rounds) for name, call in subjects.items()}
        broken += sum(ms > bound_ms for ms in took.values())
        print(f"{title}: {len(took)} subjects, median {statistics.median(took.values()):.3f} ms, bound {bound_ms:g} ms")
        for name in sorted(took, key=took.__getitem__, reverse=True)[:5]:
            print(f"  {took[name]:8.3f} ms  {name}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
