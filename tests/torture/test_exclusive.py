"""Runs of one pipeline that overlap, side by side or with --exclusive one after the other: in real processes."""

from __future__ import annotations

import json
import re
import select
import signal
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from parked.ledger import operations as op
from parked.owners import _start_and_state
from torture.conftest import until

pytestmark = pytest.mark.slow

FAR_AWAY = op.OwnerFacts("c0ffee", "runner", "build-7", "another boot", "pid:[1]", 4711, "99", "1.0.0")
KEY = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE="
NEW_KEY = "bmV3IG5ldyBuZXcgbmV3IG5ldyBuZXcgbmV3IG5ldyE="
GEMINI = op.Called("parked.gemini:Gemini", "")


@pytest.fixture
def run(tmp_path) -> Callable[..., list[str]]:
    """Returns a function that writes a file of jobs and returns the words of its run."""

    def words(name: str, *ids: str, exclusive: bool = True) -> list[str]:
        lines = [{"job_id": id, "model": "m", "payload": {"contents": f"prompt of {id}"}} for id in ids]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        base = ["parked", "run", str(tmp_path / f"{name}.jsonl"), "--out", str(tmp_path / f"{name}.out.jsonl")]
        return [*base, "--pipeline", "nightly", *(["--exclusive"] if exclusive else [])]

    return words


def states(books: Any) -> dict[str, str]:
    return {id: row.state.value for id, row in books.jobs().items()}


def test_runs_that_overlap_call_each_their_own_and_no_job_twice(commands, books, simulator, run):
    simulator.hold()
    first = commands.begin(*run("first", "a", "both", exclusive=False))
    simulator.wait_for_requests(2)
    second = commands.begin(*run("second", "both", "b", exclusive=False))
    simulator.wait_for_requests(3)
    simulator.release()

    # The second looks once more at its end, and may come before the first has its answer.
    ends = {0: "2 lines: 1 answered, 1 answered before", 4: "2 lines: 1 answered, 1 run by another process"}
    assert (first.end(), second.end() in ends) == (0, True)
    assert "2 lines: 2 answered" in first.said
    assert ends[second.end()] in second.said
    assert states(books) == {"a": "succeeded", "b": "succeeded", "both": "succeeded"}
    assert len(simulator.requests) == 3


def test_an_exclusive_run_leaves_its_jobs_to_the_one_that_is_alive_and_says_whose_it_is(
    commands, books, simulator, run, tmp_path
):
    simulator.hold()
    first = commands.begin(*run("night", "a"))
    simulator.wait_for_requests(1)

    second = commands.begin(*run("day", "b", "c"))

    assert second.end() == 4
    assert re.search(
        rf"the pipeline 'nightly' is run by pid {first.pid} on \S+ since \S+ \S+Z, which takes up what is pending\n",
        second.said,
    )
    assert second.said.endswith("2 lines: 2 pending\n")
    assert not (tmp_path / "day.out.jsonl").exists()
    simulator.release()
    assert first.end() == 0
    assert "left over from earlier: 2 succeeded" in first.said
    assert states(books) == {"a": "succeeded", "b": "succeeded", "c": "succeeded"}
    third = commands.run(*run("day", "b", "c"))
    assert "2 answered before" in third.said
    assert len((tmp_path / "day.out.jsonl").read_text().splitlines()) == 2
    assert len(simulator.requests) == 3


def test_the_same_command_twice_may_name_the_same_output(commands, books, simulator, run):
    simulator.hold()
    first = commands.begin(*run("night", "a", "b"))
    simulator.wait_for_requests(2)

    second = commands.begin(*run("night", "a", "b"), "--json")

    assert second.end() == 4
    told = json.loads(second.said[second.said.index("{") : second.said.rindex("}") + 1])
    assert (told["elsewhere"], told["run_by"]["pid"]) == (2, first.pid)
    simulator.release()
    assert first.end() == 0
    assert len(simulator.requests) == 2


def test_a_run_that_calls_otherwise_is_told_apart_and_the_command_for_its_jobs_named(commands, books, simulator, run):
    simulator.hold()
    first = commands.begin(*run("night", "a"))
    simulator.wait_for_requests(1)

    second = commands.begin(*run("day", "b"), "--allow-truncated")

    assert second.end() == 4
    assert "leaves these jobs; to run them: parked work --pipeline nightly --until-empty" in second.said
    simulator.release()
    assert first.end() == 0
    assert states(books) == {"a": "succeeded", "b": "pending"}


def test_many_exclusive_runs_at_once_run_one_after_the_other_and_leave_nothing(commands, books, simulator, run):
    rounds = [[commands.begin(*run(f"{n}-{i}", f"{n}-{i}-a", f"{n}-{i}-b")) for i in range(4)] for n in range(3)]

    ends = [command.end() for each in rounds for command in each]

    assert set(ends) <= {0, 4}
    assert 0 in ends
    assert set(states(books).values()) == {"succeeded"}, "either the living one saw them, or whoever brought them did"
    assert len(states(books)) == len(simulator.requests) == 24
    assert not overlapping(books), "one at a time"


def test_what_is_handed_over_after_the_last_claim_and_before_the_end_is_run(commands, books, simulator, run):
    commands.run(*run("night", "a"))
    at_the_end = commands.begin(*run("night", "a"), points=["by:SIGSTOP", "after:claim"])
    until(lambda: _start_and_state(at_the_end.pid)[1] == "T")

    assert commands.begin(*run("day", "b")).end() == 4
    at_the_end.kill(signal.SIGCONT)

    assert at_the_end.end() == 0
    assert "1 answered before" in at_the_end.said
    assert states(books) == {"a": "succeeded", "b": "succeeded"}


def test_whoever_was_told_of_a_run_that_has_ended_meanwhile_runs_its_jobs_itself(commands, books, simulator, run):
    simulator.hold()
    first = commands.begin(*run("night", "a"))
    simulator.wait_for_requests(1)
    second = commands.begin(*run("day", "b"), points=["by:SIGSTOP", "after:enter_run"])
    until(lambda: _start_and_state(second.pid)[1] == "T")
    simulator.release()
    assert first.end() == 0

    second.kill(signal.SIGCONT)

    assert second.end() == 0
    assert second.said.endswith("1 line: 1 answered\n")
    assert states(books) == {"a": "succeeded", "b": "succeeded"}


def overlapping(books: Any) -> list[Any]:
    """The owners that called while another did."""
    spans: dict[int | None, list[Any]] = {}
    for attempt in (attempt for id in books.jobs() for attempt in books.attempts(id)):
        spans.setdefault(attempt.owner_id, []).append(attempt)
    calls = sorted((min(a.started_at for a in of), max(a.ended_at for a in of)) for of in spans.values())
    return [(one, other) for one, other in pairwise(calls) if other[0] < one[1]]


def test_a_run_that_pauses_or_is_told_to_end_names_what_was_handed_over_to_it(commands, books, simulator, run):
    simulator.hold()
    first = commands.begin(*run("night", "a"))
    simulator.wait_for_requests(1)
    assert commands.begin(*run("day", "b", "c")).end() == 4

    first.kill(signal.SIGTERM)
    until(lambda: "no new call starts" in first.said)
    simulator.release()

    assert first.end() == 143
    assert "2 jobs of the pipeline 'nightly' pending since" in first.said
    assert states(books) == {"a": "succeeded", "b": "pending", "c": "pending"}


# --- texts that one of them can't read -----------------------------------------------------------------------------


def keys(*keys: str) -> dict[str, str]:
    return {"PARKED_STORE": "encrypted", "PARKED_STORE_KEYS": ",".join(keys)}


def test_what_the_living_run_has_no_key_for_it_leaves_and_says_so_and_nothing_of_its_own_suffers(
    commands, books, simulator, run
):
    simulator.hold()
    first = commands.begin(*run("night", "a", "b"), "--concurrency", "1", **keys(KEY))
    simulator.wait_for_requests(1)
    assert commands.begin(*run("day", "c"), **keys(NEW_KEY)).end() == 4
    simulator.release()

    assert first.end() == 0, first.said
    assert "1 job of the pipeline 'nightly' pending since" in first.said
    assert "since not all their payloads can be read here" in first.said
    assert first.said.endswith("2 lines: 2 answered\n")
    assert commands.begin(*run("day", "c"), **keys(NEW_KEY)).end() == 0
    assert states(books) == {"a": "succeeded", "b": "succeeded", "c": "succeeded"}


def test_who_hands_jobs_to_a_run_that_can_not_read_them_is_told_that_it_leaves_them(commands, books, simulator, run):
    simulator.hold()
    first = commands.begin(*run("night", "a", exclusive=False), PARKED_STORE="none")
    simulator.wait_for_requests(1)

    second = commands.begin(*run("day", "b"))

    assert second.end() == 4
    assert "stores no texts or can't read all of them and leaves these jobs; to run them: parked work" in second.said
    simulator.release()
    assert first.end() == 0
    assert states(books) == {"a": "succeeded", "b": "pending"}


# --- killed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["enter_run", "accept", "leave_run"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_anywhere_an_exclusive_run_is_in_no_others_way(commands, books, simulator, run, when, method):
    commands.run(*run("night", "a", "b"), die_at=f"{when}:{method}")

    next_one = commands.begin(*run("day", "b", "c"))

    assert next_one.end() == 0, next_one.said
    assert {"b": "succeeded", "c": "succeeded"}.items() <= states(books).items()
    assert set(states(books).values()) == {"succeeded"}
    assert len(simulator.requests) == len(states(books))


@pytest.mark.parametrize("point", ["before:accept", "after:accept"])
def test_killed_while_it_hands_over_what_was_accepted_is_taken_up(commands, books, simulator, run, point):
    simulator.hold()
    first = commands.begin(*run("night", "a"))
    simulator.wait_for_requests(1)

    commands.run(*run("day", "b", "c"), die_at=point)
    simulator.release()

    assert first.end() == 0
    assert set(states(books).values()) == {"succeeded"}
    assert len(states(books)) == (3 if point == "after:accept" else 1)


@pytest.mark.parametrize("point", ["before:leave_run", "after:leave_run"])
def test_the_living_run_killed_as_it_leaves_the_next_one_goes_on_with_what_was_handed_over(
    commands, books, simulator, run, point
):
    simulator.hold()
    first = commands.begin(*run("night", "a"), points=[point])
    simulator.wait_for_requests(1)
    assert commands.begin(*run("day", "b")).end() == 4
    simulator.release()
    assert first.end() == -9

    assert commands.begin(*run("next", "c")).end() == 0

    assert states(books) == {"a": "succeeded", "b": "succeeded", "c": "succeeded"}


# --- on other machines -------------------------------------------------------------------------------------------


def far_away(books: Any) -> int:
    owner: int = books.ledger.record(op.Register(FAR_AWAY))
    books.ledger.record(op.EnterRun(owner, op.Run("nightly", GEMINI)))
    return owner


def test_a_run_on_another_machine_that_beats_takes_the_jobs(commands, books, simulator, run):
    commands.run("parked", "migrate")
    owner = far_away(books)
    command = commands.begin(*run("day", "a"))

    until(lambda: books.ledger.record(op.Beat(owner)).mine and command_ended(command))

    assert command.status == 4
    assert "is run by pid 4711 on build-7 since" in command.said
    assert states(books) == {"a": "pending"}
    assert simulator.requests == []


def command_ended(command: Any) -> bool:
    if select.select([command.nursery], [], [], 0.05)[0]:
        command.nursery._hear()
    return command.status is not None


def test_a_run_on_another_machine_that_beats_no_more_is_waited_for_until_it_is_lost(commands, books, simulator, run):
    commands.run("parked", "migrate")
    far_away(books)

    command = commands.begin(*run("day", "a"), points=["quick"])

    assert command.end() == 0
    assert "waiting to see whether pid 4711 on build-7 since" in command.said
    assert states(books) == {"a": "succeeded"}
