"""Whether the memory of `parked run` grows with the number of its lines. See README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import benchlib

MODEL = "gemini-3.5-flash"
IN_FLIGHT = 32


def answer(payload: Any, model: str) -> str:
    """What is called instead of Gemini with --plain."""
    return "The customer cannot sign in after the update. " * 8


def write_jobs(path: Path, jobs: int, *, bad: bool) -> None:
    """With `bad` one line of a hundred more is no JSON."""
    with path.open("w") as file:
        for number in range(jobs):
            contents = f'[{{"parts": [{{"text": "Summarise ticket {number} in one line."}}]}}]'
            file.write(f'{{"key": "ticket-{number}", "request": {{"contents": {contents}}}}}\n')
            if bad and number % 100 == 50:
                file.write('{"key": "ticket-\n')


def run(jobs: int, *, port: int | None, kills: int) -> benchlib.Figures:
    """Run so many jobs with the real command, against the server on `port` or with `answer`.

    With `kills` one line of a hundred is bad, and the command is killed so many times on its way and run again.
    """
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        source, out = Path(folder) / "jobs.jsonl", Path(folder) / "answers.jsonl"
        write_jobs(source, jobs, bad=bool(kills))
        words = ["run", str(source), "--out", str(out), "--model", MODEL, "--concurrency", str(IN_FLIGHT)]
        words += ["--ledger", f"sqlite:///{folder}/parked.db"]
        environment = benchlib.environment()
        if port is None:
            words += ["--call", "memory:answer"]
            environment["PYTHONPATH"] += os.pathsep + str(benchlib.HERE)
        else:
            environment |= {"GEMINI_API_KEY": "bench", "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}"}
        begun = time.perf_counter()
        if kills:
            words.append("--skip-bad-lines")
        peaks_mb = []
        for number in range(1, kills + 2):
            process = subprocess.Popen([sys.executable, "-m", "parked.cli", *words], env=environment)
            kill_at = jobs * number // (kills + 1) if number <= kills else None
            peaks_mb.append(watched(process, out, kill_at=kill_at) / 1024)
        took_s = time.perf_counter() - begun
        with out.open() as lines:
            answered = [json.loads(line)["job_id"] for line in lines]
        # Those under way when it was killed are parked, for `parked replay`.
        missing = jobs - len(set(answered))
        if process.returncode not in (0, 1) or len(set(answered)) != len(answered) or missing > kills * IN_FLIGHT:
            raise SystemExit(f"{len(answered)} answers, {missing} missing, exit status {process.returncode}")
        return {"peak_mb": max(peaks_mb), "took_s": took_s, "orphans": missing}


def watched(process: subprocess.Popen[bytes], out: Path, *, kill_at: int | None) -> int:
    """Wait until a process has ended, or kill it when it has written so many lines; return its peak RSS in KiB.

    The kernel's own figure for a process begins with that of the one that forked it.
    """
    lines = read = peak_kib = 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak_kib = max(peak_kib, *(int(line.split()[1]) for line in status.splitlines() if line[:6] == "VmHWM:"), 0)
        if kill_at is not None and out.exists():
            with out.open("rb") as file:
                file.seek(read)
                while block := file.read(1_000_000):
                    lines, read = lines + block.count(b"\n"), read + len(block)
            if lines >= kill_at:
                process.kill()
        time.sleep(0.05)
    return peak_kib


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[2_000, 200_000])
    parser.add_argument("--plain", action="store_true", help="with a plain function instead of the SDK: faster")
    parser.add_argument("--kills", type=int, default=0, help="kill and resume each run so often; 1 %% of bad lines")
    args = parser.parse_args()
    benchlib.print_machine()
    with benchlib.server() as port:
        results = {jobs: run(jobs, port=None if args.plain else port, kills=args.kills) for jobs in args.jobs}
    least = results[args.jobs[0]]["peak_mb"]
    benchlib.table(
        ("jobs", "peak RSS MB", "ratio", "seconds", "parked as orphans"),
        [
            (
                f"{n:,}",
                f"{r['peak_mb']:.0f}",
                f"{r['peak_mb'] / least:.2f}",
                f"{r['took_s']:.0f}",
                f"{r['orphans']:.0f}",
            )
            for n, r in results.items()
        ],
    )


if __name__ == "__main__":
    main()
