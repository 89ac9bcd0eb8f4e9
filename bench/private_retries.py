"""What a pipeline is without parked: every worker retries for itself. One of three ways, with the real SDK on asyncio.

    python bench/private_retries.py article jobs.jsonl --workers 64

`article`: the loop that parked began with: four attempts, `min(2**attempt, 30)` seconds and up to one more between
them, none after a 400, 403, 404 or 422. `tenacity`: five attempts with exponential jitter. `sdk`: the SDK's own
`HttpRetryOptions`, with its defaults: five attempts, exponential jitter.

Prints, as JSON, how many jobs had an answer with a text, and how many were lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import tenacity
from google import genai
from google.genai import errors, types

Call = Callable[[], Awaitable[Any]]

ATTEMPTS: Final = 5
PERMANENT: Final = frozenset({400, 403, 404, 422})
AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})  # what the SDK's defaults retry


async def article(call: Call) -> Any:
    for attempt in range(1, 5):
        try:
            return await call()
        except errors.APIError as exc:
            if exc.code in PERMANENT or attempt == 4:
                raise
        await asyncio.sleep(min(2**attempt, 30) + random.uniform(0, 1))
    return None


async def with_tenacity(call: Call) -> Any:
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(lambda exc: getattr(exc, "code", None) in AGAIN or isinstance(exc, OSError)),
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_exponential_jitter(initial=1, max=60),
        reraise=True,
    )
    return await retrying(call)


async def once(call: Call) -> Any:
    """The client does the rest."""
    return await call()


WAYS: Final = {"article": article, "tenacity": with_tenacity, "sdk": once}


async def run(way: str, jobs: list[dict[str, Any]], workers: int) -> dict[str, int]:
    options = types.HttpRetryOptions() if way == "sdk" else types.HttpRetryOptions(attempts=1)
    client = genai.Client(http_options=types.HttpOptions(retry_options=options))
    waiting, answered = iter(jobs), 0

    async def work(waiting: Iterator[dict[str, Any]]) -> None:
        nonlocal answered
        for job in waiting:

            async def call(job: dict[str, Any] = job) -> Any:
                return await client.aio.models.generate_content(model=job["model"], contents=job["payload"]["contents"])

            try:
                response = await WAYS[way](call)
            except Exception:  # noqa: BLE001 - the job is lost, and the loop moves on: that is the point
                continue
            answered += bool(response.text)

    await asyncio.gather(*[work(waiting) for _ in range(workers)])
    await client.aio.aclose()
    client.close()
    return {"answered": answered, "lost": len(jobs) - answered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("jobs")
    parser.add_argument("--workers", type=int, default=64)
    args = parser.parse_args()
    with Path(args.jobs).open(encoding="utf-8") as lines:
        jobs = [json.loads(line) for line in lines]
    print(json.dumps(asyncio.run(run(args.way, jobs, args.workers))))


if __name__ == "__main__":
    main()
