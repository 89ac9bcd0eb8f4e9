"""The runbook: a section for each alert, and commands that run as they are written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

import parked
from parked.cli import main
from parked.job import State
from parked.ledger import operations as op
from parked.policy import Policy
from parked.simulator import Request, Simulator
from parked.simulator import replies as reply
from parked_exporter.cli import main as exporter
from servers import wait_until

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "dashboards/RUNBOOK.md").read_text(encoding="utf-8")
ALERTS = [
    rule
    for group in yaml.safe_load((ROOT / "dashboards/alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]
SECTIONS: dict[str, str] = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
COMMANDS = sorted(set(re.findall(r"^ {4}(parked.*)$", RUNBOOK, re.MULTILINE)))
MODEL = "gemini-3.5-flash"

# What the API says while the night goes wrong, by the prompt.
FATES = {
    "invalid": reply.invalid_request(),
    "blocked": reply.blocked_prompt("SAFETY"),
    "busy": reply.overloaded(),
    "empty": reply.no_candidates(),
    "key": reply.bad_key(),
    "day": reply.daily_quota(),
    "held": reply.hang(),
}


def test_every_alert_has_a_section_and_every_section_an_alert():
    assert set(SECTIONS) == {rule["alert"] for rule in ALERTS}
    assert len(re.findall(r"^### ", RUNBOOK, re.MULTILINE)) == len(SECTIONS)


@pytest.mark.parametrize("name", [rule["alert"] for rule in ALERTS])
def test_a_section_says_what_it_means_how_bad_it_is_what_to_look_at_and_when_to_escalate(name):
    for word in ("**Means** that", "**How bad:**", "**Look at**", "**Escalate**"):
        assert SECTIONS[name].count(word) == 1, word
    assert re.search(r"^ {4}parked", SECTIONS[name], re.MULTILINE)


@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule["alert"]) for rule in ALERTS])
def test_pages_stand_among_the_pages(rule):
    heading = RUNBOOK.index(f"### {rule['alert']}\n")

    assert (heading < RUNBOOK.index("## Tickets about jobs")) is (rule["labels"]["severity"] == "page")


# --- the commands ------------------------------------------------------------------------------------------------


def job(name: str) -> parked.Job:
    return parked.Job(name, model=MODEL, payload={"contents": name})


def fate(request: Request) -> reply.Reply | None:
    return FATES.get(request.text.partition("-")[0])


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Simulator]]:
    """A folder with the ledger of a bad night, two days ago: something of each kind is parked, and some is pending."""
    folder = tmp_path_factory.mktemp("night")
    url = f"sqlite:///{folder}/parked.db"
    with Simulator() as api:
        api.answers(fate)
        environment = pytest.MonkeyPatch()
        environment.setenv("GEMINI_API_KEY", "k")
        environment.setenv("GOOGLE_GEMINI_BASE_URL", api.url)
        code = (
            f"import parked; ledger = parked.open_ledger({url!r})\n"
            f"job = parked.Job('held-1', model={MODEL!r}, payload={{'contents': 'held-1'}})\n"
            "parked.Runner(ledger, parked.Gemini(), pipeline='nightly').run(job)"
        )
        dies = subprocess.Popen([sys.executable, "-c", code])
        wait_until(lambda: bool(api.requests))
        dies.send_signal(signal.SIGKILL)
        dies.wait()
        with parked.open_ledger(url) as ledger:
            runner = parked.Runner(ledger, parked.Gemini(), pipeline="nightly", policy=Policy(max_attempts=1))
            for kind in ("invalid", "blocked", "busy", "empty", "key", "day"):
                for number in (1, 2):
                    assert runner.run(job(f"{kind}-{number}")).state is State.PARKED
            runner.run(job("good-1"))
            ledger.sweep()
        lines = [{"job_id": f"new-{n}", "model": MODEL, "payload": {"contents": f"new-{n}"}} for n in range(3)]
        (folder / "jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        mended = [{"job_id": f"invalid-{n}", "model": MODEL, "payload": {"contents": "mended"}} for n in (1, 2)]
        (folder / "mended.jsonl").write_text("".join(json.dumps(line) + "\n" for line in mended))
        submit = [sys.executable, "-m", "parked.cli", "submit", "jobs.jsonl", "--pipeline", "nightly", "--ledger", url]
        subprocess.run(submit, cwd=folder, check=True, capture_output=True)
        # Some of it happened before yesterday.
        with closing(sqlite3.connect(folder / "parked.db")) as connection, connection:
            connection.execute("UPDATE jobs SET parked_at = parked_at - 2 * 86400 WHERE job_id LIKE '%-1'")
            connection.execute("UPDATE jobs SET accepted_at = accepted_at - 7 * 3600 WHERE job_id = 'new-0'")
        api.answers(None)
        environment.undo()
        yield folder, api


class Morning:
    """The morning after, once the cause is mended: the ledger of the night, and its commands run in this process."""

    def __init__(self, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = f"sqlite:///{here}/parked.db"
        self._capsys = capsys

    def run(self, line: str) -> tuple[int, str, str]:
        """Return the exit status, and what was printed to standard output and to standard error."""
        program, *words = shlex.split(line)
        status = {"parked": main, "parked-exporter": exporter}[program](words)
        return status, *self._capsys.readouterr()

    def open(self) -> parked.Ledger:
        return parked.open_ledger(self._url)

    def states(self) -> dict[tuple[str, State], int]:
        """How many jobs are in which state; every job is accounted for."""
        with self.open() as ledger, ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            return reader.states()


@pytest.fixture
def morning(night, tmp_path, monkeypatch, capsys) -> Morning:
    folder, api = night
    here = tmp_path / "morning"
    shutil.copytree(folder, here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PARKED_LEDGER", f"sqlite:///{here}/parked.db")
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", api.url)
    return Morning(here, capsys)


@pytest.mark.parametrize("line", COMMANDS)
def test_the_commands_run_as_they_are_written_and_find_what_they_are_for(morning, line):
    before = morning.states()

    status, out, err = morning.run(line)

    assert status in (0, 1), out + err
    after = morning.states()
    if "--reason daily_quota_exhausted" in line:  # the new day hasn't begun
        assert "not due" in err
    elif "--apply" in line or " run " in line or " work " in line:
        assert after != before, err
    else:
        assert after == before
    if line.startswith(("parked list", "parked causes")):
        assert out or "--state running" in line


def command_of(rule: dict[str, Any]) -> str:
    """The command of a notification, with values in the place of the labels."""
    command: str = rule["annotations"]["command"]
    for label, value in {"pipeline": "nightly", "error_class": "permanent:400"}.items():
        command = re.sub(r"\{\{ \$labels\." + label + r"[^}]*\}\}", value, command)
    return command


@pytest.mark.parametrize("line", sorted({command_of(rule) for rule in ALERTS}))
def test_the_command_of_a_notification_runs_as_it_is_written(morning, line):
    status, out, err = morning.run(line)

    assert "{{" not in line
    assert status == 0, err
    assert out or "--state=running" in line


def command_for(name: str) -> str:
    (rule,) = [rule for rule in ALERTS if rule["alert"] == name]
    return command_of(rule)


def test_the_command_for_a_ledger_that_can_not_be_written_says_what_is_in_its_way(morning, tmp_path):
    with closing(sqlite3.connect(tmp_path / "morning/parked.db")) as somebody:
        somebody.execute("BEGIN IMMEDIATE")

        _, out, err = morning.run(command_for("ParkedLedgerNotWritable"))

    assert "another process holds it locked, so that nothing can be written" in out, err


def test_the_command_for_a_pipeline_that_an_outage_paused_says_so(morning):
    with morning.open() as ledger:
        ledger.record(op.SetPause("nightly", MODEL, "overloaded", 1.0, None, ledger.owner_id))

    status, out, err = morning.run(command_for("ParkedPipelinePaused"))

    assert status == 0, err
    assert re.search(r"^paused: nightly, .*: overloaded", out, re.MULTILINE), out


@pytest.mark.parametrize("name", ["ParkedShareTooHigh", "ParkedGrowing"])
def test_the_command_for_failures_shows_those_of_a_night_when_no_sidecar_looked(morning, tmp_path, name):
    with closing(sqlite3.connect(tmp_path / "morning/parked.db")) as connection, connection:
        connection.execute("UPDATE jobs SET parked_at = unixepoch() - 9 * 3600 WHERE state = 'parked'")

    _, out, err = morning.run(command_for(name))

    assert "permanent:400" in out, err
