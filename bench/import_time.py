"""How long imports and `--help` take, next to what the runner is built from, and what `import parked` must not load.

See README.md.
"""

from __future__ import annotations

import argparse
import functools
import subprocess
import sys
import time

import benchlib

BASE = "import sqlite3, json, logging, dataclasses, enum, threading, datetime, opentelemetry.trace"
CASES = {
    "the base": ["-c", BASE],
    "import parked": ["-c", "import parked"],
    "from parked import Runner, open_ledger": ["-c", "from parked import Runner, open_ledger"],
    "from parked import AsyncRunner, open_ledger": ["-c", "from parked import AsyncRunner, open_ledger"],
    "parked --help": ["-m", "parked.cli", "--help"],
    "parked run --help": ["-m", "parked.cli", "run", "--help"],
}
# The SDK, OpenTelemetry's SDK, and what the sidecar needs.
NOT_LOADED = ("google.genai", "opentelemetry.sdk", "asyncio", "prometheus_client", "apscheduler", "waitress")


def whole_process(arguments: list[str]) -> benchlib.Figures:
    begun = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=benchlib.environment())
    return {"ms": (time.perf_counter() - begun) * 1e3}


def loaded_by_import() -> list[str]:
    code = f"import parked, sys; print(*sys.modules.keys() & {NOT_LOADED!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=benchlib.environment()
    )
    return done.stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    benchlib.print_machine()
    cases = {name: functools.partial(whole_process, arguments) for name, arguments in CASES.items()}
    for case in cases.values():  # so that the byte code of all is there
        case()
    results = benchlib.interleaved(cases, args.rounds)
    base = benchlib.median(results["the base"], "ms")
    benchlib.table(
        ("process", "ms", "ratio"),
        [
            (name, benchlib.spread(rounds, "ms"), f"{benchlib.median(rounds, 'ms') / base:.2f}")
            for name, rounds in results.items()
        ],
    )
    print(f"\nimport parked loads none of {', '.join(NOT_LOADED)}: {not loaded_by_import()}")


if __name__ == "__main__":
    main()
