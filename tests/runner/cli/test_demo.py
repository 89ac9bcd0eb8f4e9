"""`parked demo` tells the truth: it fails where a command in it does something else than the story says."""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from parked.cli.frame import main

pytestmark = pytest.mark.slow


def demo():
    command = [sys.executable, "-m", "parked.cli", "demo"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_answers_every_job_but_those_that_a_filter_refuses_and_uses_nobodys_key(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMINI_API_KEY", "never-sent")
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    done = demo()

    assert done.returncode == 0, done.stdout + done.stderr
    assert "50 lines: 44 answered, 6 parked" in done.stdout
    assert 'parked_jobs{error_class="exhausted:503"' in done.stdout
    assert "6 jobs replayed: 4 recovered, 2 parked again" in done.stdout
    assert "48 of 50 answers in answers.jsonl, each once" in done.stdout
    folder = Path(done.stdout.split("In ")[1].split(",")[0])
    lines = [json.loads(line)["job_id"] for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert len(set(lines)) == len(lines) == 48
    assert "The same against the real API" in done.stdout
    assert "never-sent" not in done.stdout

    stays, delete = done.stdout.splitlines()[-1].split(" To delete it: ")
    assert stays == f"All of this stays in {folder}."
    subprocess.run(shlex.split(delete), check=True)
    assert list(tmp_path.glob("parked-demo-*")) == []


def test_where_no_folder_can_be_made_it_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))

    status = main(("demo",))

    assert status == 3
    assert capsys.readouterr().err == (
        "parked: can't make a folder for the demo: No such file or directory; name one that can be written in TMPDIR,"
        " in a container mount one (--tmpfs /tmp)\n"
    )
