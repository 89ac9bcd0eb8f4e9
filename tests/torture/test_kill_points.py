"""Killed at the worst moments, one by one: what the next process finds, and makes good."""

from __future__ import annotations

import json

import psycopg
import pytest

from parked.ledger import open_ledger
from parked.ledger.migrations import migrations
from parked.simulator import replies as reply
from torture.conftest import until

pytestmark = pytest.mark.slow

MAYBE_SENT = ("parked", "orphaned:maybe_sent")
NOT_SENT = ("parked", "orphaned:not_sent")


@pytest.fixture
def run(tmp_path):
    """The words of a run of one job, or of so many, with an output file."""

    def words(jobs: int = 1) -> list[str]:
        lines = [{"job_id": f"job-{n}", "model": "m", "payload": {"contents": f"prompt {n}"}} for n in range(jobs)]
        (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return ["parked", "run", str(tmp_path / "jobs.jsonl"), "--out", str(tmp_path / "answers.jsonl")]

    return words


@pytest.fixture
def written(tmp_path):
    """Returns a function that reads the ids in the output file, each line whole."""

    def read() -> list[str]:
        text = (tmp_path / "answers.jsonl").read_text()
        assert text == "" or text.endswith("\n")
        return [json.loads(line)["job_id"] for line in text.splitlines()]

    return read


def test_killed_in_a_call_the_job_is_an_orphan_of_the_next_process_at_once(commands, books, simulator, run):
    simulator.hold()
    victim = commands.begin(*run())
    simulator.wait_for_requests(1)
    victim.kill()
    victim.end()
    simulator.release()

    said = commands.run(*run()).said

    assert "1 job of a process that died parked as orphaned" in said
    assert books.state() == MAYBE_SENT
    (attempt,) = books.attempts()
    assert (attempt.interrupted, attempt.answered, attempt.ended_at is not None) == (True, False, True)
    assert len(simulator.requests) == 1, "an orphan is never quietly run again"


def test_killed_between_answer_and_commit_the_call_is_in_the_history_and_can_be_replayed(
    commands, books, simulator, run, written
):
    commands.run(*run(), die_at="before:finish")
    commands.run(*run())

    assert books.state() == MAYBE_SENT
    assert [attempt.interrupted for attempt in books.attempts()] == [True]
    assert written() == []
    commands.run("parked", "replay", "--all", "--apply")
    commands.run(*run())
    assert books.state() == ("recovered", "orphaned:maybe_sent")
    assert written() == ["job-0"]
    assert len(simulator.requests) == 2


@pytest.mark.parametrize("point", ["after:finish", "half-a-line"])
def test_killed_between_commit_and_output_line_the_next_run_writes_it_without_a_call(
    commands, books, simulator, run, written, point
):
    commands.run(*run(), die_at=point)
    assert books.state() == ("succeeded", None)

    said = commands.run(*run()).said

    assert "1 answered before" in said
    assert written() == ["job-0"]
    assert len(simulator.requests) == 1


@pytest.mark.parametrize("point", ["before:accept", "after:accept"])
def test_killed_while_jobs_are_taken_on_the_next_run_calls_each_once(commands, books, simulator, run, written, point):
    commands.run(*run(3), die_at=point)
    assert len(books.jobs()) == (3 if point == "after:accept" else 0)

    commands.run(*run(3))

    assert sorted(written()) == ["job-0", "job-1", "job-2"]
    assert len(simulator.requests) == 3


def test_killed_between_two_attempts_the_job_was_not_sent_again_and_keeps_its_failure(commands, books, simulator, run):
    simulator.will_answer(reply.no_candidates())
    commands.run(*run(), die_at="after:retried")

    commands.run(*run())

    assert books.state() == NOT_SENT
    (attempt,) = books.attempts()
    assert (attempt.interrupted, attempt.reason, attempt.strike) == (False, "empty_answer", True)


def test_a_worker_killed_as_it_claims_leaves_a_pending_job_or_an_orphan(commands, books, simulator, run):
    file = run()[2]
    commands.run("parked", "submit", file)
    commands.run("parked", "work", die_at="before:add_payloads")
    assert books.state() == ("pending", None)

    commands.run("parked", "work", die_at="after:add_payloads")
    commands.run("parked", "work", "--until-empty")

    assert books.state() == MAYBE_SENT, "its call may have been made, for all that anybody knows"
    assert simulator.requests == []


@pytest.mark.parametrize("point", ["before:finish", "after:start"])
def test_a_replay_that_is_killed_leaves_an_orphan_which_the_next_one_recovers(commands, books, simulator, run, point):
    simulator.will_answer(reply.invalid_request())
    commands.run(*run())
    assert books.state() == ("parked", "permanent:400")

    commands.run("parked", "replay", "--all", "--apply", die_at=point)
    first = commands.run("parked", "replay", "--all", "--apply")

    assert "orphaned just now by a process that died" in first.said
    assert books.state() == MAYBE_SENT
    assert [attempt.interrupted for attempt in books.attempts()] == [False, True]
    assert books.counted("jobs_replayed") == {("permanent:400", "manual/parked_again"): 1}
    commands.run("parked", "replay", "--all", "--apply")
    assert books.state()[0] == "recovered"


def test_a_replay_killed_after_the_commit_of_its_answer_has_recovered_the_job(commands, books, simulator, run, written):
    simulator.will_answer(reply.invalid_request())
    commands.run(*run())

    commands.run("parked", "replay", "--all", "--apply", die_at="after:finish")
    commands.run(*run())

    assert books.state() == ("recovered", "permanent:400")
    assert written() == ["job-0"]
    assert len(simulator.requests) == 2


@pytest.mark.parametrize("point", ["before:take_over", "after:take_over"])
def test_an_import_that_is_killed_is_finished_by_the_next_one(commands, books, table, point):
    file = table(600)
    commands.run("parked", "import", file, die_at=point)
    taken = len(books.jobs())
    assert taken < 600

    said = commands.run("parked", "import", file).said

    assert f"{600 - taken} taken over, {taken} known before, 0 refused" in said
    assert len(books.jobs()) == 600
    assert books.counted("jobs_parked") == {("exhausted:503", "overloaded"): 600}


@pytest.mark.parametrize("point", ["before:lose", "after:lose"])
def test_a_sidecar_killed_in_its_sweep_leaves_it_to_the_next_one(commands, books, simulator, run, point):
    simulator.hold()
    victim = commands.begin(*run())
    simulator.wait_for_requests(1)
    victim.kill()
    victim.end()
    commands.run("parked-exporter", "--listen", "127.0.0.1:0", die_at=point)

    commands.begin("parked-exporter", "--listen", "127.0.0.1:0")
    until(lambda: books.state() == MAYBE_SENT)

    assert books.counted("jobs_parked") == {("orphaned:maybe_sent", "maybe_sent"): 1}
    assert [attempt.interrupted for attempt in books.attempts()] == [True]


# --- migrations --------------------------------------------------------------------------------------------------


def test_killed_anywhere_while_a_ledger_is_made_the_next_process_makes_it(commands, books):
    steps = migrations("sqlite" if commands.env["PARKED_LEDGER"].startswith("sqlite") else "postgres")
    statements = sum(len(step.statements) + 1 for step in steps)  # and the note of each
    for number in (1, 2, statements // 2, statements):
        commands.run("parked", "migrate", die_at=f"statement:{number}")

    assert commands.run("parked", "migrate").said.endswith("created\n")
    assert books.jobs() == {}


def columns_of_jobs(url: str) -> list[str]:
    if url.startswith("sqlite"):
        with open_ledger(url, create=False) as ledger, ledger.ask() as reader:
            return [name for _, name, *_ in reader.ask("PRAGMA table_info(jobs)", {})]  # type: ignore[attr-defined]
    with psycopg.connect(url) as connection:
        return [column.name for column in connection.execute("SELECT * FROM parked.jobs LIMIT 0").description or ()]


@pytest.mark.parametrize("statement", [1, 2, 3, 4])
def test_killed_in_the_middle_of_a_migration_the_schema_is_the_old_or_the_new_one_whole(
    commands, books, simulator, run, statement
):
    commands.run(*run(2))
    url = commands.env["PARKED_LEDGER"]

    victim = commands.begin("parked", "migrate", points=["upgrade", f"statement:{statement}"])
    assert victim.end() == -9

    assert "more" not in columns_of_jobs(url)
    assert len(books.jobs()) == 2
    upgraded = commands.begin("parked", "migrate", points=["upgrade"])
    assert upgraded.end() == 0
    assert "9001 more" in upgraded.said
    assert "more" in columns_of_jobs(url)
    commands.run(*run(3))
    assert len(books.jobs()) == 3, "the step is additive, so who knows nothing of it goes on"
