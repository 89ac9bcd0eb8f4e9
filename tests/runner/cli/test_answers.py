"""`parked answers`: lines as documented, and `--new` that never skips one."""

import json
import sys

import pytest


def ids(said) -> list[str]:
    assert said.status == 0
    return [json.loads(line)["job_id"] for line in said.out.splitlines()]


def test_answers_are_lines_of_json_with_the_documented_fields(parked, story):
    story.answered("a", pipeline="captions", batch="night")
    story.parked("b")

    (line,) = map(json.loads, parked("answers").out.splitlines())

    assert list(line) == ["job_id", "pipeline", "batch", "model", "state", "answer", "text", "attempts"]
    assert (line["job_id"], line["pipeline"], line["batch"]) == ("a", "captions", "night")
    assert (line["state"], line["text"], line["attempts"]) == ("succeeded", "42", 1)
    assert line["answer"]["candidates"][0]["finishReason"] == "STOP"


def test_without_new_the_same_answers_come_each_time(parked, story):
    story.answered("a")

    assert ids(parked("answers")) == ids(parked("answers")) == ["a"]


def test_new_answers_come_once(parked, story):
    story.answered("a")
    first = ids(parked("answers", "--new"))
    story.answered("b")
    second = ids(parked("answers", "--new"))

    assert (first, second, ids(parked("answers", "--new"))) == (["a"], ["b"], [])
    assert ids(parked("answers")) == ["a", "b"]


def test_filters_choose_answers(parked, story):
    story.answered("a", pipeline="one")
    story.answered("b", pipeline="two")

    assert ids(parked("answers", "--pipeline", "two")) == ["b"]
    assert ids(parked("answers", "--since", "1h")) == ["a", "b"]
    assert ids(parked("answers", "--until", "1h")) == []


@pytest.mark.parametrize("broken", ["/dev/full", "a reader that went away"])
def test_answers_that_were_not_written_are_not_marked(parked, story, url, shell, broken):
    for number in range(10):
        story.answered(f"a{number}", answer="x" * 100_000)
    command = f"{sys.executable} -m parked.cli answers --new --ledger {url}"

    if broken == "/dev/full":
        done = shell(f"{command} > /dev/full; echo $?")
    else:
        done = shell(f"{command} | head -c 10 > /dev/null; echo ${{PIPESTATUS[0]}}")

    assert done.stdout == "3\n"
    assert len(ids(parked("answers", "--new"))) == 10
