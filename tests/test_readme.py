"""The README's examples run as they stand, against the simulator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parked.simulator import Simulator
from servers import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def api():
    with Simulator() as simulator:
        yield simulator


@pytest.fixture
def run(tmp_path, api):
    """Returns a function that runs a command in a folder of its own, with a key and the simulator for the API."""
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": api.url}
    environment["PARKED_LISTEN"] = f"127.0.0.1:{free_port()}"  # whoever runs the tests may have a sidecar
    environment["PATH"] = f"{bin_folder}:{environment['PATH']}"

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def test_the_python_examples_run(run, api):
    first, article = blocks("python")

    done = run(sys.executable, "-c", first)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "succeeded Simulated answer to: Describe the sea."
    assert len(done.stdout.splitlines()) == len(api.requests) == 51

    done = run(sys.executable, "-c", article)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["dead-letter: 1 parked", "     1  permanent:400"]


@pytest.mark.parametrize("number", range(5))
def test_the_examples_of_the_python_page_run(run, number):
    examples = blocks("python", (ROOT / "docs/python.md").read_text())
    assert len(examples) == 5

    done = run(sys.executable, "-W", "ignore", "-c", examples[number])

    assert done.returncode == 0, done.stderr


def test_the_shell_examples_run_on_the_job_lines_shown(run, api, tmp_path):
    (lines,) = blocks("json")
    (tmp_path / "jobs.jsonl").write_text(lines)
    commands = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    commands = [command for command in commands if command.startswith("parked ")]
    assert len(commands) == 11

    for command in commands:
        done = run("bash", "-c", command.replace("parked ", f"{sys.executable} -m parked.cli ", 1))
        assert done.returncode == 0, (command, done.stderr)

    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert {answer["job_id"] for answer in answers} == {"a-1", "a-2"}


@pytest.mark.parametrize("page", ["faq", "upgrading"])
def test_the_commands_of_a_page_run(run, tmp_path, page):
    (tmp_path / "jobs.jsonl").write_text(
        '{"job_id": "a-1", "model": "m", "payload": {"contents": "Describe the sea."}}\n'
    )
    parked = f"{sys.executable} -m parked.cli "
    assert run("bash", "-c", f"{parked} run jobs.jsonl").returncode == 0
    text = (ROOT / f"docs/{page}.md").read_text()
    commands = [
        command for pair in re.findall(r"^ {4}(parked .+)$|`(parked [a-z]+ \".+?)`", text, re.M) for command in pair
    ]
    commands = [command.replace("/srv/captions", str(tmp_path)) for command in commands if command]
    assert len(commands) >= 2

    for command in commands:
        done = run("bash", "-c", command.replace("parked ", parked, 1))
        assert done.returncode == 0, (command, done.stderr)


def test_the_first_screen_shows_an_example_and_what_happens_at_a_429():
    first_screen = README.splitlines()[:35]

    assert first_screen[0] == "# parked"
    assert any(line.startswith("$ parked run") for line in first_screen[:25])
    assert any("429" in line for line in first_screen)


def test_the_lines_shown_are_those_that_the_commands_print(run, api, tmp_path):
    from parked.simulator import replies as reply

    def rule(request):
        if request.text in ("7", "8"):
            return reply.overloaded()
        return reply.blocked_prompt("SAFETY") if request.text == "9" else None

    api.answers(rule)
    jobs = [{"job_id": f"p-{n}", "model": "m", "payload": {"contents": str(n)}} for n in range(50)]
    (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    parked = [sys.executable, "-m", "parked.cli"]

    ran = run(*parked, "run", "jobs.jsonl", "--out", "answers.jsonl", "--pipeline", "nightly", "--max-attempts", "1")
    summary = run(*parked, "summary")
    api.answers(None)
    replayed = run(*parked, "replay", "--class", "exhausted:503", "--apply")

    (shown,) = blocks("console")
    shown = shown.replace("/srv/captions/", f"{tmp_path}/")
    printed = [*ran.stderr.splitlines(), *summary.stdout.splitlines(), *replayed.stderr.splitlines()]
    for line in shown.splitlines():
        assert line.startswith("$ ") or line == "[…]" or line in printed, line
    # Only the end of the summary is left out.
    beginning = shown.partition("$ parked summary\n")[2].partition("[…]")[0]
    assert summary.stdout.startswith(beginning)
