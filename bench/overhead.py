"""What running a job through parked costs, next to the bare call of the SDK. See README.md."""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

import benchlib

if TYPE_CHECKING:
    from google import genai
    from opentelemetry.sdk.trace import ReadableSpan

MODEL = "gemini-3.5-flash"
IN_FLIGHT = 32
WARM_UP = 64
PROMPT = "Summarise the following support ticket in one line. " * 36
SDK_FORM: dict[str, Any] = {"contents": PROMPT, "config": {"temperature": 0.2, "max_output_tokens": 256}}
REST_FORM: dict[str, Any] = {
    "contents": [{"role": "user", "parts": [{"text": PROMPT}]}],
    "generationConfig": {"temperature": 0.2, "maxOutputTokens": 256},
}

BARE = "bare SDK call"

Run = Callable[[int, str], Awaitable[None]]  # so many jobs, whose ids begin like this


def client(port: int) -> genai.Client:
    from google import genai
    from google.genai import types

    return genai.Client(api_key="bench", http_options=types.HttpOptions(base_url=f"http://127.0.0.1:{port}"))


@asynccontextmanager
async def bare(port: int) -> AsyncIterator[Run]:
    """The SDK and nothing else: the same request, with as many workers."""
    sdk = client(port)

    async def run(jobs: int, _: str) -> None:
        left = iter(range(jobs))

        async def work() -> None:
            for _ in left:
                answer = await sdk.aio.models.generate_content(model=MODEL, **SDK_FORM)
                assert answer.text

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))

    yield run
    await sdk.aio.aclose()


@asynccontextmanager
async def parked(port: int, payload: Any, *, spans: bool = True) -> AsyncIterator[Run]:
    """Every job durable in a ledger on disk, with a span for it and one for its attempt."""
    from parked import AsyncRunner, Gemini, Job, State, open_ledger

    if spans:
        trace()
    os.environ |= {"GEMINI_API_KEY": "bench", "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{port}"}
    gemini = Gemini()  # makes its client as `parked run` does
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder,
        open_ledger(f"sqlite:///{folder}/bench.db") as ledger,
    ):
        runner = AsyncRunner(ledger, gemini)

        async def run(jobs: int, prefix: str) -> None:
            source = (Job(f"{prefix}-{number}", MODEL, payload) for number in range(jobs))
            async for outcome in runner.run_many(source, concurrency=IN_FLIGHT):
                assert outcome.state is State.SUCCEEDED
                assert outcome.text
            if spans:
                flush()

        yield run
        await gemini.aclose()


def trace() -> None:
    """The real SDK with its batch processor, and an exporter that throws spans away."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.trace import set_tracer_provider

    class Nowhere(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    set_tracer_provider(provider)


def flush() -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import get_tracer_provider

    provider = get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.force_flush()


CASES: dict[str, Callable[[int], AbstractAsyncContextManager[Run]]] = {
    BARE: bare,
    "parked, SDK form": lambda port: parked(port, SDK_FORM),
    "parked, REST form": lambda port: parked(port, REST_FORM),
    "parked, SDK form, no spans": lambda port: parked(port, SDK_FORM, spans=False),
}


async def measure(case: str, port: int, jobs: int, *, freeze: bool) -> benchlib.Figures:
    async with CASES[case](port) as run:
        await run(WARM_UP, "warm-up")
        if freeze:
            gc.collect()
            gc.freeze()
        cpu, wall = time.process_time(), time.perf_counter()
        await run(jobs, "job")
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_us": cpu / jobs * 1e6, "jobs_per_s": jobs / wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--freeze", action="store_true", help="gc.freeze() after the warm-up, in all cases")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)  # how this file calls itself
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(asyncio.run(measure(args.case, args.port, args.jobs, freeze=args.freeze))))
        return

    benchlib.print_machine()
    with benchlib.server() as port:
        own = [
            __file__,
            *(["--freeze"] if args.freeze else []),
            "--port",
            str(port),
            "--jobs",
            str(args.jobs),
            "--case",
        ]
        cases = {name: functools.partial(benchlib.figures_of, *own, name) for name in CASES}
        results = benchlib.interleaved(cases, args.rounds)
    base = benchlib.median(results[BARE], "cpu_us")
    benchlib.table(
        ("case", "CPU µs a job", "ratio", "jobs/s"),
        [
            (
                name,
                benchlib.spread(rounds, "cpu_us"),
                f"{benchlib.median(rounds, 'cpu_us') / base:.2f}",
                benchlib.spread(rounds, "jobs_per_s"),
            )
            for name, rounds in results.items()
        ],
    )


if __name__ == "__main__":
    main()
