"""The answers of recovered jobs on their way to the user's own function, on each database."""

from __future__ import annotations

import itertools
import json
import logging
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, encode_answer, identity
from parked.ledger.counters import Metric
from parked.verdict import Kind, Reason, Scope
from parked_exporter import deliveries, metrics
from parked_exporter.collector import look
from parked_exporter.deliveries import TRIES, deliver_answers, wait_s
from parked_exporter.schedule import Context, run_task, tasks_for

PATIENCE_S = 20.0
GEMINI = {"candidates": [{"content": {"parts": [{"text": "six times seven"}]}, "finishReason": "STOP"}]}
TAKES = """
import json, pathlib
def take(answer):
    with pathlib.Path("taken.jsonl").open("a") as file:
        file.write(json.dumps(answer) + "\\n")
"""


@pytest.fixture
def url(url_on_each_database):
    return url_on_each_database


class Wall:
    now = 1_800_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def wall():
    return Wall()


@pytest.fixture
def ledger(url, wall):
    with open_ledger(url, clock=wall) as ledger:
        yield ledger


@pytest.fixture
def recovered(ledger):
    """Returns a function that has a job recover, by a replay of a person's or of a sidecar's."""
    numbers = itertools.count(1)

    def make(*, trigger="auto", batch=""):
        payload, owner = {"contents": "p"}, ledger.owner_id
        job_id, body = f"a-{next(numbers)}", encode(payload)
        accept = op.Accept("captions", batch, job_id, "m", body, identity(payload), "tests:call", start_for=owner)
        row = ledger.record(accept).row
        failed = op.Closing(Kind.RETRYABLE, Reason.OVERLOADED, Scope.MODEL, 503, fingerprint="f503")
        ledger.record(op.Park(row.id, owner, 1, failed, "exhausted:503"))
        replay_id = ledger.record(op.OpenReplay("r", "me", "{}", trigger))
        ledger.record(op.Start(row.id, owner, replay_id))
        return ledger.record(op.Answer(row.id, owner, 2, encode_answer(GEMINI), op.Closing(rule="ok")))

    return make


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Returns a function that writes the user's module."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        monkeypatch.delitem(sys.modules, "loader", raising=False)
        (tmp_path / "loader.py").write_text(text)

    yield write
    sys.modules.pop("loader", None)


@pytest.fixture
def deliver(ledger, wall):
    """Returns a function that runs the task as the schedule does."""

    def run(**more):
        context = Context(on_answer="loader:take", now=wall, **more)
        (task,) = [task for task in tasks_for(context) if task.name == "on_answer"]
        return run_task(task, ledger, context)

    return run


@pytest.fixture
def taken(tmp_path):
    """Returns a function that reads what the user's function was given."""

    def read():
        file = tmp_path / "taken.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    return read


def new_answers(ledger):
    """What `parked answers --new` would give out."""
    from parked.ledger.store import Filters

    with ledger.ask() as reader:
        return [row.job.job_id for row in reader.answers(Filters(), only_new=True)]


def counted(url):
    series = metrics.counted(Metric.DELIVERIES)(look(url))
    return {one.labels["result"]: one.value for one in series}


def test_the_function_gets_the_answer_as_an_answer_line_once_and_it_is_handed_out(
    url, ledger, recovered, module, deliver, taken, events
):
    module(TAKES)
    recovered(batch="2026-03-02")

    deliver()
    deliver()

    assert taken() == [
        {
            "job_id": "a-1", "pipeline": "captions", "batch": "2026-03-02", "model": "m", "state": "recovered",
            "answer": GEMINI, "text": "six times seven", "attempts": 2,
        }
    ]  # fmt: skip
    assert new_answers(ledger) == []
    assert counted(url) == {"delivered": 1}
    assert events("answers_delivered") == [{"jobs": 1}]


def test_the_function_of_the_documentation_takes_an_answer(ledger, recovered, module, deliver, capsys):
    page = (Path(__file__).parents[2] / "docs/operating.md").read_text()
    (example,) = re.findall(r"^```python\n(def store.*?)^```", page, re.MULTILINE | re.DOTALL)
    module(example.replace("def store", "def take"))
    recovered()

    deliver()

    assert capsys.readouterr().out == "a-1 six times seven\n"
    assert new_answers(ledger) == []


def test_jobs_that_a_person_has_replayed_are_delivered_too_and_those_of_a_run_are_not(
    ledger, recovered, module, deliver, taken
):
    module(TAKES)
    recovered(trigger="manual")
    payload, owner = {"contents": "p"}, ledger.owner_id
    row = ledger.record(op.Accept("captions", "", "run", "m", encode(payload), identity(payload), start_for=owner)).row
    ledger.record(op.Answer(row.id, owner, 1, encode_answer(GEMINI), op.Closing(rule="ok")))

    deliver()

    assert [answer["job_id"] for answer in taken()] == ["a-1"]


def test_one_that_answers_new_gave_out_meanwhile_is_delivered_all_the_same(
    ledger, recovered, module, deliver, taken, wall
):
    module(TAKES)
    deliver()  # from now on
    wall.now += 60.0
    row = recovered()
    ledger.record(op.HandOut((row.id,)))
    wall.now += 60.0

    deliver()

    assert [answer["job_id"] for answer in taken()] == ["a-1"]


def test_what_was_given_out_before_there_was_a_function_stays_with_that(
    ledger, recovered, module, deliver, taken, wall
):
    module(TAKES)
    given_out, new = recovered(), recovered()
    ledger.record(op.HandOut((given_out.id,)))
    wall.now += 60.0

    deliver()

    assert [answer["job_id"] for answer in taken()] == [new.job_id]


def test_a_function_that_raises_is_called_again_until_it_returns(
    url, ledger, recovered, module, deliver, taken, events, wall
):
    module("def take(answer):\n    raise OSError(answer['text'])\n")
    recovered()

    deliver()
    deliver()  # too soon
    assert new_answers(ledger) == ["a-1"]
    module(TAKES)
    wall.now += wait_s(1)
    deliver()

    assert len(taken()) == 1
    assert events("delivery_failed") == [
        {
            "job_id": "a-1", "pipeline": "captions", "batch": "", "tries": 1, "fault": "OSError at loader.py:2",
            "again_in_s": 30.0,
        }
    ]  # fmt: skip
    assert counted(url) == {"failed": 1, "delivered": 1}


def test_after_ten_failures_it_is_left_for_answers_new_and_counted(
    url, ledger, recovered, module, deliver, events, wall
):
    module("calls = []\ndef take(answer):\n    calls.append(answer)\n    raise ValueError\n")
    recovered()

    for _ in range(15):
        deliver()
        wall.now += 3600.0

    assert len(sys.modules["loader"].calls) == 10
    assert new_answers(ledger) == ["a-1"]
    assert counted(url) == {"failed": 9, "given_up": 1}
    (record,) = events("delivery_given_up")
    assert (record["job_id"], record["tries"], record["left_for"]) == ("a-1", 10, "parked answers --new")


def test_answers_that_the_function_cannot_take_hold_up_no_other(recovered, module, deliver, taken):
    module(
        TAKES.replace(
            "    with", "    if answer['job_id'].endswith(('1', '3', '5')):\n        raise ValueError\n    with"
        )
    )
    for _ in range(30):
        recovered()

    deliver()

    assert len(taken()) == 21


def test_a_function_that_fails_five_times_in_a_row_is_left_alone_until_the_next_look(recovered, module, deliver):
    module("calls = []\ndef take(answer):\n    calls.append(answer['job_id'])\n    raise OSError\n")
    for _ in range(12):
        recovered()

    deliver()
    first = list(sys.modules["loader"].calls)
    deliver()

    assert first == ["a-1", "a-2", "a-3", "a-4", "a-5"]
    assert sys.modules["loader"].calls[5:] == ["a-6", "a-7", "a-8", "a-9", "a-10"]


def test_a_round_ends_after_a_minute_and_the_next_goes_on(recovered, module, deliver, taken):
    module(TAKES)
    for _ in range(4):
        recovered()
    clock = itertools.count(0.0, 14.0)

    deliver(monotonic=lambda: next(clock))
    first = len(taken())
    deliver()

    assert 0 < first < 4
    assert [answer["job_id"] for answer in taken()] == ["a-1", "a-2", "a-3", "a-4"]


def test_a_function_that_has_to_be_awaited_is_awaited(recovered, module, deliver, taken, ledger):
    module(TAKES.replace("def take", "async def take"))
    recovered()

    deliver()

    assert len(taken()) == 1
    assert new_answers(ledger) == []


def test_a_function_that_leaves_its_work_to_a_generator_has_not_taken_the_answer(
    ledger, recovered, module, deliver, caplog
):
    module("def later(answer):\n    yield answer\n\ndef take(answer):\n    return later(answer)\n")
    recovered()

    deliver()

    assert new_answers(ledger) == ["a-1"]
    assert [record.parked_fields["fault"] for record in caplog.records if record.msg == "delivery_failed"] == [
        "it returned a generator that nobody runs"
    ]


@pytest.mark.parametrize("ends", ["raise SystemExit(1)", "raise KeyboardInterrupt"])
def test_a_function_that_would_end_the_program_fails_like_any_other(ledger, recovered, module, deliver, ends):
    module(f"def take(answer):\n    {ends}\n")
    recovered()

    assert deliver()
    assert new_answers(ledger) == ["a-1"]


@pytest.mark.slow
def test_an_answer_that_takes_the_sidecar_with_it_waits_like_any_that_failed_and_holds_up_no_other(
    url, ledger, recovered, tmp_path, monkeypatch, start_sidecar
):
    monkeypatch.chdir(tmp_path)
    died = "import os\ndef take_or_die(answer):\n    answer['job_id'] != 'a-1' or os._exit(9)\n    take(answer)\n"
    (tmp_path / "loader.py").write_text(TAKES + died)
    for _ in range(2):
        recovered()
    told = {"PARKED_ON_ANSWER": "loader:take_or_die", "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}

    first = start_sidecar(env=told)
    ended = first.process.wait(PATIENCE_S)
    second = start_sidecar(env=told)
    failed = second.event("delivery_failed")
    second.event("answers_delivered", jobs=1)
    second.stop()

    assert ended == 9
    assert (failed["job_id"], failed["tries"], failed["again_in_s"]) == ("a-1", 1, 30.0)
    assert failed["fault"] == "the sidecar ended in it, or it has not returned yet"
    assert [json.loads(line)["job_id"] for line in (tmp_path / "taken.jsonl").read_text().splitlines()] == ["a-2"]


def test_no_text_of_the_answer_or_of_the_error_is_logged(recovered, module, deliver, caplog):
    caplog.set_level(logging.DEBUG)
    module("def take(answer):\n    raise ValueError(answer['text'])\n")
    recovered()

    deliver()

    assert "six times seven" not in "".join(f"{record.__dict__}{record.exc_info}" for record in caplog.records)


def test_a_sidecar_that_ends_begins_no_delivery_any_more(ledger, recovered, module, wall, taken):
    module(TAKES)
    recovered()
    context = Context(on_answer="loader:take", now=wall)
    context.stopping.set()

    deliver_answers(ledger, context)

    assert taken() == []


def test_another_sidecar_that_has_taken_the_task_over_goes_on_with_it(
    url, ledger, recovered, module, wall, taken, monkeypatch
):
    monkeypatch.setattr(deliveries, "RENEW_S", 0.0)
    module(TAKES)
    recovered()
    with open_ledger(url, clock=wall, role="sidecar") as other:
        other.record(op.TakeLease("on_answer", other.owner_id, 60.0))
        deliver_answers(ledger, Context(on_answer="loader:take", now=wall))
        assert taken() == []

        deliver_answers(other, Context(on_answer="loader:take", now=wall))

    assert len(taken()) == 1


def test_a_function_that_hangs_keeps_nobody_else_from_the_ledger(ledger, recovered, module, deliver, wall):
    module("import threading\nbegun, may_end = threading.Event(), threading.Event()\n"
           "def take(answer):\n    begun.set()\n    may_end.wait(20)\n")  # fmt: skip
    recovered()
    deliver(stopping=_set())  # imports it
    thread = threading.Thread(target=deliver)
    thread.start()
    loader = sys.modules["loader"]
    assert loader.begun.wait(PATIENCE_S)

    recovered()  # the ledger can be written

    loader.may_end.set()
    thread.join(PATIENCE_S)
    assert new_answers(ledger) == []


def _set():
    event = threading.Event()
    event.set()
    return event


def test_the_waits_grow_to_half_an_hour_and_the_tenth_failure_is_the_last():
    waits = [wait_s(tries) for tries in range(1, TRIES + 1)]

    assert waits == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800, None]
    assert sum(wait or 0.0 for wait in waits) / 3600 == pytest.approx(2, abs=0.1)


def test_without_a_function_there_is_no_such_task():
    assert "on_answer" not in {task.name for task in tasks_for(Context())}
