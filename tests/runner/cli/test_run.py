"""`parked run` as a user runs it: the real SDK over HTTP against the simulator, a real ledger, real files."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from parked.job import State
from parked.ledger import full_name, open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode
from parked.ledger.store import Filters
from parked.simulator import replies as reply
from servers import sqlite_only


@pytest.fixture
def out(tmp_path):
    return tmp_path / "answers.jsonl"


def answers(path: Path) -> dict[str, dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["job_id"] for line in lines}) == len(lines), "an answer stands there twice"
    return {line["job_id"]: line for line in lines}


def stored(url: str, *states: State) -> list[str]:
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        return [row.job_id for row in reader.jobs(Filters(), states=states or list(State))]


def test_every_job_is_answered_once_in_the_file(parked, api, jobs, out, url):
    said = parked("run", jobs("one", "two", "three"), "--out", str(out))

    assert said.status == 0
    assert said.err.splitlines()[-1] == "3 lines: 3 answered"
    assert said.err.startswith(f"made the ledger {full_name(url)}\n")
    assert set(answers(out)) == {"job-0", "job-1", "job-2"}
    line = answers(out)["job-0"]
    assert (line["state"], line["attempts"], line["text"]) == ("succeeded", 1, "Simulated answer to: one")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_what_another_run_has_ended_meanwhile_is_told_as_it_is_now(parked, api, jobs, out, story):
    """Both runs have the same jobs in their files; the one that ends last has all of the answers."""
    theirs = [story.running(f"job-{n}", payload={"contents": text}) for n, text in enumerate(("one", "two"))]
    still = story.running("job-2", payload={"contents": "three"})

    def ends_theirs(_request):
        closing = op.Closing(tokens_in=1, tokens_out=1, duration_s=0.5)
        for row in theirs:
            story.ledger.record(op.Answer(row.id, story.ledger.owner_id, 1, encode({"text": "42"}), closing))

    api.answers(ends_theirs)
    words = ("--out", str(out), "--pipeline", "nightly")
    said = parked("run", jobs("one", "two", "three", "four"), *words)

    assert len(api.requests) == 1
    assert set(answers(out)) == {"job-0", "job-1", "job-3"}
    assert said.err.splitlines()[-1].startswith("4 lines: 1 answered, 2 answered before (")
    assert said.err.splitlines()[-1].endswith(", 1 run by another process")
    assert said.status == 4

    story.ledger.record(op.Release(still.id, story.ledger.owner_id, attempt=1))
    assert parked("run", jobs("one", "two", "three", "four"), *words).status == 0


@sqlite_only
def test_a_run_that_finds_no_place_for_its_ledger_leaves_no_file_for_answers(parked, api, jobs, out, tmp_path, url):
    said = parked("--ledger", f"sqlite:///{tmp_path}/missing/parked.db", "run", jobs("one"), "--out", str(out))

    assert (said.status, "does not exist; create it first" in said.err) == (3, True)
    assert not out.exists()


def test_without_a_file_the_answers_are_printed(parked, api, jobs):
    said = parked("run", jobs("one"))

    assert json.loads(said.out)["text"] == "Simulated answer to: one"


def test_what_fails_is_parked_and_said(parked, api, jobs, out, url):
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if request.text == "bad" else None)

    said = parked("run", jobs("one", "bad", "three"), "--out", str(out))

    assert said.status == 1
    assert said.err.splitlines()[-1] == "3 lines: 2 answered, 1 parked"
    assert "parked list --pipeline default" in said.err
    assert stored(url, State.PARKED) == ["job-1"]


def test_parked_jobs_are_no_failure_where_they_are_expected(parked, api, jobs):
    api.answers(lambda request: reply.blocked_prompt("SAFETY"))

    assert parked("run", jobs("bad"), "--parked-ok").status == 0


def test_a_second_run_calls_only_what_is_new(parked, api, jobs, out):
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if request.text == "bad" else None)
    parked("run", jobs("one", "bad"), "--out", str(out))
    calls = len(api.requests)

    said = parked("run", jobs("one", "bad", "new"), "--out", str(out))

    assert len(api.requests) == calls + 1
    assert said.err.splitlines()[-1].startswith("3 lines: 1 answered, 1 answered before (2")
    assert said.err.splitlines()[-1].endswith("1 parked before")
    assert set(answers(out)) == {"job-0", "job-2"}


def test_a_file_that_lost_its_answers_gets_them_back_from_the_ledger(parked, api, jobs, out):
    parked("run", jobs("one", "two"), "--out", str(out))
    whole = answers(out)
    out.write_bytes(out.read_bytes()[:-20])

    said = parked("run", jobs("one", "two"), "--out", str(out))

    assert answers(out) == whole
    assert len(api.requests) == 2
    assert said.status == 0


def test_each_batch_has_ids_of_its_own(parked, api, jobs):
    file = jobs("one")

    assert parked("run", file, "--batch", "2026-03-01").status == 0
    assert parked("run", file, "--batch", "2026-03-02").status == 0

    assert len(api.requests) == 2


def test_both_line_forms_may_be_mixed(parked, api, tmp_path):
    file = tmp_path / "jobs.jsonl"
    request = {"contents": [{"parts": [{"text": "two"}]}], "generation_config": {"temperature": 0}}
    file.write_text(
        json.dumps({"job_id": "a-1", "model": "m-1", "payload": {"contents": "one", "config": {"temperature": 0}}})
        + "\n"
        + json.dumps({"key": "a-2", "request": request})
    )

    said = parked("run", str(file), "--model", "m-2")

    assert {json.loads(line)["text"] for line in said.out.splitlines()} == {
        "Simulated answer to: one",
        "Simulated answer to: two",
    }
    assert {request.model for request in api.requests} == {"m-1", "m-2"}


def test_a_caller_of_ones_own_needs_no_key(parked, jobs, tmp_path, monkeypatch):
    (tmp_path / "mycalls.py").write_text(
        "def call(payload, model):\n    return {'said': payload['contents'].upper()}\n"
    )
    monkeypatch.chdir(tmp_path)

    said = parked("run", jobs("one"), "--call", "mycalls:call")

    assert json.loads(said.out)["answer"] == {"said": "ONE"}


def test_an_answer_that_is_no_json_is_written_as_it_is_kept(parked, jobs, out, tmp_path, monkeypatch):
    (tmp_path / "models.py").write_text(
        "import datetime\nimport pydantic\n\nclass Label(pydantic.BaseModel):\n    said: str\n\n"
        "def call(payload, model):\n    said = payload['contents']\n"
        "    return {'one': Label(said=said), 'two': {'on': datetime.date.min}, 'three': {1: float('nan')}}[said]\n"
    )
    monkeypatch.chdir(tmp_path)

    said = parked("run", jobs("one", "two", "three"), "--out", str(out), "--call", "models:call")
    answers = parked("answers").out

    assert (said.status, said.err.splitlines()[-1]) == (0, "3 lines: 3 answered")
    assert sorted(out.read_text().splitlines()) == sorted(answers.splitlines())
    assert [json.loads(line)["answer"] for line in sorted(answers.splitlines())] == [
        {"said": "one"},
        "{'on': datetime.date(1, 1, 1)}",
        "{1: nan}",
    ]


def test_jobs_left_over_from_an_earlier_run_are_taken_up(parked, api, jobs, out, url):
    parked("run", jobs("one"), "--out", str(out), "--pipeline", "nightly")
    with open_ledger(url) as ledger:
        from parked.ledger import operations as op
        from parked.ledger.codec import encode, identity

        payload = {"contents": "left over"}
        ledger.record(
            op.Accept("nightly", "", "old", "m", encode(payload), identity(payload), caller="parked.gemini:Gemini")
        )

    said = parked("run", jobs("one"), "--out", str(out), "--pipeline", "nightly")

    assert said.status == 0
    assert said.err.splitlines()[-1].endswith("; left over from earlier: 1 succeeded")
    assert sorted(stored(url, State.SUCCEEDED)) == ["job-0", "old"]
    assert set(answers(out)) == {"job-0"}


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["missing.jsonl"], 2, "missing.jsonl"),
        (["{jobs}", "--concurrency", "0"], 2, "--concurrency"),
        (["{jobs}", "--concurrency", "many"], 2, "--concurrency"),
        (["{jobs}", "--max-attempts", "0"], 2, "--max-attempts"),
        (["{jobs}", "--call", "nowhere:call"], 2, "nowhere"),
        (["{jobs}", "--call", "json:nothing"], 2, "json:nothing"),
        (["{jobs}", "--call", "json"], 2, "module:function"),
        (["{jobs}", "--call", "heapq:merge"], 2, "the caller heapq:merge yields"),
        (["{jobs}", "--pipeline", ""], 2, "--pipeline"),
        (["{jobs}", "--wrong"], 2, "--wrong"),
        (["{jobs}", "--out", "/"], 2, "/"),
        (["{jobs}", "--ledger", "mysql://x"], 2, "mysql"),
        (["{jobs}", "--ledger", "sqlite:////nowhere/at/all.db"], 3, "/nowhere/at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_sentence_and_nothing_is_called_or_written(
    parked, api, jobs, no_ledger, words, status, says
):
    file = jobs("one")

    said = parked("run", *[word.replace("{jobs}", file) for word in words])

    assert said.status == status
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert api.requests == []
    assert no_ledger()


def test_without_a_key_nothing_is_accepted(parked, jobs, no_ledger):
    said = parked("run", jobs("one"))

    assert said.status == 2
    assert "GEMINI_API_KEY" in said.err
    assert no_ledger()


def test_a_bad_line_is_named_with_its_number_and_nothing_of_the_file_is_run(parked, api, tmp_path, no_ledger):
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"job_id": "a", "model": "m", "payload": {"contents": "x"}}\n{"job_id": 7}\nnot json\n')

    said = parked("run", str(file))

    assert said.status == 2
    assert "line 2" in said.err
    assert "line 3" in said.err
    assert api.requests == []
    assert no_ledger()


def test_bad_lines_can_be_set_aside(parked, api, tmp_path):
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"job_id": "a", "model": "m", "payload": {"contents": "x"}}\nnot json\n')

    said = parked("run", str(file), "--skip-bad-lines")

    assert said.status == 0
    assert said.err.splitlines()[-1] == "2 lines: 1 answered, 1 rejected"
    assert Path(f"{file}.rejected.jsonl").read_text() == "not json\n"


def test_an_id_that_the_ledger_knows_with_another_payload_is_refused_before_anything_is_called(parked, api, jobs, url):
    parked("run", jobs("one"))
    calls = len(api.requests)

    said = parked("run", jobs("new", "another", name="other.jsonl"))

    assert said.status == 2
    assert "  line 1: id known with another payload (its job: succeeded); the first is 'job-0'" in said.err
    assert len(api.requests) == calls
    assert stored(url) == ["job-0"]


@pytest.mark.parametrize("command", ["run", "submit"])
def test_ids_that_are_known_with_another_payload_are_told_as_bad_lines_with_what_helps(
    parked, api, story, jobs, url, command
):
    words = ("--pipeline", "nightly", "--batch", "b")
    for n in range(8):
        story.parked(f"job-{n}", batch="b")
    story.pending("job-8", batch="b")
    story.parked("job-0", batch="another")
    file = jobs(*map(str, range(10)))

    said = parked(command, file, *words)

    assert (said.status, api.requests) == (2, [])
    assert said.err.splitlines()[-7:] == [
        f"parked: 9 of 10 lines of {file} can't be run, so nothing was started:",
        "  lines 1, 2, 3, 4, 5 and 3 more: id known with another payload (its job: parked); the first is 'job-0'",
        "  line 9: id known with another payload (its job: pending); the first is 'job-8'",
        "Mend them, or run the others with --skip-bad-lines.",
        "What was accepted stands; another payload is run under an id of its own, or in another --batch.",
        f"To replay what is parked with the payloads of the file: parked replay {' '.join(words)} --payload {file}",
        f"To put away what is pending: parked discard {' '.join(words)} --job job-8 --state pending --reason TEXT",
    ]
    proposed = [line.partition(": parked ")[2] for line in said.err.splitlines()[-2:]]
    assert [parked(*shlex.split(line)).err.splitlines()[-1][:30] for line in proposed] == [
        "would replay 8 jobs; nothing w",
        "would discard 1 job; nothing w",
    ]


@pytest.mark.parametrize(("command", "state"), [("run", "1 answered"), ("submit", "1 new")])
def test_ids_that_are_known_with_another_payload_can_be_set_aside_with_the_other_bad_lines(
    parked, api, story, jobs, command, state
):
    story.answered("job-1", pipeline="default")
    file = Path(jobs("one", "two", "three"))
    first, second, third = file.read_text().splitlines(keepends=True)
    file.write_text(first + "not json\n" + second + second + "\n" + third.replace("job-2", "job-0"))

    said = parked(command, str(file), "--skip-bad-lines")

    assert said.status == 0
    assert "line 3: id known with another payload (its job: succeeded); the first is 'job-1'" in said.err.splitlines()
    assert said.err.splitlines()[-1] == f"5 lines: {state}, 1 repeated, 3 rejected"
    rejected = "not json\n" + third.replace("job-2", "job-0") + second
    assert Path(f"{file}.rejected.jsonl").read_text() == rejected


def test_a_payload_that_could_send_the_key_elsewhere_is_refused(parked, api, tmp_path):
    file = tmp_path / "jobs.jsonl"
    config = {"http_options": {"base_url": "http://127.0.0.1:9"}}
    file.write_text(json.dumps({"job_id": "a", "model": "m", "payload": {"contents": "x", "config": config}}) + "\n")

    said = parked("run", str(file))

    assert said.status == 2
    assert "http_options" in said.err
    assert api.requests == []


def test_the_last_line_can_be_had_as_json(parked, api, jobs, out):
    said = parked("run", jobs("one"), "--out", str(out), "--json")

    told = json.loads(said.out)
    assert (told["lines"], told["answered"], told["parked"]) == (1, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_drains_the_run_and_the_next_one_goes_on(api, jobs, out, url, number, status):
    file = jobs(*[f"prompt {n}" for n in range(30)])
    api.hold()
    command = [sys.executable, "-m", "parked.cli", "run", file, "--out", str(out), "--concurrency", "4"]
    process = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True)
    api.wait_for_requests(4)

    process.send_signal(number)
    assert number.name in process.stderr.readline() + process.stderr.readline()
    api.release()
    _, err = process.communicate(timeout=20)

    assert process.returncode == status
    assert err.splitlines()[-1] == "30 lines: 4 answered, 26 pending"
    assert "26 jobs of the pipeline 'default' pending since" in err
    assert f"to go on: parked run {file} --out {out} --concurrency 4" in err
    again = subprocess.run(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert again.returncode == 0, again.stderr
    assert len(answers(out)) == 30
    assert sorted(stored(url)) == sorted(stored(url, State.SUCCEEDED))


@pytest.mark.slow
def test_a_second_signal_ends_at_once(api, jobs, out, url):
    api.hold()
    command = [sys.executable, "-m", "parked.cli", "run", jobs("one"), "--out", str(out)]
    process = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True)
    api.wait_for_requests(1)

    process.send_signal(signal.SIGTERM)
    assert "SIGTERM" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)

    assert process.returncode == 130


@pytest.mark.slow
def test_a_run_that_was_killed_shows_its_jobs_as_orphans_and_loses_none(api, jobs, out, url, parked):
    file = jobs(*[f"prompt {n}" for n in range(10)])
    api.hold()
    command = [sys.executable, "-m", "parked.cli", "run", file, "--out", str(out), "--concurrency", "3"]
    process = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.DEVNULL)
    api.wait_for_requests(3)
    process.kill()
    process.wait()
    api.release()

    said = parked("run", file, "--out", str(out))

    assert said.status == 1
    assert "3 jobs of a process that died parked as orphaned" in said.err
    assert said.err.splitlines()[-1] == "10 lines: 7 answered, 3 parked before"
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.count(Filters(error_class="orphaned:maybe_sent"), states=(State.PARKED,)) == 3
        assert reader.imbalances(thorough=True) == []
    assert len(answers(out)) == 7


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_run_and_is_said(api, jobs, url, shell):
    file = jobs(*[f"prompt {n}" for n in range(60)])

    done = shell(f"{sys.executable} -m parked.cli run {file} --concurrency 1 | head -n 1; exit ${{PIPESTATUS[0]}}")

    assert done.returncode == 3
    assert "answers can't be printed" in done.stderr
    assert stored(url, State.PENDING)


@sqlite_only
def test_answers_are_not_written_into_another_file_of_the_run(parked, api, jobs, url):
    file = jobs("one")
    before = Path(file).read_text()
    ledger = url.removeprefix("sqlite:///")

    for out in (
        file,
        ledger,
        f"{ledger}-wal",
        f"{file}.rejected.jsonl",
        str(Path(file).parent / "x" / ".." / "jobs.jsonl"),
    ):
        said = parked("run", file, "--out", out)
        assert (said.status, "--out" in said.err) == (2, True), out

    assert Path(file).read_text() == before
    assert not Path(ledger).exists()
    assert api.requests == []


def test_a_whole_line_that_is_no_answer_is_never_cut_off(parked, api, jobs, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text('{"job_id": "a", "model": "m", "payload": 1}')

    said = parked("run", jobs("one"), "--out", str(other))

    assert said.status == 2
    assert other.read_text() == '{"job_id": "a", "model": "m", "payload": 1}'


def test_a_caller_that_ends_the_program_is_no_success(parked, jobs, tmp_path, monkeypatch):
    (tmp_path / "ends.py").write_text("def call(payload, model):\n    raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)

    said = parked("run", jobs("one", "two"), "--call", "ends:call")

    assert said.status == 3
    assert "SystemExit" in said.err


@pytest.mark.slow
@sqlite_only
def test_a_run_waits_for_a_ledger_that_another_program_has_locked(api, jobs, out, url, parked):
    file = jobs(*[f"prompt {n}" for n in range(40)])
    parked("run", jobs("other", name="other.jsonl"), "--batch", "before")
    locked = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    api.hold()
    command = [sys.executable, "-m", "parked.cli", "run", file, "--out", str(out), "--concurrency", "2"]
    process = subprocess.Popen(command, env=dict(os.environ), stderr=subprocess.PIPE, text=True)
    api.wait_for_requests(3)

    locked.execute("BEGIN IMMEDIATE")
    api.release()
    locked.execute("COMMIT")
    locked.close()
    _, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert len(answers(out)) == 40


# --- --quiet ---------------------------------------------------------------------------------------------------------


def test_a_quiet_run_says_nothing_when_nothing_is_left_to_be_done(parked, api, jobs, out, url):
    first = parked("run", jobs("one", "two"), "--out", str(out), "--quiet")
    again = parked("run", jobs("one", "two"), "--out", str(out), "--quiet")

    assert (first.status, first.out, first.err) == (0, "", f"made the ledger {full_name(url)}\n")
    assert (again.status, again.out, again.err) == (0, "", "")


def test_a_quiet_run_says_in_one_line_what_is_parked_and_what_shows_why(parked, api, jobs, out, story):
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if request.text == "bad" else None)
    file = jobs("good", "bad")

    said = parked("run", file, "--out", str(out), "--pipeline", "nightly", "--quiet")

    assert said.status == 1
    assert said.err == "2 lines: 1 answered, 1 parked; why: parked causes --pipeline nightly\n"
    assert parked("run", file, "--out", str(out), "--pipeline", "nightly", "--quiet", "--parked-ok").err == ""


def test_a_quiet_run_says_in_one_line_what_is_pending_and_how_to_go_on(parked, api, jobs, out, story):
    api.answers(lambda request: reply.bad_key())
    words = ("run", jobs("one", "two"), "--out", str(out), "--quiet")

    said = parked(*words)

    assert said.status == 4
    (line,) = said.err.splitlines()
    assert line.startswith(
        "2 lines: 2 pending; paused: all models (auth_invalid); 2 jobs of the pipeline 'default' pending"
    )
    assert line.endswith(f"; to go on: parked {' '.join(words)}")


def test_a_quiet_run_tells_of_bad_lines_and_of_what_others_have_left(parked, api, jobs, out, story):
    file = Path(jobs("one"))
    file.write_text(file.read_text() + "no JSON\n")
    story.pending("left", pipeline="nightly")

    said = parked("run", str(file), "--out", str(out), "--pipeline", "nightly", "--quiet", "--skip-bad-lines")

    assert said.status == 0
    (line,) = said.err.splitlines()
    assert line.startswith(
        f"2 lines: 1 answered, 1 rejected; bad lines were set aside in {file}.rejected.jsonl; 1 job of"
    )


def test_an_error_of_a_quiet_run_is_one_line(parked, api, jobs, out, story):
    said = parked("run", jobs("one"), "--out", str(out.parent), "--quiet")

    assert said.status == 2
    assert said.err.splitlines() == [
        f"parked: answers can't be written to {out.parent}: Is a directory; name a file that can be by --out"
    ]
