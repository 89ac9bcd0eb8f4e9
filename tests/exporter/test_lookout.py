"""One look at the ledger at a time, and no scrape that waits for ever."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from parked.errors import LedgerUnavailable
from parked.ledger import open_ledger
from parked_exporter import collector
from parked_exporter.collector import Lookout, look
from parked_exporter.metrics import Readings

PATIENCE_S = 10.0
EMPTY = Readings("amber-otter", {}, {}, {}, None, {}, {})


def test_a_second_scrape_waits_for_what_the_first_ones_look_finds():
    looks, looking, go_on = [], threading.Event(), threading.Event()

    def look():
        looks.append(1)
        looking.set()
        assert go_on.wait(PATIENCE_S)
        return EMPTY

    lookout = Lookout(look)
    first = threading.Thread(target=lookout.find)
    first.start()
    assert looking.wait(PATIENCE_S)
    threading.Timer(0.3, go_on.set).start()
    found = lookout.find()
    first.join(PATIENCE_S)

    assert found.readings is EMPTY
    assert len(looks) == 1


def test_each_scrape_looks_anew():
    words = iter(["amber-otter", "brisk-heron"])
    lookout = Lookout(lambda: Readings(next(words), {}, {}, {}, None, {}, {}))

    found = [lookout.find().readings for _ in range(2)]

    assert [readings and readings.ledger for readings in found] == ["amber-otter", "brisk-heron"]


def test_a_ledger_that_hangs_gives_an_answer_at_the_deadline_and_keeps_one_thread():
    looks, go_on = [], threading.Event()

    def look():
        looks.append(1)
        go_on.wait(PATIENCE_S)
        return EMPTY

    lookout = Lookout(look, deadline_s=0.05)
    found = [lookout.find() for _ in range(3)]
    go_on.set()

    assert [one.readings for one in found] == [None] * 3
    assert "within 0.05 s" in found[0].why
    assert len(looks) == 1


def test_scrapes_that_stood_in_line_while_a_look_hung_do_not_wait_each_for_a_time_of_its_own():
    go_on = threading.Event()

    def look():
        go_on.wait(PATIENCE_S * 10)
        return EMPTY

    lookout = Lookout(look, deadline_s=0.5)
    began = time.monotonic()

    found = [lookout.find() for _ in range(100)]
    took_s = time.monotonic() - began
    go_on.set()

    assert {one.readings for one in found} == {None}
    assert took_s < 25


def test_what_a_look_found_in_vain_after_a_long_time_counts_for_those_who_stood_in_line(monkeypatch):
    monkeypatch.setattr(collector, "SHARED_S", PATIENCE_S)
    looks = []

    def look():
        looks.append(1)
        threading.Event().wait(0.3)
        raise LedgerUnavailable("the ledger is held locked")

    lookout = Lookout(look, deadline_s=2.0)
    found = [lookout.find() for _ in range(3)]

    assert [one.why for one in found] == ["the ledger is held locked"] * 3
    assert len(looks) == 1


def test_a_ledger_that_is_away_says_why_and_is_found_again():
    answers = [LedgerUnavailable("the ledger is away"), ValueError("a secret prompt"), EMPTY]

    def look():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    lookout = Lookout(look)
    found = [lookout.find() for _ in range(3)]

    assert [one.why for one in found] == ["the ledger is away", "unexpected ValueError", ""]
    assert found[2].readings is EMPTY


def test_readers_that_open_and_close_all_the_time_never_find_the_ledger_locked(url):
    open_ledger(url).close()

    def look_often():
        return [look(url).ledger for _ in range(150)]

    with ThreadPoolExecutor(4) as pool:
        names = [name for looks in [pool.submit(look_often) for _ in range(4)] for name in looks.result()]

    assert len(names) == 600
    assert len(set(names)) == 1
