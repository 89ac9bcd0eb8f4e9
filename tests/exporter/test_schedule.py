"""The sidecar's tasks on a real ledger: run by hand, and by the scheduler."""

import json
import logging
import queue
import shutil
import threading
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from parked import cron, owners
from parked.errors import LedgerUnavailable
from parked.job import State
from parked.ledger import look_into, open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.store import Filters
from parked.logs import JsonFormatter, TextFormatter
from parked.settings import SidecarSettings
from parked_exporter import metrics, schedule
from parked_exporter.collector import look
from parked_exporter.metrics import task_mark
from parked_exporter.peers import SIDECARS_MARK, Peers, digests
from parked_exporter.schedule import Context, Schedule, Task, run_task

PATIENCE_S = 20.0
Signals = queue.Queue[Any]
NINE = cron.parse("0 9 * * *")
FAR_AWAY = op.OwnerFacts("c0ffee", "runner", "build-7", "another boot", "pid:[1]", 4711, "99", "1.0.0")
SWEEP, AUDIT, SUMMARY, FULL_AUDIT = schedule.SCHEDULE


@pytest.fixture
def context():
    return Context(now=lambda: 1_772_000_000.0)


def unaccounted(url):
    readings = look(url)
    return {series.labels["pipeline"]: series.value for series in metrics.unaccounted(readings)}


def job_of_a_dead_owner(ledger):
    owner_id = ledger.record(op.Register(FAR_AWAY))
    return ledger.record(
        op.Accept("captions", "", "a-1", "m", encode({}), identity({}), caller="tests:call", start_for=owner_id)
    )


def test_a_job_whose_owner_stands_still_for_30_s_is_parked_as_an_orphan(url, context):
    clock = [0.0]
    with open_ledger(url, role="sidecar", monotonic=lambda: clock[0]) as ledger:
        job = job_of_a_dead_owner(ledger)
        states = []
        for clock[0] in (0.0, 15.0, 29.9, 30.0):
            run_task(SWEEP, ledger, context)
            with ledger.ask() as reader:
                (row,) = reader.jobs_by_key("a-1", pipeline=None, batch=None)
            states.append((row.state, row.error_class))

    assert job.row.state is State.RUNNING
    assert states == [(State.RUNNING, None)] * 3 + [(State.PARKED, "orphaned:maybe_sent")]


def test_the_audit_leaves_that_all_is_well(url, ledger, pipeline, context):
    pipeline.succeed("a-1")
    pipeline.park("a-2")

    run_task(AUDIT, ledger, context)

    assert unaccounted(url) == {"captions": 0.0}
    assert look(url).audit == metrics.AuditFound(1_772_000_000.0, {})


def test_a_hand_edited_row_is_found_by_the_audit_and_moves_the_metric(url, ledger, pipeline, context, edit, events):
    pipeline.succeed("a-1")
    pipeline.park("a-2")
    edit("UPDATE jobs SET state = 'pending' WHERE job_id = 'a-2'")

    run_task(AUDIT, ledger, context)

    assert unaccounted(url) == {"captions": 1.0}
    assert {(found["pipeline"], found["what"]) for found in events("audit_found_imbalance")} >= {("captions", "parked")}


def test_a_forged_counter_moves_the_metric_at_the_next_scrape(url, pipeline, edit):
    pipeline.succeed("a-1")
    edit("UPDATE counters SET value = value + 5 WHERE metric = 'jobs_accepted'")

    assert unaccounted(url) == {"captions": 5.0}


def test_a_row_without_its_answer_is_found_by_the_full_audit_alone_and_stays_on_the_metric(
    url, ledger, pipeline, context, edit, events
):
    pipeline.succeed("a-1")
    edit("DELETE FROM answers")

    run_task(AUDIT, ledger, context)
    assert unaccounted(url) == {"captions": 0.0}
    run_task(FULL_AUDIT, ledger, context)
    run_task(AUDIT, ledger, context)

    assert unaccounted(url) == {"captions": 1.0}
    (found,) = events("audit_found_imbalance")
    assert (found["what"], found["job_ids"]) == ("answered without answer", ("a-1",))


def test_what_the_full_audit_finds_mended_is_well_again(url, ledger, pipeline, context, edit):
    pipeline.succeed("a-1")
    edit("UPDATE jobs SET owner_id = 1")
    run_task(FULL_AUDIT, ledger, context)
    edit("UPDATE jobs SET owner_id = NULL")
    run_task(FULL_AUDIT, ledger, context)
    run_task(AUDIT, ledger, context)

    assert unaccounted(url) == {"captions": 0.0}


def test_the_full_audit_is_made_once_a_night(ledger):
    assert [str(FULL_AUDIT.at.next_after(datetime(2026, 3, 2, hour, tzinfo=UTC), UTC)) for hour in (0, 12)] == [
        "2026-03-02 03:30:00+00:00",
        "2026-03-03 03:30:00+00:00",
    ]


def test_what_was_mended_is_well_again_after_the_next_audit(url, ledger, pipeline, context, edit):
    pipeline.park("a-1")
    edit("UPDATE jobs SET state = 'pending'")
    run_task(AUDIT, ledger, context)
    edit("UPDATE jobs SET state = 'parked'")
    run_task(AUDIT, ledger, context)

    assert unaccounted(url) == {"captions": 0.0}


def test_the_summary_is_one_record_with_the_text_and_the_facts(ledger, pipeline, context, events):
    pipeline.park("a-1")

    run_task(SUMMARY, ledger, context)

    (record,) = events("summary")
    assert record["text"].startswith(f"ledger {ledger.where}\n")
    assert record["parked"] == 1
    assert record["classes"] == [{"error_class": "exhausted:503", "jobs": 1, "new": 0}]


def test_the_summary_is_a_short_line_where_the_log_is_text(ledger, pipeline, caplog):
    caplog.set_level(logging.INFO)
    pipeline.park("a-1")

    run_task(SUMMARY, ledger, Context(host="night-1"))

    (record,) = (record for record in caplog.records if record.getMessage() == "summary")
    assert TextFormatter().format(record).partition("INFO ")[2] == (
        f'summary title="dead-letter: 1 parked (on night-1)" ledger={ledger.where}'
        " parked=1 new=0 recovered=0 discarded=0"
    )
    assert json.loads(JsonFormatter().format(record))["text"].startswith(f"ledger {ledger.where}\n")


def test_the_summary_is_made_when_all_is_well_too(ledger, context, events):
    run_task(SUMMARY, ledger, context)

    (record,) = events("summary")
    assert "dead-letter: clean (0 parked)" in record["text"]


def test_what_is_new_counts_from_the_last_scheduled_summary(ledger, pipeline, events):
    pipeline.park("a-1")
    with ledger.ask() as reader:
        (parked,) = reader.jobs(Filters(), states=[State.PARKED])
    run_task(SUMMARY, ledger, Context(now=lambda: parked.parked_at + 1))
    run_task(SUMMARY, ledger, Context(now=lambda: parked.parked_at + 2))
    run_task(SUMMARY, ledger, Context(now=lambda: parked.parked_at + 3))

    assert [record["new"] for record in events("summary")] == [0, 0, 0]
    assert [record["parked"] for record in events("summary")] == [1, 1, 1]


def test_a_summary_with_orphans_says_so(ledger, context, events):
    job_of_a_dead_owner(ledger)
    (owner,) = ledger.record(op.Beat(ledger.owner_id)).owners.values()
    ledger.record(op.Lose({owner.id: owner.beat}))

    run_task(SUMMARY, ledger, context)

    (record,) = events("summary")
    assert [one["error_class"] for one in record["classes"]] == ["orphaned:maybe_sent"]


def test_finished_jobs_go_once_they_are_old_and_were_handed_out(url, ledger, pipeline, events):
    rows = [pipeline.succeed(f"a-{n}") for n in range(3)]
    pipeline.park("b")
    ledger.record(op.HandOut(tuple(row.id for row in rows[:2])))
    day_s = 86_400.0

    for days in (29, 31):
        context = Context(retention_s=30 * day_s, now=partial(float, rows[0].finished_at + days * day_s))
        run_task(schedule.RETENTION, ledger, context)

    with ledger.ask() as reader:
        assert {(row.job_id, row.state) for row in reader.jobs(Filters(), states=list(State))} == {
            ("a-2", State.SUCCEEDED),
            ("b", State.PARKED),
        }
    assert [record["jobs"] for record in events("jobs_forgotten")] == [2]
    assert unaccounted(url) == {"captions": 0.0}


def test_nothing_is_forgotten_unless_that_is_switched_on():
    assert schedule.RETENTION not in schedule.tasks_for(Context())
    assert schedule.RETENTION in schedule.tasks_for(Context(retention_s=1.0))


def test_a_task_that_succeeded_is_seen_on_the_metrics(url, ledger, context):
    assert look(url).task_successes == {}

    run_task(AUDIT, ledger, context)

    assert look(url).task_successes == {"audit": 1_772_000_000.0}


def test_a_task_runs_in_one_sidecar_until_that_one_leaves(url, ledger, context):
    other = open_ledger(url, role="sidecar")

    held = [run_task(AUDIT, ledger, context), run_task(AUDIT, other, context), run_task(AUDIT, ledger, context)]
    ledger.close()
    taken = run_task(AUDIT, other, context)
    other.close()

    assert held == [True, False, True]
    assert taken


def test_ready_says_who_holds_which_lease(url, ledger, context):
    run_task(AUDIT, ledger, context)

    (holder,) = look(url).leases.values()
    assert holder.keys() == {"owner", "host", "pid"}
    assert holder["owner"] == ledger.owner_id


def test_a_task_of_a_dead_process_is_taken_over_by_whoever_wants_it_next(url, context):
    with open_ledger(url, role="sidecar") as ledger:
        assert ledger.owner_id
        dead = ledger.record(op.Register(owners.facts("sidecar")._replace(token="dead", process_start="1")))
        assert ledger.record(op.TakeLease("audit", dead, 3600))

        assert run_task(AUDIT, ledger, context)


def test_a_task_of_a_process_that_dies_on_another_machine_is_taken_over_within_a_minute():
    is_lost_after_s = owners.LOST_AFTER_S + owners.BEAT_S  # it is looked for at every beat

    assert is_lost_after_s + schedule.LOOK_AGAIN_S < 60


def test_sidecars_whose_settings_differ_say_so_once_and_by_name_alone(url, events):
    mine = {"PARKED_RETENTION": "aa", "PARKED_NOTIFY": "bb", "PARKED_TIMEZONE": "cc"}
    with open_ledger(url, role="sidecar") as one, open_ledger(url, role="sidecar") as other:
        here, there = Peers(mine), Peers({**mine, "PARKED_RETENTION": "dd", "PARKED_NOTIFY": "ee", "PARKED_NEW": "ff"})
        here.compare(one)
        assert events("sidecars_differ") == []
        there.compare(other)
        there.compare(other)
        here.compare(one)
        here.compare(one)

    assert [record["settings"] for record in events("sidecars_differ")] == ["PARKED_NOTIFY, PARKED_RETENTION"] * 2


def test_sidecars_that_agree_or_have_gone_are_no_news(url, events):
    with open_ledger(url, role="sidecar") as other:
        Peers({"PARKED_TIMEZONE": "aa"}).compare(other)
    with open_ledger(url, role="sidecar") as other, open_ledger(url, role="sidecar") as ledger:
        Peers({"PARKED_TIMEZONE": "bb"}).compare(other)
        Peers({"PARKED_TIMEZONE": "bb"}).compare(ledger)
        with ledger.ask() as reader:
            entered = reader.mark(SIDECARS_MARK)

    assert events("sidecars_differ") == []
    assert len(entered) == 2


def test_every_setting_that_tasks_go_by_is_compared_and_none_can_be_read():
    usual = digests(SidecarSettings.load(env={}))
    env = {
        "PARKED_SUMMARY_CRON": "0 8 * * *",
        "PARKED_TIMEZONE": "Europe/Berlin",
        "PARKED_RETENTION": "90d",
        "PARKED_NOTIFY": "json://u:secret@host",
    }
    settings = SidecarSettings.load(env=env)
    elsewhere = SidecarSettings.load(env={**env, "PARKED_NOTIFY": "json://another", "PARKED_TOKEN": "t" * 16})

    assert {name for name in usual if usual[name] != digests(settings)[name]} == set(env)
    assert digests(elsewhere) == digests(settings)
    assert "secret" not in str(digests(settings))


# --- the scheduler -----------------------------------------------------------------------------------------------


@pytest.fixture
def start():
    started = []

    def start(open_ledger, *tasks):
        running = Schedule(open_ledger, cron=NINE, zone=UTC, tasks=tasks)
        started.append(running)
        running.start()
        return running

    yield start
    for running in started:
        if running.running:
            running.stop(patience_s=PATIENCE_S)


def test_several_sidecars_do_not_come_all_at_once(url):
    running = Schedule(partial(open_ledger, url, create=False), cron=NINE, zone=UTC, tasks=[SWEEP, SUMMARY])
    triggers = {job.id: job.trigger for job in running._scheduler.get_jobs()}
    now = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)

    def times(task):
        return {(triggers[task].get_next_fire_time(now, now) - now).total_seconds() for _ in range(20)}

    assert len(times("orphan_sweep")) == len(times("summary")) == 20
    assert all(13.5 <= after_s <= 16.5 for after_s in times("orphan_sweep"))
    assert all(3600 <= after_s <= 3605 for after_s in times("summary"))


def test_tasks_with_an_interval_run_at_once(url, ledger, start):
    runs: Signals = queue.Queue()

    running = start(partial(open_ledger, url, create=False), Task("first", lambda *_: runs.put(1), every_s=3600))

    assert runs.get(timeout=PATIENCE_S)
    assert running.running


@pytest.mark.parametrize(("last", "runs"), [("2026-03-01T09:00", 1), ("2026-03-02T09:00", 0), (None, 0)])
def test_a_summary_whose_time_passed_while_no_sidecar_was_there_is_made_at_the_start(url, ledger, last, runs):
    if last is not None:
        ledger.record(op.SetMark(task_mark("daily"), datetime.fromisoformat(f"{last}+00:00").timestamp()))
    made: Signals = queue.Queue()
    looked: Signals = queue.Queue()
    noon = datetime(2026, 3, 2, 12, 0, tzinfo=UTC).timestamp()

    def opened():
        looked.put(1)
        return open_ledger(url, create=False)

    running = Schedule(
        opened,
        cron=NINE,
        zone=UTC,
        tasks=[Task("daily", lambda *_: made.put(1))],
        context=Context(now=lambda: noon),
    )
    running.start()
    looked.get(timeout=PATIENCE_S)
    if runs:
        made.get(timeout=PATIENCE_S)
    running.stop(patience_s=PATIENCE_S)

    assert made.empty()


@pytest.mark.parametrize(("last", "made"), [("2026-03-02T09:00:02", 0), ("2026-03-01T09:00:02", 1)])
def test_a_summary_that_another_sidecar_has_just_made_is_not_made_again(url, ledger, last, made):
    """Also where the clocks of the two differ, and the lease of the other has run out."""
    ledger.record(op.SetMark(task_mark("daily"), datetime.fromisoformat(f"{last}+00:00").timestamp()))
    runs, looked = [], threading.Event()
    nine = datetime(2026, 3, 2, 9, 0, 1, tzinfo=UTC).timestamp()
    running = Schedule(
        partial(open_ledger, url, create=False),
        cron=NINE,
        zone=UTC,
        tasks=[Task("daily", lambda *_: runs.append(1)), Task("other", lambda *_: looked.set(), every_s=3600)],
        context=Context(now=lambda: nine),
    )
    (daily,) = [job for job in running._scheduler.get_jobs() if job.id == "daily"]

    for _ in range(2):
        daily.func(*daily.args)

    assert len(runs) == made


def test_a_summary_is_made_although_the_last_one_lies_in_the_future(url, ledger):
    """The clock was set back: it would be months until the next one."""
    ledger.record(op.SetMark(task_mark("daily"), datetime(2026, 9, 1, tzinfo=UTC).timestamp()))
    runs = []
    running = Schedule(
        partial(open_ledger, url, create=False),
        cron=NINE,
        zone=UTC,
        tasks=[Task("daily", lambda *_: runs.append(1))],
        context=Context(now=lambda: datetime(2026, 3, 2, 9, 0, 1, tzinfo=UTC).timestamp()),
    )
    (daily,) = running._scheduler.get_jobs()

    for _ in range(2):
        daily.func(*daily.args)

    assert runs == [1]


def test_a_task_behind_another_runs_when_that_one_has_succeeded(url, ledger, start):
    runs: Signals = queue.Queue()
    first = iter([ValueError(), None])

    def run(ledger, context):
        runs.put("first")
        if (outcome := next(first, None)) is not None:
            raise outcome

    start(
        partial(open_ledger, url, create=False),
        Task("first", run, every_s=0.05),
        Task("behind", lambda *_: runs.put("behind"), every_s=3600, after="first"),
    )

    assert runs.get(timeout=PATIENCE_S)
    for _ in range(2):  # at its own start, and behind the other
        while runs.get(timeout=PATIENCE_S) != "behind":
            pass


def test_a_task_that_fails_is_counted_and_run_again(url, ledger, start, events):
    outcomes = iter([ValueError("a secret prompt"), None])
    runs: Signals = queue.Queue()

    def run(ledger, context):
        outcome = next(outcomes, None)
        runs.put(outcome)
        if outcome is not None:
            raise outcome

    running = start(partial(open_ledger, url, create=False), Task("shaky", run, every_s=0.01))
    runs.get(timeout=PATIENCE_S)
    runs.get(timeout=PATIENCE_S)
    running.stop(patience_s=PATIENCE_S)

    assert running.failures["shaky"] >= 1
    assert events("task_failed")[0]["task"] == "shaky"
    assert "secret" not in str([record for record in events("task_failed") if "why" in record])


def test_a_ledger_that_is_not_there_yet_is_waited_for(url, start):
    opened: Signals = queue.Queue()
    tries: Signals = queue.Queue()

    def open_when_there():
        tries.put(1)
        return open_ledger(url, create=False, migrate=False, role="sidecar")

    running = start(open_when_there, Task("first", lambda ledger, _: opened.put(ledger.name), every_s=0.01))
    tries.get(timeout=PATIENCE_S)
    tries.get(timeout=PATIENCE_S)
    assert (running.writable, dict(running.failures)) == (False, {"first": 0})

    with open_ledger(url) as ledger:
        assert opened.get(timeout=PATIENCE_S) == ledger.name


def test_that_there_is_no_ledger_is_said_once_for_all_tasks_and_when_one_came(url, start, events, caplog):
    tries: Signals = queue.Queue()

    def open_when_there():
        tries.put(1)
        return open_ledger(url, create=False, migrate=False, role="sidecar")

    running = start(open_when_there, *(Task(f"task {n}", lambda *_: None, every_s=0.01) for n in range(3)))
    for _ in range(12):
        tries.get(timeout=PATIENCE_S)
    open_ledger(url).close()
    while not running.writable:
        tries.get(timeout=PATIENCE_S)

    first, *half_made = [record["why"] for record in events("ledger_missing")]
    assert first.startswith("there is no ledger")
    assert len({first, *half_made}) == 1 + len(half_made)
    assert [record.message for record in caplog.records].count("ledger_writable") == 1


def test_a_ledger_that_another_one_replaced_is_left_for_the_new_one_which_the_log_says(url, tmp_path, start, events):
    names: Signals = queue.Queue()
    open_ledger(url).close()
    start(
        partial(open_ledger, url, create=False, role="sidecar"),
        Task("first", lambda ledger, _: names.put(ledger.name), every_s=0.01),
    )
    old = names.get(timeout=PATIENCE_S)

    for file in tmp_path.glob("parked.db*"):
        file.rename(tmp_path / file.name.replace("parked", "old"))
    with open_ledger(url) as ledger:
        new = ledger.name

    seen = old
    while seen == old:
        seen = names.get(timeout=PATIENCE_S)
    assert seen == new
    assert [(record["was"], record["now"]) for record in events("ledger_replaced")] == [(old, new)]


def test_a_backup_that_was_put_back_is_written_by_the_tasks_although_it_has_the_same_name(url, tmp_path, start):
    between_runs, put_back = threading.Barrier(2, timeout=PATIENCE_S), threading.Event()
    ran: Signals = queue.Queue()
    with open_ledger(url) as ledger:
        name = ledger.name
    backup = shutil.copy(tmp_path / "parked.db", tmp_path / "backup.db")

    def open_again():
        if not ran.empty() and not put_back.is_set():
            between_runs.wait()
            put_back.wait(PATIENCE_S)
        return open_ledger(url, create=False, role="sidecar")

    def note(ledger, _):
        ran.put(ledger.record(op.SetMark("seen", 1)))

    start(open_again, Task("note", note, every_s=0.01))
    between_runs.wait()
    (tmp_path / "damaged").mkdir()
    for file in tmp_path.glob("parked.db*"):
        file.rename(tmp_path / "damaged" / file.name)
    shutil.move(backup, tmp_path / "parked.db")
    ran.get_nowait()
    put_back.set()
    ran.get(timeout=PATIENCE_S)

    with look_into(url, patience_s=PATIENCE_S) as reader:
        assert (reader.name, reader.mark("seen")) == (name, 1)


def test_a_ledger_that_can_not_be_read_for_a_moment_is_not_left_for_another_owner(url, tmp_path):
    open_ledger(url).close()
    file, away = tmp_path / "parked.db", tmp_path / "away.db"
    seen: list[tuple[str, int]] = []

    def open_and_lose_it():
        found = open_ledger(url, create=False, role="sidecar")
        if seen and found.name:  # the name is known from now on, as by the first of the two it is
            file.rename(away)
        return found

    def note(ledger, _):
        if away.exists():
            away.rename(file)
        seen.append((ledger.name, ledger.owner_id))

    task = Task("note", note, every_s=3600, lease_s=None)
    running = Schedule(open_and_lose_it, cron=NINE, zone=UTC, tasks=[task])
    (job,) = running._scheduler.get_jobs()
    for _ in range(2):
        job.func(*job.args)
    running._leave(PATIENCE_S)

    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert running.failures == {"note": 0}


def test_a_task_that_hangs_is_reported_and_stops_neither_the_others_nor_the_end(url, ledger, events):
    hanging, go_on = threading.Event(), threading.Event()
    others: Signals = queue.Queue()

    def hang(ledger, context):
        hanging.set()
        go_on.wait(PATIENCE_S)

    running = Schedule(
        partial(open_ledger, url, create=False),
        cron=NINE,
        zone=UTC,
        tasks=[
            Task("hangs", hang, every_s=0.01, takes_s=0.1),
            Task("works", lambda *_: others.put(1), every_s=0.01),
        ],
    )
    running.start()
    assert hanging.wait(PATIENCE_S)
    while not running.failures["hangs"]:
        others.get(timeout=PATIENCE_S)
    for _ in range(3):
        others.get(timeout=PATIENCE_S)
    running.stop(patience_s=PATIENCE_S)
    go_on.set()

    assert not running.running
    assert running.failures == {"hangs": 1, "works": 0}
    assert [record["task"] for record in events("task_still_running")] == ["hangs"]


def test_a_task_that_is_still_opening_the_ledger_at_the_end_leaves_no_owner_behind(url, ledger, start, events):
    opening, go_on = threading.Event(), threading.Event()
    opened: Signals = queue.Queue()

    def open_slowly():
        opening.set()
        go_on.wait(PATIENCE_S)
        found = open_ledger(url, create=False, role="sidecar")
        opened.put((found, threading.current_thread()))
        return found

    running = start(open_slowly, Task("works", lambda *_: None, every_s=3600))
    assert opening.wait(PATIENCE_S)
    running.stop(patience_s=PATIENCE_S)
    go_on.set()
    found, thread = opened.get(timeout=PATIENCE_S)
    thread.join(PATIENCE_S)

    with ledger.ask() as reader:
        assert not [owner for owner in reader.owners() if owner.facts.role == "sidecar"]
    with pytest.raises(LedgerUnavailable, match="closed"):
        found.record(op.SetMark("seen", 1.0))
    assert running.failures == {"works": 0}


def test_a_ledger_that_is_away_is_a_failure_and_not_writable(start):
    tries: Signals = queue.Queue()

    def open_nothing():
        tries.put(1)
        raise LedgerUnavailable("the ledger is away")

    running = start(open_nothing, Task("first", lambda *_: None, every_s=0.01))
    tries.get(timeout=PATIENCE_S)
    tries.get(timeout=PATIENCE_S)

    assert running.failures["first"] >= 1
    assert not running.writable
    assert running.unwritable == "the ledger is away"


def test_a_ledger_that_no_task_can_write_is_said_once_by_all_of_them_and_when_it_is_over(url, ledger, start, events):
    tries: Signals = queue.Queue()
    is_away = threading.Event()
    is_away.set()

    def opened():
        tries.put(1)
        if is_away.is_set():
            raise LedgerUnavailable("the ledger is away")
        return open_ledger(url, create=False)

    running = start(opened, *(Task(f"task {n}", lambda *_: None, every_s=0.01) for n in range(3)))
    for _ in range(12):
        tries.get(timeout=PATIENCE_S)
    is_away.clear()
    while not running.writable:
        tries.get(timeout=PATIENCE_S)

    assert [record["why"] for record in events("ledger_unwritable")] == ["the ledger is away"]
    assert running.unwritable is None
