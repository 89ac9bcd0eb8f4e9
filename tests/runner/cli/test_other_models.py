"""Running known jobs with another model: after a model was retired, say."""

from __future__ import annotations

import json
import threading
import time

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.store import Filters
from parked.simulator import replies as reply


@pytest.fixture
def file(tmp_path):
    """Returns a function that writes a file of so many jobs that name this model, or none."""

    def write(count, model=None):
        file = tmp_path / "jobs.jsonl"
        named = {} if model is None else {"model": model}
        lines = [{"job_id": f"job-{n:03}", "payload": {"contents": f"{n}?"}, **named} for n in range(count)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(file)

    return write


@pytest.fixture
def retired(api):
    """The model `old` is."""
    api.answers(lambda request: reply.model_not_found() if request.model == "old" else None)


def models(url):
    """How many jobs there are by state and model."""
    found: dict[tuple[State, str], int] = {}
    with open_ledger(url) as ledger, ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []
        for row in reader.jobs(Filters(), states=list(State)):
            found[row.state, row.model] = found.get((row.state, row.model), 0) + 1
    return found


def test_jobs_of_a_retired_model_are_run_with_the_model_that_is_named_next(parked, retired, file, url):
    assert parked("run", file(20), "--model", "old").status == 4
    assert models(url) == {(State.PENDING, "old"): 20}

    said = parked("run", file(20), "--model", "new")

    assert said.status == 0
    assert "20 pending jobs moved from the model old to new" in said.err.splitlines()
    assert models(url) == {(State.SUCCEEDED, "new"): 20}


def test_the_three_lines_of_the_pause_name_the_command_that_moves_the_jobs(parked, retired, file):
    jobs = file(20)

    said = parked("run", jobs, "--model", "old", "--pipeline", "nightly")

    command = f"parked run {jobs} --model OTHER-MODEL --pipeline nightly"
    what, do, go_on = said.err.splitlines()[-4:-1]
    assert what.startswith("paused, the model old:")
    assert do == f"what to do: change the model: {command}"
    assert go_on.endswith(f"to go on: {command}")


def test_where_the_lines_name_the_model_they_are_to_be_changed(parked, retired, file, url):
    said = parked("run", file(20, "old"), "--model", "new")

    assert said.status == 4
    (do,) = [line for line in said.err.splitlines() if line.startswith("what to do")]
    assert do.startswith("what to do: change the model: name another one in the lines of ")
    assert do.count("model") == 1
    assert "OTHER-MODEL" not in said.err

    assert parked("run", file(20, "new")).status == 0
    assert models(url) == {(State.SUCCEEDED, "new"): 20}


def test_what_an_earlier_night_has_left_over_is_moved_with_the_file_of_its_batch(parked, retired, file, url):
    parked("run", file(20), "--model", "old", "--batch", "monday")

    said = parked("run", file(20), "--model", "new", "--batch", "tuesday")

    assert said.status == 4
    assert "parked run JOBS --pipeline default --batch monday --model OTHER-MODEL" in said.err

    assert parked("run", file(20), "--model", "new", "--batch", "monday").status == 0
    assert models(url) == {(State.SUCCEEDED, "new"): 40}


def test_a_worker_names_the_command_that_hands_in_the_jobs_for_another_model(parked, retired, file, url):
    parked("submit", file(20), "--model", "old", "--pipeline", "nightly")

    said = parked("work", "--until-empty", "--pipeline", "nightly")

    assert said.status == 4
    assert "parked submit JOBS --pipeline nightly --model OTHER-MODEL" in said.err

    moved = parked("submit", file(20), "--model", "new", "--pipeline", "nightly", "--json")
    assert json.loads(moved.out)["moved"] == 20
    assert "20 pending jobs moved from the model old to new" in moved.err.splitlines()

    assert parked("work", "--until-empty", "--pipeline", "nightly").status == 0
    assert models(url) == {(State.SUCCEEDED, "new"): 20}


def test_a_quiet_run_of_a_retired_model_names_the_command_with_another(parked, retired, file):
    jobs = file(20)

    said = parked("run", jobs, "--model", "old", "--quiet")

    assert said.status == 4
    assert said.err.splitlines()[-1].endswith(f"; to go on: parked run {jobs} --model OTHER-MODEL --quiet")


def test_a_quiet_run_says_where_the_lines_name_the_retired_model(parked, retired, file):
    jobs = file(20, "old")

    said = parked("run", jobs, "--model", "new", "--quiet")

    assert said.err.splitlines()[-1].endswith(
        f"; to go on: name another one in the lines of {jobs} instead of old, and give the same command again"
    )


def test_a_worker_proposes_itself_only_behind_the_command_that_names_another_model(parked, retired, file, url):
    parked("submit", file(20), "--model", "old", "--pipeline", "nightly", "--batch", "b")
    words = ("work", "--until-empty", "--concurrency", "4")
    way = (
        "; to go on: parked submit JOBS --pipeline nightly --batch b --model OTHER-MODEL,"
        " then parked work --until-empty --concurrency 4"
    )

    said, quiet = parked(*words), parked(*words, "--quiet")

    assert said.err.splitlines()[-2].endswith(way)
    assert quiet.err.splitlines()[-1].endswith(f"{way} --quiet")


def test_a_summary_proposes_a_worker_behind_the_command_that_names_another_model(parked, retired, file):
    parked("run", file(20), "--model", "old", "--batch", "b")

    said = parked("summary")

    assert said.err.splitlines()[-2:] == [
        "  parked submit JOBS --pipeline default --batch b --model OTHER-MODEL",
        "  parked work --pipeline default --until-empty",
    ]
    parked("submit", file(20), "--model", "new", "--batch", "b")
    assert "OTHER-MODEL" not in parked("summary").err
    assert parked("work", "--pipeline", "default", "--until-empty").status == 0


def test_beside_a_retired_model_what_waits_for_others_goes_on_as_it_is(parked, retired, file, story):
    jobs = file(20)
    parked("run", jobs, "--model", "old")
    story.ledger.record(op.Accept("default", "", "a", "m", encode(1), identity(1), caller="script:missing_here"))

    run = parked("run", jobs, "--model", "old")
    work = parked("work", "--until-empty", "--pipeline", "default")

    assert run.err.splitlines()[-2].endswith(f"; to go on: parked run {jobs} --model OTHER-MODEL")
    assert work.err.splitlines()[-2].endswith(
        "; to go on: parked work --until-empty --pipeline default; for what is pending for old: parked submit JOBS"
        " --pipeline default --model OTHER-MODEL, then parked work --until-empty --pipeline default"
    )


def test_answered_and_parked_jobs_keep_their_model_and_that_is_said(parked, api, file, url, tmp_path):
    api.answers(lambda request: reply.blocked_prompt("SAFETY") if request.text == "1?" else None)
    parked("run", file(3), "--model", "old")
    calls = len(api.requests)

    said = parked("run", file(3), "--model", "new", "--out", str(tmp_path / "out.jsonl"), "--json")

    assert len(api.requests) == calls
    assert models(url) == {(State.SUCCEEDED, "old"): 2, (State.PARKED, "old"): 1}
    assert "2 jobs answered before keep the model old, not new" in said.err.splitlines()
    assert "1 job parked before keeps the model old, not new" in said.err.splitlines()
    assert "parked replay --pipeline default --model old --to-model new" in said.err
    told = json.loads(said.out)
    assert (told["moved"], told["other_model"]) == (0, 3)


def test_show_tells_with_which_model_a_job_was_accepted_and_called(parked, retired, file):
    parked("run", file(2), "--model", "old")
    parked("run", file(2), "--model", "new")

    told = json.loads(parked("show", "job-000", "--json").out)

    assert told["job"]["model"] == "new"
    assert [(revision["revision"], revision["model"]) for revision in told["revisions"]] == [(0, "old"), (1, "new")]
    assert [(attempt["model"], attempt["outcome"]) for attempt in told["attempts"]] == [
        ("old", "failed"), ("new", "answered"),
    ]  # fmt: skip
    assert "accepted again, with another model" in parked("show", "job-000").out


def move(url, count):
    """Another process accepts the jobs of the file with another model."""
    with open_ledger(url) as ledger:
        for n in range(count):
            payload = {"contents": f"{n}?"}
            accept = op.Accept("default", "", f"job-{n:03}", "new", encode(payload), identity(payload))
            ledger.record(accept._replace(caller="gemini"))


def test_a_run_that_has_jobs_in_line_heeds_another_process_that_moves_them(parked, api, file, url, tmp_path):
    """No job is called for both, and the run still answers all of its file."""

    def moved(request):
        if request.model == "old":
            move(url, 20)

    api.answers(moved)

    said = parked("run", file(20), "--model", "old", "--concurrency", "1", "--out", str(tmp_path / "out.jsonl"))

    assert [request.model for request in api.requests] == ["old", *["new"] * 19]
    assert len({request.text for request in api.requests}) == 20
    assert said.status == 0
    assert "19 jobs that another process has moved meanwhile keep the model new, not old" in said.err.splitlines()
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20


def test_a_run_that_waits_at_the_pause_of_a_retired_model_runs_what_another_process_moves(
    parked, api, retired, file, url, tmp_path
):
    """Without waiting for its next try, which would be in five minutes."""

    def operator():
        ends = time.monotonic() + 90
        while models(url) != {(State.PENDING, "old"): 3} or len(api.requests) < 3:
            assert time.monotonic() < ends
        move(url, 3)

    jobs = file(3)
    moves = threading.Thread(target=operator)
    moves.start()
    said = parked(
        "run", jobs, "--model", "old", "--wait-until", "2m", "--concurrency", "1", "--out", str(tmp_path / "out.jsonl")
    )
    moves.join()

    assert said.status == 0
    assert [request.model for request in api.requests] == ["old"] * 3 + ["new"] * 3
    assert models(url) == {(State.SUCCEEDED, "new"): 3}
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
