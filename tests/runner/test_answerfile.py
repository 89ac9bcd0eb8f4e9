"""The file of answers: each exactly once, whatever broke its run off, and never somebody else's file."""

import errno
import json
import os
import stat
import time

import pytest

from parked.answerfile import AnswerLine, Key, open_answers
from parked.errors import OutputFailed, SettingsError
from parked.job import State


@pytest.fixture
def out(tmp_path):
    return tmp_path / "answers.jsonl"


def line(job_id: str, *, pipeline: str = "p", batch: str = "", answer: object = "42") -> AnswerLine:
    return AnswerLine(job_id, pipeline, batch, "m", State.SUCCEEDED, answer, "42", attempts=1)


def write(out, *lines: AnswerLine) -> list[bool]:
    with open_answers(str(out)) as answers:
        return [answers.add(one) for one in lines]


def ids(out) -> list[str]:
    return [json.loads(one)["job_id"] for one in out.read_text().splitlines()]


def test_a_line_has_the_documented_fields_in_their_order():
    assert line("a", answer={"x": 1}).json() == (
        '{"job_id": "a", "pipeline": "p", "batch": "", "model": "m", "state": "succeeded",'
        ' "answer": {"x": 1}, "text": "42", "attempts": 1}'
    )


def test_a_line_is_one_line_in_ascii_whatever_the_answer_holds():
    text = line("a", answer="\u2028 \x9b31m \ud800 \n ü").json()

    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["answer"] == "\u2028 \x9b31m \ud800 \n ü"


def test_a_new_file_belongs_to_its_owner_alone(out):
    write(out, line("a"))

    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_each_answer_is_written_once_also_by_a_later_run(out):
    assert write(out, line("a"), line("a")) == [True, False]
    assert write(out, line("a"), line("b")) == [False, True]

    assert ids(out) == ["a", "b"]


def test_the_same_id_of_another_pipeline_or_batch_is_another_answer(out):
    assert write(out, line("a"), line("a", pipeline="q"), line("a", batch="b")) == [True, True, True]


def test_what_the_file_holds_is_known(out):
    write(out, line("a"))

    with open_answers(str(out)) as answers:
        assert answers.has(Key("p", "", "a"))
        assert not answers.has(Key("p", "", "b"))


@pytest.mark.parametrize("torn", ["{", '{"job_id": "b', line("b").json()[:-1], "\0\0\0", '{"job_id": "b\0\0'])
def test_a_torn_last_line_is_cut_off(out, torn):
    write(out, line("a"))
    with out.open("a") as stream:
        stream.write(torn)

    write(out, line("b"))

    assert ids(out) == ["a", "b"]


def test_a_whole_last_line_without_its_end_is_kept(out):
    out.write_text(line("a").json() + "\n" + line("gone from the input").json())

    write(out, line("b"))

    assert ids(out) == ["a", "gone from the input", "b"]


@pytest.mark.parametrize(
    "content",
    ['{"job_id": "a", "model": "m", "payload": 1}\n', "my only notes", "notes\n", '{"job_id": 1}\n', "\xff\n"],
    ids=["a job file", "text", "lines of text", "other JSON", "bytes"],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(out, content):
    out.write_text(content, encoding="latin-1")

    with pytest.raises(SettingsError, match=r"answers.jsonl holds something else than answers \(line 1\)"):
        open_answers(str(out))

    assert out.read_text(encoding="latin-1") == content


def test_a_file_that_another_run_is_about_to_close_may_be_waited_for(out, monkeypatch):
    first = open_answers(str(out))
    monkeypatch.setattr(time, "sleep", lambda _: first.close())

    with open_answers(str(out), patience_s=30.0) as second:
        assert second.add(line("a"))


def test_a_file_that_was_made_for_nothing_is_taken_back_and_who_waits_for_it_makes_another(out, monkeypatch):
    first = open_answers(str(out))
    monkeypatch.setattr(time, "sleep", lambda _: first.__exit__(RuntimeError, None, None))

    with open_answers(str(out), patience_s=30.0) as second:
        assert second.add(line("a"))

    assert len(out.read_text().splitlines()) == 1


def test_what_was_there_before_is_never_taken_back(out):
    out.touch()

    with pytest.raises(RuntimeError), open_answers(str(out)):
        raise RuntimeError

    assert out.exists()


def test_a_file_that_another_run_writes_to_is_refused(out):
    with open_answers(str(out)), pytest.raises(OutputFailed, match="another run is writing to"):
        open_answers(str(out))

    assert write(out, line("b")) == [True]


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("no/such/file")])
def test_a_file_that_cannot_be_opened_is_named(out, make):
    make(out)

    with pytest.raises(SettingsError, match=r"answers can't be written to .*answers.jsonl: "):
        open_answers(str(out))


def test_a_full_disk_leaves_no_torn_line(out, monkeypatch):
    """The disk takes the first line, ten bytes of the second, and then no more."""
    write_whole = os.write
    takes = iter([None, 10])

    def write_until_full(fd, data):
        try:
            return write_whole(fd, data[: next(takes)])
        except StopIteration:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None

    with open_answers(str(out)) as answers:
        monkeypatch.setattr(os, "write", write_until_full)
        answers.add(line("a"))
        with pytest.raises(OutputFailed, match="No space left on device; the answers are in the ledger"):
            answers.add(line("b"))
        assert not answers.has(Key("p", "", "b"))

    assert ids(out) == ["a"]


def test_a_device_is_written_to_without_being_read():
    with open_answers("/dev/null") as answers:
        assert answers.add(line("a"))
    with pytest.raises(OutputFailed, match="No space left"), open_answers("/dev/full") as answers:
        answers.add(line("a"))


@pytest.mark.parametrize("where", [None, "-"])
def test_without_a_file_answers_are_printed_once_each(capsys, where):
    with open_answers(where) as answers:
        answers.add(line("a"))
        answers.add(line("a"))

    assert capsys.readouterr().out == line("a").json() + "\n"
