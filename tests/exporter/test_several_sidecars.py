"""Real sidecar processes that share a ledger, that may not write it, or whose tasks hang."""

import json
import time

import pytest

from servers import IN_A_SECOND_S

pytestmark = pytest.mark.slow

PATIENCE_S = 20.0

# Tasks by the second instead of by the minute, and one that never ends.
PROGRAM = """
import threading
from dataclasses import replace
from parked_exporter import cli, schedule

schedule.LOOK_AGAIN_S = 0.2
TASKS = {
    "quick": tuple(task if task.every_s is None else replace(task, every_s=0.2) for task in schedule.SCHEDULE),
    "hourly": tuple(task if task.every_s is None else replace(task, every_s=3600.0) for task in schedule.SCHEDULE),
    "hanging": (
        schedule.Task("hangs", lambda *_: threading.Event().wait(), every_s=0.2, takes_s=0.5), *schedule.SCHEDULE
    ),
}
"""


def ending_at(point):
    """The beginning of a program that gets SIGTERM at a point: see `torture.points`."""
    return f"from torture import points\npoints.arm('by:SIGTERM')\npoints.arm({point!r})\n"


def program(tasks):
    return f"{PROGRAM}\nschedule.SCHEDULE = TASKS[{tasks!r}]\nraise SystemExit(cli.main())"


@pytest.fixture
def url(url_on_each_database):
    return url_on_each_database


def state(sidecar):
    status, _, body = sidecar.get("/-/ready")
    return status, json.loads(body)


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline


def has(sidecar, *tasks):
    """Whether the leases of these tasks are its own."""
    leases = state(sidecar)[1]["leases"]
    return {leases[task]["pid"] for task in tasks if task in leases} == {sidecar.process.pid}


@pytest.mark.parametrize("tasks", ["quick", "hourly"])
def test_the_tasks_of_a_sidecar_that_is_killed_are_taken_over(start_sidecar, ledger, tasks):
    first = start_sidecar(code=program(tasks))
    until(lambda: has(first, "orphan_sweep", "audit"))
    second = start_sidecar(code=program(tasks))
    second.until(lambda samples: samples.get("parked_ledger_writable") == {(): 1.0})
    assert has(first, "orphan_sweep", "audit")

    first.process.kill()

    until(lambda: has(second, "orphan_sweep", "audit"))


def owner_of(ledger, sidecar):
    with ledger.ask() as reader:
        (owner,) = [owner for owner in reader.owners() if owner.facts.pid == sidecar.process.pid]
        return owner


def test_the_tasks_of_a_sidecar_that_is_told_to_end_go_to_the_other_and_nobody_counts_as_lost(start_sidecar, ledger):
    first = start_sidecar(code=program("quick"))
    until(lambda: has(first, "orphan_sweep", "audit"))
    second = start_sidecar(code=program("quick"))
    second.until(lambda samples: samples.get("parked_ledger_writable") == {(): 1.0})

    assert first.stop() == 0

    until(lambda: has(second, "orphan_sweep", "audit"))
    left = owner_of(ledger, first)
    assert (left.ended_at is not None, left.lost_at) == (True, None)


@pytest.mark.parametrize("point", ["before:take_lease", "after:take_lease", "after:lose"])
def test_told_to_end_in_the_middle_of_a_hand_over_it_leaves_the_tasks_to_the_next_one(start_sidecar, ledger, point):
    """The first is dead and holds the leases; the second looks whether it is alive, takes them, and is told to end."""
    first = start_sidecar(code=program("quick"))
    until(lambda: has(first, "orphan_sweep", "audit"))
    first.process.kill()
    first.process.wait()

    second = start_sidecar(code=ending_at(point) + program("quick"))

    assert second.process.wait(PATIENCE_S) == 0
    left = owner_of(ledger, second)
    assert (left.ended_at is not None, left.lost_at) == (True, None)
    third = start_sidecar(code=program("quick"))
    until(lambda: has(third, "orphan_sweep", "audit"))
    with ledger.ask() as reader:
        assert reader.imbalances(thorough=True) == []


def test_sidecars_compete_only_for_tasks_that_they_have_switched_on(start_sidecar, ledger):
    first = start_sidecar(code=program("quick"))
    until(lambda: has(first, "orphan_sweep", "audit"))
    second = start_sidecar(code=program("quick"), env={"PARKED_RETENTION": "30d"})

    until(lambda: has(second, "retention"))

    assert has(first, "orphan_sweep", "audit")


def test_sidecars_whose_settings_differ_are_reported_by_name(start_sidecar, ledger):
    first = start_sidecar(env={"PARKED_RETENTION": "30d"})
    first.until(lambda samples: (("task", "peers"),) in samples.get("parked_task_last_success_timestamp_seconds", {}))
    second = start_sidecar(env={"PARKED_RETENTION": "90d", "PARKED_NOTIFY": "json://u:xoxb@127.0.0.1:1"})

    assert second.event("sidecars_differ")["settings"] == "PARKED_NOTIFY, PARKED_RETENTION"


def test_a_task_that_hangs_is_reported_and_stops_neither_the_others_nor_a_scrape_nor_sigterm(start_sidecar, ledger):
    sidecar = start_sidecar(code=program("hanging"))

    assert sidecar.event("task_still_running")["task"] == "hangs"
    samples = sidecar.scrape()
    began = time.monotonic()
    status = sidecar.stop()

    assert samples["parked_task_failures_total"][(("task", "hangs"),)] == 1.0
    assert {(("task", "orphan_sweep"),), (("task", "audit"),)} <= {
        *samples["parked_task_last_success_timestamp_seconds"]
    }
    assert status == 0
    assert time.monotonic() - began < IN_A_SECOND_S  # the task would take for ever


# --- a ledger that may only be read ------------------------------------------------------------------------------


@pytest.fixture
def url_to_look(postgres, postgres_url, ledger):
    """The same ledger for a role that may read and nothing else."""
    name = "looks_only"
    postgres.run(
        f"CREATE ROLE {name} LOGIN",
        f"GRANT USAGE ON SCHEMA parked TO {name}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA parked TO {name}",
        database="ledger",
    )
    yield postgres.url("ledger", user=name)
    postgres.run(f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}", database="ledger")


@pytest.mark.parametrize("url_on_each_database", ["postgres"], indirect=True)
def test_a_sidecar_whose_role_may_only_read_is_not_ready_and_says_why_once(start_sidecar, url_to_look):
    sidecar = start_sidecar(ledger=url_to_look)

    why = sidecar.event("ledger_unwritable")["why"]
    status, found = state(sidecar)
    samples = sidecar.scrape()
    sidecar.stop()

    assert (status, found["ready"]) == (503, False)
    assert found["reasons"] == [f"the tasks can't write: {why}"]
    assert "refuses this role a right" in why
    assert (samples["parked_ledger_up"], samples["parked_ledger_writable"]) == ({(): 1.0}, {(): 0.0})
    assert not [line for line in sidecar.lines.queue if line and ("unwritable" in line or "task_failed" in line)]


@pytest.mark.parametrize("url_on_each_database", ["postgres"], indirect=True)
def test_a_sidecar_that_only_reads_is_ready_with_that_role(start_sidecar, url_to_look):
    assert state(start_sidecar("--read-only", ledger=url_to_look))[0] == 200


@pytest.mark.parametrize("url_on_each_database", ["sqlite"], indirect=True)
def test_a_sidecar_that_only_reads_says_what_is_set_and_not_done_by_it(start_sidecar, ledger):
    env = {"PARKED_RETENTION": "90d", "PARKED_NOTIFY": "json://u:xoxb@127.0.0.1:1"}

    assert start_sidecar("--read-only", env=env).event("not_done_here")["settings"] == "PARKED_RETENTION, PARKED_NOTIFY"
