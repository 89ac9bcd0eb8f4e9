"""What is parked, as JSON over HTTP: as the commands say it, and no more than the sidecar can bear."""

import json
import threading

import pytest

from parked.cli.frame import main
from parked.ledger.databases import as_shown
from parked_exporter import api
from parked_exporter.collector import Lookout, look
from parked_exporter.web import Access, App
from wsgi import Answered

PATIENCE_S = 20.0
TOKEN = "correct-horse-battery"


@pytest.fixture
def url(url_on_each_database):
    return url_on_each_database


@pytest.fixture
def ask(url):
    app = App(url, Lookout(lambda: look(url)), None, Access.at("127.0.0.1", external_url=None, token=TOKEN))

    def ask(path):
        answered = Answered(app, path, authorization=f"Bearer {TOKEN}")
        return answered.status, json.loads(answered.body)

    return ask


@pytest.fixture
def three(pipeline):
    pipeline.succeed("a-1")
    pipeline.park("a-2")
    pipeline.park("a-3", error_class="exhausted:502")


def printed_by(capsys, ledger, *words):
    assert main([*words, "--json", "--ledger", ledger.url]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/parked", ["list"]),
        ("/api/parked?class=exhausted:502", ["list", "--class", "exhausted:502"]),
        ("/api/parked?job=a-2&job=a-3&limit=1", ["list", "--job", "a-2", "--job", "a-3", "--limit", "1"]),
        ("/api/parked?state=succeeded", ["list", "--state", "succeeded"]),
        ("/api/parked?pipeline=nobody%20knows", ["list", "--pipeline", "nobody knows"]),
        ("/api/causes", ["causes"]),
        ("/api/causes?reason=overloaded&limit=1", ["causes", "--reason", "overloaded", "--limit", "1"]),
        ("/api/summary?since=2020-01-01", ["summary", "--since", "2020-01-01"]),
    ],
)
def test_a_page_says_what_the_command_prints(ask, ledger, three, capsys, path, words):
    status, said = ask(path)

    printed = printed_by(capsys, ledger, *words)
    for one in (said, printed):
        one.pop("made_at", None)
        for part in (one, *one.get("causes", ())):
            part.pop("next", None)
    assert (status, said) == (200, printed)


def test_the_commands_that_an_answer_names_are_for_its_ledger_and_tell_no_user_of_it(ask, ledger, three, url):
    _, causes = ask("/api/causes")
    _, summary = ask("/api/summary")

    replay = f"parked replay --ledger {as_shown(url)} --fingerprint f00d"
    assert {cause["next"] for cause in causes["causes"]} == {replay}
    assert replay in summary["next"]
    assert "@" not in ledger.where


def test_only_those_that_the_query_means_are_in_it(ask, three):
    _, said = ask("/api/parked?class=exhausted:502")

    assert (said["total"], [job["job_id"] for job in said["jobs"]]) == (1, ["a-3"])


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/api/parked?pipelin=x", "this page doesn't take 'pipelin'; did you mean pipeline?"),
        ("/api/parked?ledger=sqlite:///other.db", "this page doesn't take 'ledger'"),
        ("/api/summary?pipeline=x", "this page doesn't take 'pipeline'; there are since"),
        ("/api/parked?help=", "this page doesn't take 'help'"),
        ("/api/parked?limit=1001", "limit must be at most 1000, got 1001; parked list shows more"),
        ("/api/parked?limit=-1", "must be a whole number from 1"),
        ("/api/parked?state=lost", "'lost' is no state"),
        ("/api/parked?since=yesterday", "--since"),
        ("/api/causes?pipeline=%00", "pipeline"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused_in_a_sentence(ask, ledger, path, sentence):
    status, said = ask(path)

    assert status == 400
    assert sentence in said["error"]


@pytest.mark.parametrize("path", api.PAGES)
def test_without_a_ledger_a_page_is_an_error_and_never_empty(ask, url, path):
    status, said = ask(path)

    assert status == 503
    assert said["error"].startswith("there is no ledger")


def test_questions_that_hang_leave_the_threads_to_scrapes(ask, ledger):
    asked, may_end = threading.Semaphore(0), threading.Event()

    def hang(args, reader, where):
        asked.release()
        may_end.wait(PATIENCE_S)
        return {}

    page = api.Page("summary", (), hang)
    threads = [threading.Thread(target=lambda: api.answer(page, "", ledger_url=ledger.url)) for _ in range(api.AT_ONCE)]
    for thread in threads:
        thread.start()
        assert asked.acquire(timeout=PATIENCE_S)

    refused = ask("/api/summary")
    may_end.set()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert refused[0] == 503
    assert refused[1]["error"].endswith("ask again in a moment")
    assert ask("/api/summary")[0] == 200
