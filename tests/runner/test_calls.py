"""The threads for calls that can't be cancelled, where a process may have no more of them."""

from __future__ import annotations

import threading

import pytest

from parked.calls import Call, Threads
from parked.course import Returned


@pytest.fixture
def one_thread(monkeypatch) -> Threads:
    """Threads of which the system gives one."""
    start = threading.Thread.start
    given: list[threading.Thread] = []

    def start_one(thread: threading.Thread) -> None:
        if given:
            raise RuntimeError("can't start new thread")
        given.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    return Threads()


def test_a_call_for_which_there_is_no_thread_waits_for_one(one_thread, caplog):
    may_end = threading.Event()

    first = one_thread.start(lambda: may_end.wait(60))
    others = [one_thread.start(lambda number=number: number) for number in (2, 3)]

    assert not others[0].wait(0.01)
    may_end.set()
    assert all(call.wait(60) for call in (first, *others))
    assert [call.outcome for call in others] == [Returned(2), Returned(3)]
    assert one_thread.start(lambda: "free again").wait(60)
    assert caplog.text.count("no_more_threads started=1") == 1


def test_a_call_that_was_given_up_before_it_began_is_never_made(one_thread):
    may_end = threading.Event()
    made: list[str] = []
    late: list[Call] = []

    first = one_thread.start(lambda: may_end.wait(60))
    second = one_thread.start(lambda: made.append("a call that nobody waits for"))
    assert not second.wait(0.01)
    second.give_up(late.append)
    may_end.set()

    assert first.wait(60)
    assert one_thread.start(lambda: "the next").wait(60)  # behind it in the same thread
    assert (made, late) == ([], [])


def test_a_call_that_was_given_up_on_its_way_is_told_of_when_it_is_over(one_thread):
    began, may_end, told = threading.Event(), threading.Event(), threading.Event()

    def go_on() -> None:
        began.set()
        may_end.wait(60)

    call = one_thread.start(go_on)
    assert began.wait(60)
    call.give_up(lambda _: told.set())
    may_end.set()

    assert told.wait(60)


def test_without_any_thread_the_call_fails_at_once(monkeypatch):
    def start_none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start_none)

    with pytest.raises(RuntimeError, match="can't start new thread"):
        Threads().start(lambda: None)
