"""`list`, `show`, `summary` and `audit` over a real ledger."""

import json
import os
import re
import sqlite3

import pytest

from parked import owners
from parked.ledger import full_name
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.summary import LAST_SUMMARY
from parked.verdict import Reason
from servers import sqlite_only


def ids(said) -> list[str]:
    assert said.status == 0
    return [job["job_id"] for job in json.loads(said.out)["jobs"]]


# --- list --------------------------------------------------------------------------------------------------------


def test_list_shows_parked_jobs_as_a_table_and_says_how_to_try_them_again(parked, story):
    story.parked("img-0412", pipeline="nightly-captions")
    story.answered("img-0413")

    said = parked("list")

    head, line = said.out.splitlines()
    assert head.split() == ["JOB", "PIPELINE", "CLASS", "ATTEMPTS", "PARKED"]
    assert line.startswith("img-0412  nightly-captions  exhausted:503  1         2")
    assert line.endswith("Z")
    assert said.err == "1 parked job. To try it again: parked replay --job img-0412 --apply\n"


def test_list_names_the_filters_again_in_the_command_it_proposes(parked, story, url):
    for name in "abc":
        story.parked(name)

    by_class = parked("list", "--class", "exhausted:*", "--since", "2h")
    unfiltered = parked("list", "--ledger", url)

    assert "3 parked jobs. To try them again: parked replay --class 'exhausted:*' --since 2h --apply" in by_class.err
    told = re.sub("//[^/]*@", "//USER@", url)  # an address with a user may hold a password
    assert f"parked replay --ledger {told} --all --apply" in unfiltered.err


def test_the_command_for_one_job_names_its_pipeline_where_the_id_is_not_unique(parked, story):
    story.parked("a", pipeline="one")
    story.answered("a", pipeline="two", batch="b")

    assert "parked replay --job a --pipeline one --batch '' --apply" in parked("list").err


def test_list_is_limited_and_says_how_many_more_there_are(parked, story):
    for number in range(5):
        story.parked(f"j{number}")

    said = parked("list", "--limit", "2")

    assert len(said.out.splitlines()) == 3
    assert "2 of 5 parked jobs; --limit 5 shows all" in said.err


def test_list_shows_the_newest_first(parked, story):
    for name in ("first", "second", "third"):
        story.parked(name)

    assert ids(parked("list", "--json", "--limit", "2")) == ["third", "second"]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["--pipeline", "other"], ["d"]),
        (["--batch", "2026-03-02"], ["b"]),
        (["--batch", ""], ["a", "c", "d"]),
        (["--class", "permanent:400"], ["c"]),
        (["--class", "exhausted:*"], ["a", "b", "d"]),
        (["--reason", "invalid_request"], ["c"]),
        (["--fingerprint", "f400"], ["c"]),
        (["--job", "a", "--job", "b"], ["a", "b"]),
        (["--model", "m", "--job", "a"], ["a"]),
        (["--model", "other"], []),
        (["--since", "1h"], ["a", "b", "c", "d"]),
        (["--until", "1h"], []),
        (["--until", "2999-01-01"], ["a", "b", "c", "d"]),
        (["--pipeline", "nightly", "--class", "permanent:*"], ["c"]),
    ],
)
def test_filters_choose_jobs_and_all_must_hold(parked, story, filters, found):
    story.parked("a")
    story.parked("b", batch="2026-03-02")
    story.parked("c", error_class="permanent:400", reason=Reason.INVALID_REQUEST, fingerprint="f400")
    story.parked("d", pipeline="other")

    assert sorted(ids(parked("list", "--json", *filters))) == found


def test_list_shows_other_states_too(parked, story):
    story.pending("p")
    story.answered("s")
    story.parked("x")

    pending = parked("list", "--state", "pending")
    everything = parked("list", "--state", "all")

    assert [line.split()[0] for line in pending.out.splitlines()] == ["JOB", "p"]
    assert "replay" not in pending.err
    assert {tuple(line.split()[i] for i in (0, 2)) for line in everything.out.splitlines()[1:]} == {
        ("p", "pending"), ("s", "succeeded"), ("x", "parked"),
    }  # fmt: skip


def test_list_of_nothing_names_the_ledger_that_holds_nothing(parked, story, url):
    said = parked("list")

    assert (said.status, said.out) == (0, "")
    assert full_name(url) in said.err


def test_ids_that_would_turn_the_terminal_around_are_escaped(parked, story):
    story.parked("evil\u202eid")

    assert "evil\\u202eid" in parked("list").out
    assert "\u202e" not in parked("list").out + parked("list").err + parked("list", "--json").out


# --- show --------------------------------------------------------------------------------------------------------


def test_show_tells_all_of_a_parked_job(parked, story):
    story.parked("a", message="The model is overloaded.\n\x1b[31mTry later")

    said = parked("show", "a")

    assert said.status == 0
    for part in (
        "parked since 2",
        "exhausted:503",
        "overloaded (retryable, fault of the model)",
        "rule http.test",
        "trace 0af7651916cd43dd8448eb211c80319c",
        "    The model is overloaded.\n    \\x1b[31mTry later\n",
    ):
        assert part in said.out


def test_show_gives_payload_and_answer_only_when_asked(parked, story):
    story.answered("a", payload={"contents": "six times seven"})

    told = json.loads(parked("show", "a", "--json").out)
    all_told = json.loads(parked("show", "a", "--json", "--payload", "--answer").out)

    assert {"payload", "answer"}.isdisjoint(told)
    assert all_told["payload"] == {"contents": "six times seven"}
    assert all_told["answer"]["candidates"][0]["content"]["parts"] == [{"text": "42"}]
    assert "six times seven" in parked("show", "a", "--payload").out


def test_show_counts_tokens_and_time_of_each_attempt(parked, story):
    story.answered("a")

    (attempt,) = json.loads(parked("show", "a", "--json").out)["attempts"]

    assert (attempt["attempt"], attempt["outcome"], attempt["duration_s"]) == (1, "answered", 0.5)
    assert (attempt["tokens_in"], attempt["tokens_out"]) == (3, 5)
    assert "3 tokens in  5 tokens out" in parked("show", "a").out


def test_show_says_that_the_process_is_gone_which_has_a_job_in_hand(parked, story):
    gone = story.ledger.record(op.Register(owners.facts("runner")._replace(process_start="1")))
    story.ledger.record(op.Accept("nightly", "", "a", "m", encode("p"), identity("p"), start_for=gone))

    assert f"its process, pid {os.getpid()}, is gone; the next run, " in parked("show", "a").out
    assert json.loads(parked("show", "a", "--json").out)["gone_pid"] == os.getpid()


def test_show_of_an_erased_job_advises_what_can_still_be_done(parked, story):
    story.parked("a")
    parked("erase", "--job", "a", "--reason", "asked to", "--apply")

    (advice,) = [line for line in parked("show", "a").out.splitlines() if line.startswith("what to do")]

    assert advice.split(maxsplit=3)[3] == "discard it: it was erased and can't run again"


def test_show_says_that_a_job_has_no_answer(parked, story):
    story.parked("a")

    said = parked("show", "a", "--answer")

    assert said.status == 0
    assert "it has no answer: it is parked" in said.err


def test_an_unknown_job_is_refused_with_the_name_of_the_ledger(parked, story, url):
    said = parked("show", "nobody")

    assert (said.status, said.out) == (2, "")
    assert "there is no job 'nobody' in " in said.err
    assert full_name(url) in said.err


def test_an_id_that_is_not_unique_is_listed_with_how_to_choose(parked, story):
    story.parked("a", pipeline="one")
    story.parked("a", pipeline="two", batch="night 2")

    said = parked("show", "a")

    assert said.status == 2
    assert "2 jobs are called 'a'" in said.err
    assert "parked show --pipeline two --batch 'night 2' a" in said.err
    assert parked("show", "--pipeline", "two", "--batch", "night 2", "a").status == 0


# --- summary -----------------------------------------------------------------------------------------------------


def test_a_summary_begins_with_the_ledger_and_counts_classes_largest_first(parked, story, url):
    story.parked("a", error_class="permanent:400", reason=Reason.INVALID_REQUEST, fingerprint="f400")
    for name in "bc":
        story.parked(name)

    said = parked("summary")

    lines = said.out.splitlines()
    assert lines[0].startswith("ledger ")
    assert full_name(url) in lines[0]
    assert lines[1] == "dead-letter: 3 parked"
    assert lines[2:4] == ["     2  exhausted:503", "     1  permanent:400"]
    assert "parked replay --fingerprint f503" in said.err


def test_a_clean_ledger_says_so_and_names_itself(parked, story):
    story.answered("a")

    assert parked("summary").out.splitlines()[1:] == ["dead-letter: clean (0 parked)"]


def test_a_summary_names_what_is_pending_since_when_and_what_runs_it(parked, story):
    story.pending("a", pipeline="captions")
    story.pending("b", pipeline="captions")

    said = parked("summary")
    (waiting,) = json.loads(parked("summary", "--json").out)["waiting"]

    assert "pending: 2 of captions, the oldest since 2" in said.out
    assert "parked work --pipeline captions --until-empty" in said.err
    assert (waiting["pipeline"], waiting["state"], waiting["jobs"]) == ("captions", "pending", 2)
    assert waiting["waits_for"] == "runner"
    assert waiting["since"] is not None


def test_what_is_new_counts_from_the_time_that_was_asked_for(parked, story):
    story.parked("a")

    assert "1 parked, 1 of them since" in parked("summary", "--since", "1h").out
    assert "1 parked, 0 of them since" in parked("summary", "--since", "2999-01-01").out


def test_what_is_new_counts_from_the_last_scheduled_summary(parked, story):
    story.parked("a")
    story.ledger.record(op.SetMark(LAST_SUMMARY, 4e9))
    told = json.loads(parked("summary", "--json").out)

    assert (told["parked"], told["new"]) == (1, 0)
    assert told["since"] == "2096-10-02T07:06:40.000Z"


def test_a_summary_holds_no_message_of_the_server(parked, story):
    story.parked("a", message="quoting a prompt")

    said = parked("summary")

    assert "quoting" not in said.out + said.err + parked("summary", "--json").out


# --- audit -------------------------------------------------------------------------------------------------------


def test_an_audit_of_a_sound_ledger_is_clean(parked, story):
    story.pending("a")
    story.answered("b")
    story.parked("c")

    said = parked("audit")
    told = json.loads(parked("audit", "--json").out)

    assert said.status == 0
    assert "accepted 3 = pending 1 + running 0 + succeeded 1 + parked 1" in said.out
    assert told["holds"] is True
    assert (told["accepted"], told["states"]["parked"]) == (3, 1)


@sqlite_only
def test_an_audit_of_a_ledger_that_lost_a_job_ends_with_one(parked, story, tmp_path):
    story.parked("a")
    with sqlite3.connect(tmp_path / "parked.db") as behind_its_back:
        behind_its_back.execute("UPDATE jobs SET state = 'succeeded'")
    behind_its_back.close()

    said = parked("audit")

    assert said.status == 1
    assert "nightly: " in said.out
    assert "the law does not hold" in said.err
    assert json.loads(parked("audit", "--json").out)["holds"] is False


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE payloads SET body = '{'", "payloads that can't be read"),
        ("UPDATE payloads SET body = '\"another\"'", "payloads that can't be read"),
        ("UPDATE answers SET body = '{'", "answers that can't be read"),
        ("UPDATE answers SET codec = 'of-tomorrow'", "answers that can't be read"),
    ],
)
@sqlite_only
def test_an_audit_of_the_bodies_names_jobs_whose_texts_are_damaged(parked, story, tmp_path, change, what):
    story.answered("a")
    assert parked("audit", "--bodies").status == 0
    with sqlite3.connect(tmp_path / "parked.db") as behind_its_back:
        behind_its_back.execute(change)
    behind_its_back.close()

    said = parked("audit", "--bodies")

    assert (said.status, parked("audit").status) == (1, 0)
    assert "read 2 payloads and answers: 1 damaged\n" in said.out
    assert f"nightly: {what}: counted 0, found 1\n  a\n" in said.out


def test_an_audit_of_sound_bodies_is_clean(parked, story):
    story.answered("a")
    story.parked("b")

    said = parked("audit", "--bodies")

    assert said.status == 0
    assert said.out.splitlines()[2:] == ["read 3 payloads and answers: all whole"]
    assert json.loads(parked("audit", "--bodies", "--json").out)["bodies_read"] == 3
    assert "read" not in parked("audit").out
