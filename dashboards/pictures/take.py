"""Takes the pictures of the dashboards under docs/images: `make pictures`.

A night of two pipelines is played in two minutes: the simulator fails, a runner is killed, a model is retired, parked
jobs are replayed. A real sidecar shows the ledger to a real Prometheus, and `page.jsx` draws the dashboards from that.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from parked.simulator import Simulator
from parked.simulator.script import parse_script

HERE: Final = Path(__file__).parent
IMAGES: Final = HERE.parents[1] / "docs" / "images"
WIDTH: Final = 1400

OUTAGE: Final = {
    "rules": [
        {"when": {"text_matches": "photo 1?[37] "}, "reply": {"blocked_prompt": {"reason": "SAFETY"}}, "delay_s": 0.3},
        {"when": {"text_matches": "photo [0-9]*9 "}, "reply": "no_parts", "delay_s": 0.2},
        {"when": {"model": "gemini-2.0-flash", "from_s": 25}, "reply": "model_not_found"},
        {"when": {"share": 0.12}, "reply": "overloaded", "delay_s": 0.4},
        {"when": {"from_s": 30, "to_s": 42}, "reply": "overloaded"},
        {"delay_s": {"lognormal": {"median": 0.5, "p95": 1.4}}},
    ]
}
MENDED: Final = {
    "rules": [
        {"when": {"text_matches": "photo 1?[37] "}, "reply": {"blocked_prompt": {"reason": "SAFETY"}}},
        {"delay_s": 0.4},
    ]
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", type=Path, required=True, help="the folder that vite has built")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        simulator = stack.enter_context(Simulator())
        simulator.answers(parse_script(OUTAGE))
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PARKED_", "GOOGLE_"))}
        env |= {"GEMINI_API_KEY": "simulated", "GOOGLE_GEMINI_BASE_URL": simulator.url, "PARKED_MAX_ATTEMPTS": "2"}
        start = partial(subprocess.Popen, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        parked = partial(_parked, start)
        parked("migrate").wait()
        sidecar, prometheus = free_port(), free_port()
        stack.enter_context(ended(start([sys.executable, "-m", "parked_exporter.cli", "--listen", sidecar])))
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s}\n"
            f"scrape_configs: [{{job_name: parked, static_configs: [{{targets: ['{sidecar}']}}]}}]\n"
        )
        words = [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address={prometheus}",
        ]
        stack.enter_context(ended(start(words)))
        begun = time.monotonic()
        tell(folder, simulator, parked)
        take(args.page, prometheus, range_s=int(time.monotonic() - begun))


def tell(folder: Path, simulator: Simulator, parked: Any) -> None:
    """The night: three runs, one of which is killed, and a replay once the cause is mended."""
    write_jobs(folder / "captions.jsonl", "gemini-2.5-flash", range(160))
    write_jobs(folder / "moderation.jsonl", "gemini-2.0-flash", range(90))
    time.sleep(8)
    captions = parked(
        "run", "captions.jsonl", "--pipeline", "nightly-captions", "--concurrency", "4", "--out", "c.jsonl"
    )
    parked("run", "moderation.jsonl", "--pipeline", "moderation", "--concurrency", "2", "--out", "m.jsonl").wait()
    captions.wait()
    write_jobs(folder / "late.jsonl", "gemini-2.5-flash", range(200, 260))
    before = len(simulator.requests)
    late = parked("run", "late.jsonl", "--pipeline", "nightly-captions", "--concurrency", "8")
    while len(simulator.requests) < before + 12:
        time.sleep(0.05)
    late.kill()  # the next command finds its jobs orphaned
    late.wait()
    parked("run", "late.jsonl", "--pipeline", "nightly-captions", "--concurrency", "8").wait()
    simulator.answers(parse_script(MENDED))
    parked("replay", "--class", "exhausted:*", "--apply").wait()
    parked("run", "moderation.jsonl", "--pipeline", "moderation", "--concurrency", "3", "--out", "m.jsonl").wait()
    time.sleep(6)


def write_jobs(path: Path, model: str, numbers: range) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in numbers:
            payload = {"contents": f"Describe photo {number} in a line."}
            line = {"job_id": f"photo-{number}", "model": model, "payload": payload}
            print(json.dumps(line), file=file)


def take(page: Path, prometheus: str, *, range_s: int) -> None:
    from playwright.sync_api import sync_playwright

    handler = partial(SimpleHTTPRequestHandler, directory=str(page))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, sync_playwright() as play:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        faults: list[str] = []
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, theme in (("overview", "dark"), ("overview", "light"), ("triage", "dark"), ("triage", "light")):
            (page / f"{name}.json").write_bytes((HERE.parent / f"{name}.json").read_bytes())
            tab = browser.new_page(viewport={"width": WIDTH, "height": 900})
            tab.on("pageerror", lambda fault: faults.append(str(fault)))
            tab.goto(
                f"http://127.0.0.1:{server.server_port}/?dashboard=/{name}.json&prometheus=http://{prometheus}"
                f"&range_s={range_s}&theme={theme}&width={WIDTH}"
            )
            tab.wait_for_function("document.title === 'drawn'", timeout=60_000)
            IMAGES.mkdir(parents=True, exist_ok=True)
            assert not faults, faults
            tab.locator("#page").screenshot(path=IMAGES / f"{name}-{theme}.png")
        browser.close()
        server.shutdown()


def _parked(start: Any, *words: str) -> Any:
    return start([sys.executable, "-m", "parked.cli", *words])


@contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


if __name__ == "__main__":
    main()
