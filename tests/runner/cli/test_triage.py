"""`discard`, `restore` and `erase`: a dry run first, then what the filters match, and never more."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time

import pytest

from parked import triage
from parked.job import State
from parked.ledger import full_name
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.ledger.store import Filters
from parked.verdict import Reason
from servers import sqlite_only


@pytest.fixture
def where(story):
    """Returns a function that names the jobs by state, and checks that the law holds."""

    def ids():
        with story.ledger.ask() as reader:
            assert reader.imbalances(thorough=True) == []
            rows = list(reader.jobs(Filters(), states=[state for state in State if state is not State.FORGOTTEN]))
        return {state: sorted(row.job_id for row in rows if row.state is state) for state in {r.state for r in rows}}

    return ids


@pytest.fixture
def night(story):
    """Two jobs parked as overloaded, one as blocked, one pending, one answered."""
    story.parked("busy-0", payload="secret one")
    story.parked("busy-1", payload="secret two")
    story.parked(
        "blocked", error_class="permanent:400", reason=Reason.INVALID_REQUEST, fingerprint="f400", message="quoted text"
    )
    story.pending("waiting")
    story.answered("done", payload="secret three")
    return story


# --- discard -----------------------------------------------------------------------------------------------------


def test_discard_without_apply_only_says_which(parked, night, where):
    before = where()

    said = parked("discard", "--class", "exhausted:503", "--reason", "no use")

    assert said.status == 0
    assert said.out.splitlines()[:2] == [
        "JOBS  STATE   CLASS          REASON",
        "2     parked  exhausted:503  overloaded",
    ]
    assert [line.split()[0] for line in said.out.splitlines()[4:]] == ["busy-0", "busy-1"]
    assert said.err == (
        "would discard 2 jobs; nothing was changed."
        " To do it: parked discard --class exhausted:503 --reason 'no use' --apply\n"
    )
    assert where() == before


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ([], ["replay"]),
        ([], ["discard", "--reason", "r"]),
        ([], ["erase", "--reason", "r"]),
        (["discard", "--all", "--reason", "r", "--apply"], ["restore"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_of_two_nights_each_preview_tells_which_job_is_whose(parked, story, api, before, words):
    story.parked("img-55", batch="n1")
    story.parked("img-55", batch="n2")
    if before:
        parked(*before)

    head, *lines = parked(*words).out.partition("\n\n")[2].splitlines()

    assert head.split()[:3] == ["JOB", "PIPELINE", "BATCH"]
    assert [line.split()[:3] for line in lines] == [["img-55", "nightly", "n1"], ["img-55", "nightly", "n2"]]


def test_discard_with_apply_puts_away_what_the_filters_match(parked, night, where):
    said = parked("discard", "--class", "exhausted:503", "--reason", "no use", "--apply")

    assert (said.status, said.err) == (0, "2 jobs discarded\n")
    assert where()[State.DISCARDED] == ["busy-0", "busy-1"]
    assert where()[State.PARKED] == ["blocked"]
    assert "discarded  no use" in parked("show", "busy-0").out


def test_discard_takes_pending_jobs_when_told(parked, night, where):
    said = parked("discard", "--state", "pending", "--all", "--reason", "called off")
    done = parked("discard", "--state", "pending", "--all", "--reason", "called off", "--apply")

    assert "parked discard --all --state pending --reason 'called off' --apply" in said.err
    assert done.status == 0
    assert where()[State.DISCARDED] == ["waiting"]


def test_jobs_can_be_chosen_by_what_they_failed_with_although_reason_says_why(parked, night, where):
    said = parked("discard", "--failed-with", "invalid_request", "--reason", "no use")
    parked("discard", "--failed-with", "invalid_request", "--reason", "no use", "--apply")

    assert "parked discard --failed-with invalid_request --reason 'no use' --apply" in said.err
    assert where()[State.DISCARDED] == ["blocked"]


@pytest.mark.parametrize("command", ["discard", "erase"])
def test_a_reason_that_sounds_like_a_verdict_is_pointed_out(parked, night, command):
    said = parked(command, "--reason", "overloaded")

    assert "to choose the jobs that failed with overloaded: --failed-with overloaded" in said.err


@pytest.mark.parametrize("command", ["discard", "erase"])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--reason", "r", "--apply"], "without a filter takes every job; say --all"),
        (["--all", "--apply"], "--reason"),
        (["--all", "--reason", "", "--apply"], "--reason must not be empty"),
        (["--all", "--reason", "a\nb", "--apply"], "--reason holds the character U+000A"),
        (["--failed-with", "overload", "--reason", "r"], "did you mean overloaded?"),
        (["--all", "--until", "tomorrow", "--reason", "r", "--apply"], "--until must be like 2h"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_sentence_and_changes_nothing(parked, night, where, command, words, says):
    before = where()

    said = parked(command, *words)

    assert said.status == 2
    assert says in said.err
    assert said.err.count("\n") == 1
    assert where() == before


def test_nothing_to_discard_names_the_ledger(parked, night, url):
    said = parked("discard", "--pipeline", "nobody", "--reason", "r")

    assert (said.status, said.out) == (0, "")
    assert said.err == f"nothing to discard in {full_name(url)}\n"


def test_a_job_that_a_replay_took_meanwhile_is_left_and_said(parked, night, where, monkeypatch):
    """It is claimed between the choice and the change, as a replay elsewhere would do it."""
    row = next(row for row in jobs(night) if row.job_id == "busy-0")
    hands_in = night.ledger.__class__.submit_many

    def submit_many(ledger, operations, channel=None):
        replay_id = night.ledger.record(op.OpenReplay("r", "me", "{}"))
        night.ledger.record(op.Start(row.id, night.ledger.owner_id, replay_id))
        monkeypatch.undo()
        return hands_in(ledger, operations, channel)

    monkeypatch.setattr(type(night.ledger), "submit_many", submit_many)

    said = parked("discard", "--class", "exhausted:503", "--reason", "r", "--apply", "--ledger", night.ledger.url)

    assert said.status == 4
    assert "left 1 job: taken up or put away since it was chosen" in said.err
    assert "1 job discarded" in said.err
    assert where()[State.REPLAYING] == ["busy-0"]


def jobs(story):
    with story.ledger.ask() as reader:
        return list(reader.jobs(Filters(), states=(State.PARKED,)))


# --- restore -----------------------------------------------------------------------------------------------------


def test_restore_brings_discarded_jobs_back_to_where_they_came_from(parked, night, where):
    before = where()
    parked("discard", "--all", "--reason", "r", "--apply")
    parked("discard", "--state", "pending", "--all", "--reason", "r", "--apply")

    said = parked("restore", "busy-0", "busy-1", "blocked", "waiting")

    assert said.status == 0
    assert "busy-0 is parked again\n" in said.out
    assert "waiting is pending again\n" in said.out
    assert where() == before


def test_restore_leaves_what_is_not_discarded(parked, night):
    said = parked("restore", "busy-0", "done")

    assert (said.status, said.out) == (4, "")
    assert said.err.splitlines() == [
        "left busy-0: it is parked, not discarded",
        "left done: it is succeeded, not discarded",
    ]


def test_what_restore_left_is_counted_by_why(parked, night):
    parked("discard", "--job", "busy-0", "--job", "busy-1", "--reason", "r", "--apply")
    parked("erase", "--job", "busy-0", "--reason", "r", "--apply")

    said = parked("restore", "busy-0", "busy-1", "done", "--json")

    told = json.loads(said.out)
    assert said.status == 4
    assert [job["job_id"] for job in told["restored"]] == ["busy-1"]
    assert told["left"] == {"erased": 1, "succeeded": 1}


def test_restore_of_an_id_that_nobody_knows_changes_nothing(parked, night, where):
    parked("discard", "--all", "--reason", "r", "--apply")

    said = parked("restore", "busy-0", "nobody")

    assert said.status == 2
    assert "there is no job 'nobody'" in said.err
    assert State.PARKED not in where()


def test_restore_wants_to_know_which_where_an_id_is_not_unique(parked, story):
    for pipeline in ("one", "two"):
        story.parked("a", pipeline=pipeline)
    parked("discard", "--all", "--reason", "r", "--apply")

    said = parked("restore", "a")

    assert said.status == 2
    assert "parked restore --pipeline two --batch '' a" in said.err
    assert parked("restore", "a", "--pipeline", "two").out == "a is parked again\n"


def test_restore_by_filter_first_says_which(parked, night, where):
    parked("discard", "--state", "pending", "--all", "--reason", "r", "--apply")
    parked("discard", "--all", "--reason", "r", "--apply")
    before = where()

    said = parked("restore", "--class", "exhausted:503")

    assert (said.status, where()) == (0, before)
    assert said.out.splitlines()[1].split() == ["2", "discarded", "exhausted:503", "overloaded"]
    assert said.err.splitlines() == [
        "would restore 2 jobs; nothing was changed. To do it: parked restore --class exhausted:503 --apply"
    ]


def test_restore_by_filter_brings_back_all_that_match(parked, night, where):
    before = where()
    parked("discard", "--state", "pending", "--all", "--reason", "r", "--apply")
    parked("discard", "--all", "--reason", "r", "--apply")

    some = parked("restore", "--class", "exhausted:503", "--apply")
    assert (some.status, some.err) == (0, "2 jobs restored\n")
    assert where()[State.DISCARDED] == ["blocked", "waiting"]

    rest = json.loads(parked("restore", "--all", "--apply", "--json").out)
    assert (rest["jobs"], rest["left"]) == (2, {})
    assert where() == before


def test_restore_by_filter_leaves_what_was_erased(parked, night):
    parked("discard", "--all", "--reason", "r", "--apply")
    parked("erase", "--job", "busy-0", "--reason", "r", "--apply")

    said = parked("restore", "--all", "--apply")

    assert said.status == 4
    assert said.err.splitlines() == ["left 1 job: erased, so that they can't run any more", "2 jobs restored"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--apply"], "takes every job; say --all, or name a filter"),
        ([], "nothing to restore in "),
        (["busy-0", "--class", "exhausted:503"], "leave out the ids, or the other filters"),
        (["busy-0", "--all"], "leave out the ids, or the other filters"),
    ],
)
def test_restore_wants_ids_or_filters(parked, night, words, says):
    assert says in parked("restore", *words).err


# --- erase -------------------------------------------------------------------------------------------------------


@sqlite_only
def test_erase_without_apply_only_says_which_and_what_it_would_leave(parked, night, tmp_path):
    said = parked("erase", "--all", "--reason", "asked for")

    assert said.status == 0
    assert "1     succeeded" in said.out
    assert "left 1 job: still to be run; discard it first" in said.err
    assert (
        "would erase 4 jobs; nothing was changed. To do it: parked erase --all --reason 'asked for' --apply" in said.err
    )
    assert b"secret one" in files(tmp_path)


def test_erase_with_apply_leaves_nothing_of_the_texts_in_the_files(parked, night, tmp_path, where):
    before = where()

    said = parked("erase", "--all", "--reason", "asked for", "--apply")

    assert said.status == 4  # one is still to be run
    assert "4 jobs erased" in said.err
    left = files(tmp_path)
    for text in (b"secret", b"overloaded.", b"quoted text", b'"text":"42"'):
        assert text not in left
    assert where() == before


def test_erase_again_says_that_it_was_done_and_ends_with_zero(parked, night):
    parked("erase", "--class", "*", "--reason", "asked for", "--apply")

    said = parked("erase", "--class", "*", "--reason", "asked for", "--apply")

    assert said.status == 0
    assert said.err.splitlines() == [
        "left 3 jobs: erased before",
        "0 jobs erased",
        "of those that were erased before, no copies are left in the ledger's files",
    ]


def test_what_somebody_else_erased_meanwhile_is_not_counted_as_erased(parked, night, monkeypatch):
    chosen = triage.select

    def chosen_while_another_erases(reader, filters, **how):
        selection = chosen(reader, filters, **how)
        night.ledger.record(op.Erase(selection.ids[0], "first"))
        return selection

    monkeypatch.setattr(triage, "select", chosen_while_another_erases)

    said = parked("erase", "--class", "exhausted:503", "--reason", "asked for", "--apply", "--json")

    told = json.loads(said.out)
    assert said.status == 0
    assert (told["erased"], told["left"]) == (1, {"erased_before": 1})


@sqlite_only
def test_an_erased_job_that_got_a_text_again_is_found_by_the_audit_and_erased_again(parked, night, tmp_path):
    parked("erase", "--job", "busy-0", "--reason", "first", "--apply")
    connection = sqlite3.connect(tmp_path / "parked.db")
    with connection:
        connection.execute("UPDATE payloads SET codec = 'json', body = '1' WHERE codec = 'erased'")
    connection.close()

    audited = parked("audit")
    said = parked("erase", "--job", "busy-0", "--reason", "again", "--apply")

    assert (audited.status, "erased with texts: counted 0, found 1" in audited.out) == (1, True)
    assert (said.status, said.err) == (0, "1 job erased\n")
    assert parked("audit").status == 0
    assert ": first\n" in parked("show", "busy-0").out


def test_an_erased_job_is_shown_as_such_and_given_out_no_more(parked, night):
    parked("erase", "--job", "busy-0", "--job", "done", "--reason", "asked for", "--apply")

    shown = parked("show", "busy-0", "--payload")
    told = json.loads(parked("show", "done", "--payload", "--answer", "--json").out)

    assert shown.status == 0
    assert ": asked for\n" in shown.out
    assert "its payload, answer and messages were erased" in shown.err
    assert told["erased"]["why"] == "asked for"
    assert told["erased"]["at"] == told["job"]["erased_at"]
    assert (told["payload"], told["answer"]) == (None, None)
    assert parked("answers").out == ""


def test_a_replay_leaves_an_erased_job_and_says_so(parked, night):
    parked("erase", "--job", "busy-0", "--reason", "asked for", "--apply")

    said = parked("replay", "--class", "exhausted:503", "--json")

    assert "left 1 job: erased, so that nothing is left to send" in said.err
    assert json.loads(said.out)["left"]["refused"]["erased, so that nothing is left to send"] == 1


def test_a_run_of_the_same_file_calls_no_erased_job_and_writes_no_line_for_it(parked, night, tmp_path, url):
    parked("erase", "--job", "done", "--reason", "asked for", "--apply")
    (tmp_path / "jobs.jsonl").write_text('{"job_id": "done", "model": "m", "payload": "secret three"}\n')

    said = parked("run", str(tmp_path / "jobs.jsonl"), "--call", "json:dumps", "--pipeline", "nightly")

    assert said.out == ""
    assert "1 line: 1 answered before" in said.err
    assert b"secret" not in files(tmp_path).replace(b"secret one", b"").replace(b"secret two", b"")


def test_an_erased_job_can_not_be_restored(parked, night):
    parked("discard", "--job", "busy-0", "--reason", "r", "--apply")
    parked("erase", "--job", "busy-0", "--reason", "asked for", "--apply")

    assert parked("restore", "busy-0").err == "left busy-0: it was erased, so that it can't run any more\n"


def test_readers_that_keep_old_pages_make_it_end_with_three(parked, night, monkeypatch):
    monkeypatch.setattr("parked.ledger.scrubbing.WAL_PATIENCE_MS", 1)
    monkeypatch.setattr("parked.ledger.scrubbing.PATIENCE_S", 0.0)
    monkeypatch.setattr("parked.ledger.postgres_scrubbing.PATIENCE_S", 0.0)

    with night.ledger.ask() as reader:
        reader.states()
        said = parked("erase", "--job", "done", "--reason", "r", "--apply", "--json")

    assert said.status == 3
    assert json.loads(said.out)["scrubbed"] is False
    assert "copies are left" in said.err


# --- both --------------------------------------------------------------------------------------------------------


def test_the_results_can_be_had_as_json(parked, night, url):
    dry = json.loads(parked("discard", "--all", "--reason", "r", "--json").out)
    done = json.loads(parked("discard", "--class", "exhausted:*", "--reason", "r", "--apply", "--json").out)
    back = json.loads(parked("restore", "busy-0", "--json").out)
    erased = json.loads(parked("erase", "--job", "busy-0", "--reason", "r", "--apply", "--json").out)

    assert dry["would_discard"] == 3
    assert dry["causes"][0] == {"state": "parked", "error_class": "exhausted:503", "reason": "overloaded", "jobs": 2}
    assert [job["job_id"] for job in dry["sample"]] == ["busy-0", "busy-1", "blocked"]
    assert done == {"ledger": full_name(url), "discarded": 2, "left": {}}
    assert [job["state"] for job in back["restored"]] == ["parked"]
    assert erased == {"ledger": full_name(url), "erased": 1, "scrubbed": True, "left": {}}


@pytest.mark.parametrize("command", ["discard", "erase", "restore"])
def test_where_there_is_no_ledger_none_is_made(parked, tmp_path, url, no_ledger, command):
    said = parked(command, *(["a"] if command == "restore" else ["--all", "--reason", "r", "--apply"]))

    assert said.status == 3
    assert full_name(url).removeprefix("sqlite:///") in said.err
    assert no_ledger()
    assert list(tmp_path.iterdir()) == []


DONE = {"discard": "state = 'discarded'", "erase": "erased_at IS NOT NULL"}


@pytest.mark.slow
@sqlite_only
@pytest.mark.parametrize("command", DONE)
def test_killed_half_way_every_job_is_as_it_was_or_done_and_the_same_command_goes_on(
    parked, story, url, where, tmp_path, command
):
    rows = 3_000
    for ticket in story.ledger.submit_many(take_over(number) for number in range(rows)):
        ticket.wait()
    words = [command, "--all", "--reason", "r", "--apply"]
    process = subprocess.Popen([sys.executable, "-m", "parked.cli", *words, "--ledger", url], stderr=subprocess.PIPE)
    watching = sqlite3.connect(tmp_path / "parked.db")
    count = f"SELECT count(*) FROM jobs WHERE {DONE[command]}"
    deadline = time.monotonic() + 30
    while watching.execute(count).fetchone()[0] == 0 and process.poll() is None and time.monotonic() < deadline:
        pass
    process.kill()
    process.communicate()
    (half,) = watching.execute(count).fetchone()
    where()

    again = parked(*words)

    assert 0 < half < rows
    assert again.status == 0
    assert watching.execute(count).fetchone()[0] == rows
    watching.close()
    where()
    if command == "erase":
        assert b"payload-of-" not in files(tmp_path)


def take_over(number):
    payload = f"payload-of-{number}"
    closing = op.Closing(reason=Reason.OVERLOADED)
    return op.TakeOver("p", "", f"j{number}", "m", encode(payload), identity(payload), "exhausted:503", closing, 1)


def files(tmp_path):
    return b"".join(file.read_bytes() for file in sorted(tmp_path.glob("parked.db*")))


@pytest.mark.slow
@sqlite_only
def test_erasing_while_a_run_goes_on_disturbs_neither(parked, story, where, url, tmp_path):
    """The file is rewritten under the runner's hands."""
    for number in range(400):
        story.answered(f"old-{number}", payload=f"payload-of-{number}", pipeline="old")
    lines = [json.dumps({"job_id": f"new-{n}", "model": "m", "payload": f"new {n}"}) for n in range(2_000)]
    (tmp_path / "jobs.jsonl").write_text("\n".join(lines))
    (tmp_path / "asking.py").write_text("def ask(payload, model):\n    return f'answer to {payload}'\n")
    words = ["run", "jobs.jsonl", "--call", "asking:ask", "--pipeline", "new", "--out", "answers.jsonl"]
    running = subprocess.Popen(
        [sys.executable, "-m", "parked.cli", *words, "--ledger", url], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    while not any(state is State.RUNNING for state in where()) and running.poll() is None:
        pass

    erased = parked("erase", "--pipeline", "old", "--reason", "r", "--apply", "--json")
    _, said = running.communicate(timeout=60)

    assert (erased.status, json.loads(erased.out)["erased"]) == (0, 400)
    assert running.returncode == 0
    assert "2000 lines: 2000 answered" in said
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 2_000
    assert b"payload-of-" not in files(tmp_path)
    where()
