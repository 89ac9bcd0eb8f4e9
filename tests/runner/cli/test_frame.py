"""What all commands share: help, flags, one sentence for an error, and what the exit status says."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from parked.cli import frame, main
from parked.cli.exits import Exit, exit_of
from parked.cli.output import command_line, same_command
from parked.cli.signals import put_back
from parked.errors import (
    InvalidJob,
    JobConflict,
    LedgerMissing,
    LedgerTooNew,
    LedgerUnavailable,
    OutputFailed,
    SettingsError,
    TransitionError,
)
from parked.ledger import full_name
from parked.ledger.databases import as_shown
from parked.version import __version__


@pytest.fixture
def url_on_each_database(tmp_path):
    """On one is enough: what is tested here stands above the ledger's reader, whose own suite runs on both."""
    return f"sqlite:///{tmp_path}/parked.db"


def sentence(said):
    """What was said to standard error, checked to be one line and no traceback."""
    assert said.out == ""
    assert said.err.startswith("parked: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize("name", frame.COMMANDS)
def test_each_command_explains_itself_with_an_example(parked, name):
    said = parked(name, "--help")

    assert said.status == 0
    assert "example:\n  parked" in said.out
    for flag in ("--ledger URL", "--json", "--debug"):
        assert flag in said.out


def test_help_lists_every_command_and_the_exit_statuses(parked):
    said = parked("--help")

    assert said.status == 0
    for name in frame.COMMANDS:
        assert re.search(rf"^    {name} +\w", said.out, re.MULTILINE)
    for status in Exit:
        assert re.search(rf"\b{status}\b", said.out)


def test_the_version_is_told(parked):
    assert parked("--version") == (0, f"parked {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["lits"], "'lits' is no command of parked; did you mean list?"),
        (["--ledger", "list", "xyzzy"], "'xyzzy' is no command of parked (see parked --help)"),
        ([], "name a command"),
        (["list", "--pipline", "x"], "parked list has no flag --pipline; did you mean --pipeline?"),
        (["run", "jobs.jsonl", "--bogus"], "parked run has no flag --bogus (see parked run --help)"),
        (["run", "jobs.jsonl", "--ot", "x"], "parked run has no flag --ot; did you mean --out?"),
        (["list", "--jsn"], "parked list has no flag --jsn; did you mean --json?"),
        (["list", "--pipe", "x"], "parked list has no flag --pipe; did you mean --pipeline?"),
        (["list", "more"], "parked list can't do anything with 'more'"),
        (["list", "--state", "prked"], "'prked' is no state; did you mean parked?"),
        (["list", "--reason", "overload"], "'overload' is no reason; did you mean overloaded?"),
        (["list", "--limit", "0"], "--limit: must be a whole number from 1, got '0'"),
        (["list", "--since", "yesterday"], "--since must be like 2h, 3d or 2026-03-02T02:00Z, got 'yesterday'"),
        (["show"], "JOB_ID"),
    ],
)
def test_wrong_usage_is_one_sentence_that_says_what_would_be_right(parked, words, what):
    said = parked(*words)

    assert said.status == 2
    assert what in sentence(said)


def test_an_unknown_variable_is_refused_with_the_nearest_name(parked, story, monkeypatch):
    monkeypatch.setenv("PARKED_MAX_ATEMPTS", "3")

    said = parked("list")

    assert said.status == 2
    assert "PARKED_MAX_ATEMPTS is no setting of parked (did you mean PARKED_MAX_ATTEMPTS?)" in sentence(said)


@pytest.mark.parametrize("name", ["list", "answers", "summary", "audit"])
def test_a_command_that_looks_never_creates_a_ledger(parked, tmp_path, url, no_ledger, name):
    said = parked(name)

    assert said.status == 3
    assert full_name(url).removeprefix("sqlite:///") in sentence(said)
    assert "parked run" in said.err
    assert no_ledger()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["before", "behind"])
def test_common_flags_may_stand_before_and_behind_the_command(parked, story, place, monkeypatch, url):
    monkeypatch.delenv("PARKED_LEDGER")
    flags = ["--ledger", url, "--json"]

    said = parked(*flags, "list") if place == "before" else parked("list", *flags)

    assert said.status == 0
    assert '"total": 0' in said.out


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SettingsError("x"), 2),
        (InvalidJob("x"), 2),
        (JobConflict("p", "", "a"), 2),
        (LedgerUnavailable("x"), 3),
        (LedgerMissing("x"), 3),
        (LedgerTooNew("x"), 3),
        (OutputFailed("x"), 3),
        (OSError(28, "No space left on device"), 3),
        (TransitionError("parked", "start"), 70),
        (KeyError("x"), 70),
    ],
    ids=repr,
)
def test_an_error_has_the_status_that_says_who_can_mend_it(error, status):
    assert exit_of(error) == status


def test_a_bug_is_one_line_without_its_text_and_a_traceback_only_on_demand(parked, monkeypatch):
    def broken(environment=None):
        raise KeyError("a prompt")

    monkeypatch.setattr(frame, "refuse_unknown", broken)

    said = parked("list")
    loud = parked("list", "--debug")

    assert (said.status, loud.status) == (70, 70)
    assert "a bug in parked (KeyError); please report it" in sentence(said)
    assert "a prompt" not in said.err
    assert "Traceback" in loud.err


def test_ctrl_c_ends_quietly(parked, monkeypatch):
    def interrupted(environment=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(frame, "refuse_unknown", interrupted)

    assert parked("list") == (130, "", "")


def test_a_reader_that_has_seen_enough_is_no_error(story, url, shell):
    for number in range(300):
        story.parked(f"image-{number:0200}")

    done = shell(f"{sys.executable} -m parked.cli list --limit 300 --ledger {url} | head -n 1; echo ${{PIPESTATUS[0]}}")

    assert done.stdout.splitlines()[1:] == ["0"]
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize(("where", "why"), [("> /dev/full", "No space left on device"), (">&-", "output is closed")])
def test_output_that_cannot_be_written_is_an_error_of_the_surroundings(story, url, shell, where, why):
    story.parked("a")

    done = shell(f"{sys.executable} -m parked.cli list --ledger {url} {where}; echo $? >&2")

    assert why in done.stderr
    assert done.stderr.endswith("\n3\n")
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("words", ["--help", "list --help", "--version"])
def test_help_that_cannot_be_written_is_an_error_of_the_surroundings(shell, words):
    done = shell(f"{sys.executable} -m parked.cli {words} > /dev/full; echo $? >&2")

    assert done.stderr == "parked: reading or writing failed: No space left on device\n3\n"


@pytest.mark.parametrize("command", ["run", "submit"])
def test_jobs_from_a_standard_input_that_is_closed_are_wrong_usage(shell, url, command):
    done = shell(f"{sys.executable} -m parked.cli {command} - --call json:dumps --ledger {url} <&-; echo $? >&2")

    assert done.stderr == "parked: standard input is closed; name a JSONL file, or send one there\n2\n"


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        ("list", ", or name the ledger by an absolute path: sqlite:////absolute/file.db"),
        ("run /jobs.jsonl --call calls:call", ""),
    ],
)
def test_a_working_folder_that_was_deleted_is_named(shell, words, next_step, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()

    done = shell(f"cd {gone}; rmdir {gone}; unset PARKED_LEDGER; {sys.executable} -m parked.cli {words}; echo $? >&2")

    said = "the folder that this was started in is gone; change into one that is there"
    assert done.stderr == f"parked: {said}{next_step}\n3\n"


def test_a_terminal_without_unicode_gets_escapes(story, url, shell):
    story.parked("Zürich-猫")

    done = shell(f"PYTHONUTF8=0 PYTHONIOENCODING=ascii {sys.executable} -m parked.cli list --ledger {url}")

    assert r"Z\xfcrich-\u732b" in done.stdout


def test_help_needs_no_sdk_and_no_exporter():
    script = (
        "import sys; from parked.cli import main; main(['--help'])\n"
        "heavy = {'google.genai', 'opentelemetry.sdk', 'prometheus_client', 'apscheduler', 'tqdm', 'aiohttp'}\n"
        "sys.stderr.write(repr(sorted(heavy & set(sys.modules))))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stderr == "[]"


def test_main_takes_its_words_from_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["parked", "--version"])

    with put_back():
        assert main() == 0
    assert capsys.readouterr().out == f"parked {__version__}\n"


def test_the_documentation_names_every_field_of_the_json(parked, story):
    """docs/cli-json.md is the contract: no field without a line in it."""
    page = (Path(__file__).parents[3] / "docs" / "cli-json.md").read_text(encoding="utf-8")
    story.parked("a")
    story.answered("b", answer="42")
    story.pending("c")

    for words in (
        ["list"], ["causes"], ["show", "a", "--payload", "--answer"], ["answers"], ["summary"], ["classify", "429"],
        ["audit"], ["discard", "--all", "--reason", "r"], ["discard", "--all", "--reason", "r", "--apply"],
        ["erase", "--all", "--reason", "r", "--apply"], ["restore", "a"],
        ["rekey"], ["rekey", "--apply"],
    ):  # fmt: skip
        for field in re.findall(r'"(\w+)":', parked(*words, "--json").out):
            assert f"`{field}`" in page


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        (
            ["work", "--ledger", "postgresql://u:secret@h/db", "--until-empty"],
            "parked work --ledger postgresql://USER@h/db --until-empty",
        ),
        (
            ["work", "--ledger=postgresql://h/db?user=u&password=secret", "--until-empty"],
            "parked work --ledger=postgresql://USER@h/db --until-empty",
        ),
        (
            ["copy", "sqlite:///a.db", "postgres://u@h/db?sslmode=require"],
            "parked copy sqlite:///a.db 'postgresql://USER@h/db?sslmode=require'",
        ),
        (["run", "a b.jsonl", "--ledger", "sqlite:///x.db"], "parked run 'a b.jsonl' --ledger sqlite:///x.db"),
    ],
)
def test_the_same_command_is_proposed_without_what_may_be_a_password(words, proposed):
    assert same_command(argparse.Namespace(words=words)) == proposed


@pytest.mark.parametrize("login", ["u:secret@{}", "{}?user=u&password=secret", "{}?%75ser=u&sslpassword=secret"])
def test_a_command_to_type_next_names_the_ledger_it_is_for_and_no_secret(login):
    url = "postgresql://" + login.format("h/db")

    command = command_line(argparse.Namespace(ledger=url), "replay", "--all")

    assert shlex.split(command)[:4] == ["parked", "replay", "--ledger", as_shown(url)]
    assert "secret" not in command
    assert "USER@h/db" in command
