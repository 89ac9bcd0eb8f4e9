"""Whether the memory of `parked run` grows with the number of its lines. See README.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import benchlib

MODEL = "gemini-3.5-flash"


def answer(payload: Any, model: str) -> str:
    """What is called instead of Gemini with --plain."""
    return "The customer cannot sign in after the update. " * 8


def write_jobs(path: Path, jobs: int) -> None:
    with path.open("w") as file:
        for number in range(jobs):
            contents = f'[{{"parts": [{{"text": "Summarise ticket {number} in one line."}}]}}]'
            file.write(f'{{"key": "ticket-{number}", "request": {{"contents": {contents}}}}}\n')


def run(jobs: int, *, port: int | None) -> benchlib.Figures:
    """Run so many jobs with the real command, against the server on `port` or with `answer`."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        source, out = Path(folder) / "jobs.jsonl", Path(folder) / "answers.jsonl"
        write_jobs(source, jobs)
        words = ["run", str(source), "--out", str(out), "--model", MODEL, "--concurrency", "32"]
        words += ["--ledger", f"sqlite:///{folder}/parked.db"]
        environment = benchlib.environment()
        if port is None:
            words += ["--call", "memory:answer"]
            environment["PYTHONPATH"] += os.pathsep + str(benchlib.HERE)
        else:
            environment |= {"GEMINI_API_KEY": "bench", "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}"}
        begun = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "parked.cli", *words], env=environment)
        _, status, used = os.wait4(process.pid, 0)
        took_s = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        with out.open() as lines:
            answered = sum(1 for _ in lines)
        if process.returncode != 0 or answered != jobs:
            raise SystemExit(f"{answered} of {jobs} jobs were answered, exit status {process.returncode}")
        return {"peak_mb": used.ru_maxrss / 1024, "took_s": took_s}  # Linux counts in KiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[2_000, 200_000])
    parser.add_argument("--plain", action="store_true", help="with a plain function instead of the SDK: faster")
    args = parser.parse_args()
    benchlib.print_machine()
    with benchlib.server() as port:
        results = {jobs: run(jobs, port=None if args.plain else port) for jobs in args.jobs}
    least = results[args.jobs[0]]["peak_mb"]
    benchlib.table(
        ("jobs", "peak RSS MB", "ratio", "seconds"),
        [
            (f"{n:,}", f"{r['peak_mb']:.0f}", f"{r['peak_mb'] / least:.2f}", f"{r['took_s']:.0f}")
            for n, r in results.items()
        ],
    )


if __name__ == "__main__":
    main()
