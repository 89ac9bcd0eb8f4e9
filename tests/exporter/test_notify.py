"""The summary on its way to a real receiver over HTTP, by the real Apprise."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from parked import cron
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.databases import as_shown
from parked.summary import LAST_SUMMARY
from parked.verdict import Kind, Reason, Scope
from parked_exporter import notify, schedule
from parked_exporter.metrics import task_mark
from parked_exporter.notify import FIRST_RETRY_S, NotDue, NotSent, tagged
from parked_exporter.schedule import Context, Schedule, Task, notify_task, run_task

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0
NINE = 1_772_442_000.0  # 2026-03-02 09:00Z
DAY_S = 86_400.0
SECRET = "xoxb-4711"
SUMMARY = schedule.SCHEDULE[2]
HANG = "hang"


class Receiver(ThreadingHTTPServer):
    """Takes what is sent, in order; answers with the statuses that it is given, then with 200. `HANG` never does."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: queue.Queue = queue.Queue()
        self.tried: queue.Queue = queue.Queue()
        self.taken: queue.Queue = queue.Queue()
        self.closing = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = 200 if receiver.answers.empty() else receiver.answers.get()
                receiver.tried.put(message)
                if answer == HANG:
                    receiver.closing.wait(PATIENCE_S)
                    return
                if answer == 200:
                    receiver.taken.put(message)
                self.send_response(answer)
                if answer == 302:
                    self.send_header("Location", "/login")
                self.end_headers()

            def do_GET(self):
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        """Waits half a second for an answer, instead of Apprise's four."""
        return f"json://127.0.0.1:{self.server_port}/{SECRET}?rto=0.5"

    def will_answer(self, *answers):
        for answer in answers:
            self.answers.put(answer)

    def messages(self):
        return [self.taken.get_nowait() for _ in range(self.taken.qsize())]

    def end(self):
        self.closing.set()
        self.shutdown()
        self.server_close()


@pytest.fixture
def receivers():
    started = []

    def start():
        started.append(Receiver())
        return started[-1]

    yield start
    for receiver in started:
        receiver.end()


@pytest.fixture
def receiver(receivers):
    return receivers()


@pytest.fixture
def url(url_on_each_database):
    return url_on_each_database


def at(moment):
    return Context(now=lambda: moment)


# --- what is sent ------------------------------------------------------------------------------------------------


def test_the_summary_reaches_a_receiver_with_the_commands_to_type(ledger, pipeline, receiver):
    pipeline.park("a-1")

    run_task(SUMMARY, ledger, replace(at(NINE), host="night-1"))
    run_task(notify_task([receiver.url]), ledger, at(NINE))

    (message,) = receiver.messages()
    lines = message["message"].splitlines()
    on = f" --ledger {as_shown(ledger.url)}"
    assert (message["title"], message["type"]) == ("dead-letter: 1 parked (on night-1)", "warning")
    assert lines[:3] == [f"ledger {ledger.where}", "dead-letter: 1 parked", "     1  exhausted:503"]
    assert lines[-3:] == [
        "next, on night-1:",
        f"  parked list{on} --fingerprint f00d",
        f"  parked replay{on} --fingerprint f00d",
    ]


def test_it_is_sent_when_all_is_well_too_and_never_holds_the_ledger_s_password(postgres_url, receiver):
    url = postgres_url.replace("test@", f"test:{SECRET}@")
    with open_ledger(url) as ledger:
        run_task(SUMMARY, ledger, at(NINE))
        run_task(notify_task([receiver.url]), ledger, at(NINE))

    (message,) = receiver.messages()
    assert (message["title"], message["type"]) == ("dead-letter: clean (0 parked)", "success")
    assert message["message"] == f"ledger {url.replace(f'test:{SECRET}@', '')}\ndead-letter: clean (0 parked)"


def test_no_text_of_a_user_or_a_server_is_in_it(ledger, pipeline, receiver):
    job = pipeline.start("a-1")
    closing = op.Closing(Kind.RETRYABLE, Reason.OVERLOADED, Scope.MODEL, 503, message="quoting a prompt")
    ledger.record(op.Park(job.row.id, ledger.owner_id, 1, closing, error_class="exhausted:503"))

    run_task(SUMMARY, ledger, at(NINE))
    run_task(notify_task([receiver.url]), ledger, at(NINE))

    (message,) = receiver.messages()
    assert "quoting" not in json.dumps(message)


def test_each_summary_is_sent_once(ledger, receiver):
    task = notify_task([receiver.url])
    run_task(task, ledger, at(NINE))
    for day in range(2):
        run_task(SUMMARY, ledger, at(NINE + day * DAY_S))
        run_task(task, ledger, at(NINE + day * DAY_S))
        run_task(task, ledger, at(NINE + day * DAY_S + 60))

    assert len(receiver.messages()) == 2


# --- what fails --------------------------------------------------------------------------------------------------


def test_a_receiver_that_fails_hangs_and_recovers_gets_it_in_the_end(url, ledger, receiver):
    receiver.will_answer(500, HANG)
    task = notify_task([receiver.url])
    run_task(SUMMARY, ledger, at(NINE))

    with pytest.raises(NotSent):  # 500
        run_task(task, ledger, at(NINE))
    with pytest.raises(NotDue):
        run_task(task, ledger, at(NINE + FIRST_RETRY_S - 1))
    with pytest.raises(NotSent):  # hangs
        run_task(task, ledger, at(NINE + FIRST_RETRY_S))
    with pytest.raises(NotDue):  # backing off
        run_task(task, ledger, at(NINE + 3 * FIRST_RETRY_S - 1))
    assert receiver.tried.qsize() == 2
    run_task(task, ledger, at(NINE + 3 * FIRST_RETRY_S))
    run_task(task, ledger, at(NINE + 4 * FIRST_RETRY_S))

    assert [message["title"] for message in receiver.messages()] == ["dead-letter: clean (0 parked)"]


def test_an_address_that_leads_to_another_page_is_not_reached_though_that_page_is_there(ledger, receiver):
    receiver.will_answer(302)
    task = notify_task([receiver.url])
    run_task(SUMMARY, ledger, at(NINE))

    with pytest.raises(NotSent):
        run_task(task, ledger, at(NINE))
    run_task(task, ledger, at(NINE + FIRST_RETRY_S))

    assert len(receiver.messages()) == 1


def test_an_address_that_never_ends_is_given_up(ledger, receiver, monkeypatch):
    monkeypatch.setattr(notify, "LIFE_S", 2.0)
    receiver.will_answer(HANG)
    run_task(SUMMARY, ledger, at(NINE))
    began = time.monotonic()

    with pytest.raises(NotSent):
        run_task(notify_task([receiver.url.replace("rto=0.5", "rto=3600")]), ledger, at(NINE))

    assert time.monotonic() - began < PATIENCE_S / 2


def test_what_was_not_sent_is_sent_by_the_next_process_at_once(url, ledger, receiver):
    receiver.will_answer(500)
    run_task(SUMMARY, ledger, at(NINE))
    with pytest.raises(NotSent):
        run_task(notify_task([receiver.url]), ledger, at(NINE))
    ledger.close()

    with open_ledger(url) as anew:
        run_task(notify_task([receiver.url]), anew, at(NINE + 1))

    assert len(receiver.messages()) == 1


def test_who_has_it_does_not_get_it_again_because_another_one_fails(ledger, receivers):
    well, ill = receivers(), receivers()
    ill.will_answer(500)
    task = notify_task([ill.url, well.url])
    run_task(SUMMARY, ledger, at(NINE))
    with pytest.raises(NotSent) as met:
        run_task(task, ledger, at(NINE))
    run_task(task, ledger, at(NINE + FIRST_RETRY_S))

    assert (len(well.messages()), len(ill.messages())) == (1, 1)
    assert "number 1 of the 2 addresses" in str(met.value)


def test_a_summary_that_never_got_through_is_told_of_by_the_next(ledger, receiver):
    receiver.will_answer(500, 500)
    task = notify_task([receiver.url])
    for day in range(3):
        run_task(SUMMARY, ledger, at(NINE + day * DAY_S))
        if day < 2:
            with pytest.raises(NotSent):
                run_task(task, ledger, at(NINE + day * DAY_S))
    run_task(task, ledger, at(NINE + 2 * DAY_S))

    (message,) = receiver.messages()
    assert message["message"].splitlines()[-2:] == [
        "summaries since 2026-03-02T09:00:00.000Z did not get everywhere; to see what is new since then:",
        "  parked summary --since 2026-03-02T09:00:00.000Z",
    ]


def test_a_clock_that_was_set_back_keeps_nothing_from_being_sent(ledger, receiver):
    receiver.will_answer(500)
    task = notify_task([receiver.url])
    run_task(SUMMARY, ledger, at(NINE))
    with pytest.raises(NotSent):
        run_task(task, ledger, at(NINE))

    run_task(task, ledger, at(NINE - 30 * DAY_S))

    assert len(receiver.messages()) == 1


def test_what_was_made_for_nobody_is_not_sent_days_later(ledger, receiver):
    run_task(SUMMARY, ledger, at(NINE))

    run_task(notify_task([receiver.url]), ledger, at(NINE + 2 * DAY_S))

    assert receiver.tried.empty()


def test_a_failure_is_counted_each_time_and_logged_once_without_the_address(url, ledger, receiver, events, caplog):
    receiver.will_answer(*[500] * 3)
    run_task(SUMMARY, ledger, at(NINE))
    moments = iter(NINE + n * DAY_S for n in range(1000))
    run = notify_task([receiver.url]).run
    running = Schedule(
        partial(open_ledger, url, create=False),
        cron=cron.parse("0 9 * * *"),
        zone=UTC,
        tasks=[Task("notify", lambda ledger, _: run(ledger, at(next(moments))), every_s=0.01)],
    )
    running.start()
    receiver.taken.get(timeout=PATIENCE_S)
    running.stop(patience_s=PATIENCE_S)

    assert running.failures == {"notify": 3}
    (failure,) = [record for record in events("task_failed") if "why" in record]
    assert failure["why"] == (
        "the summary of 2026-03-02 09:00Z did not reach number 1 of the 1 addresses of PARKED_NOTIFY (HTTP 500);"
        " it is tried again"
    )
    assert SECRET not in caplog.text


def test_nothing_of_an_address_is_kept_in_the_ledger_but_a_few_bits(ledger, receiver):
    run_task(SUMMARY, ledger, at(NINE))
    run_task(notify_task([receiver.url]), ledger, at(NINE))

    with ledger.ask() as reader:
        assert SECRET not in str(list(reader.rows("marks")))
    (tag,) = tagged([receiver.url])
    assert len(tag) == 4


def test_addresses_are_told_apart_even_where_their_bits_are_the_same():
    addresses = [f"json://host/{n}" for n in range(2000)]

    tags = tagged([*addresses, addresses[0]])

    assert list(tags.values()) == addresses


# --- a real sidecar ----------------------------------------------------------------------------------------------


def failures(samples):
    return samples["parked_task_failures_total"][(("task", "notify"),)]


def test_a_sidecar_that_is_killed_leaves_its_message_to_the_next_one(start_sidecar, url, ledger, receiver, tmp_path):
    for mark in (LAST_SUMMARY, task_mark("summary")):
        ledger.record(op.SetMark(mark, NINE))
    file = tmp_path / "notify"
    file.write_text(receiver.url)
    receiver.will_answer(500)
    env = {"PARKED_NOTIFY_FILE": str(file)}
    first = start_sidecar(env=env)
    first.until(lambda samples: failures(samples) >= 1)
    first.process.kill()
    first.process.wait()

    second = start_sidecar(env=env)
    message = receiver.taken.get(timeout=PATIENCE_S)
    second.until(lambda samples: (("task", "notify"),) in samples["parked_task_last_success_timestamp_seconds"])

    assert message["title"] == "dead-letter: clean (0 parked)"
    assert failures(second.scrape()) == 0
    assert SECRET not in str([*first.lines.queue, *second.lines.queue])


def checked(*flags, notify, code=None):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PARKED_")}
    return subprocess.run(
        [sys.executable, *(["-c", code] if code else ["-m", "parked_exporter.cli"]), *flags],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path), "PARKED_NOTIFY": notify},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("flags", [["--check"], ["--listen", "127.0.0.1:0"]])
@pytest.mark.parametrize("bad", [f"jsn://{SECRET}@host", f"tgram://{SECRET}"])
def test_an_address_that_apprise_does_not_know_is_one_sentence_without_the_secret(flags, bad):
    ended = checked(*flags, notify=f"json://127.0.0.1:1/{SECRET} {bad}")

    assert ended.returncode == 2
    assert "PARKED_NOTIFY must be URLs of services that Apprise knows" in ended.stderr
    assert "number 2 of 2" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert SECRET not in ended.stdout + ended.stderr


def test_addresses_that_apprise_knows_are_fine():
    ended = checked("--check", notify=f"json://127.0.0.1:1/{SECRET} mailto://u:{SECRET}@example.com")

    assert (ended.returncode, ended.stderr) == (0, "parked-exporter: the settings are fine\n")


def test_without_the_extra_an_address_is_refused_with_what_to_install():
    code = (
        "import sys; sys.modules['apprise'] = None; from parked_exporter.cli import main; sys.exit(main(['--check']))"
    )

    ended = checked(code=code, notify=f"json://127.0.0.1:1/{SECRET}")

    assert ended.returncode == 3
    assert (
        ended.stderr
        == "parked-exporter: apprise is not installed; pip install '.[notify]' in a checkout of parked brings it\n"
    )
