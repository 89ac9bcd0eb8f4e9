"""`parked causes`: many parked jobs as few causes."""

from __future__ import annotations

import json

import pytest

from parked.cli.output import OTHER_MODEL
from parked.ledger import full_name
from parked.ledger import operations as op
from parked.verdict import Reason


@pytest.fixture
def night(story):
    """Three jobs that were overloaded and one that was refused."""
    for number in range(3):
        story.parked(f"img-{number}", pipeline="captions")
    story.parked(
        "odd",
        pipeline="captions",
        batch="2026-03-02",
        error_class="permanent:400",
        reason=Reason.INVALID_REQUEST,
        fingerprint="f400",
        message="Unknown name [removed]",
    )
    story.answered("fine", pipeline="captions")
    return story


def test_jobs_of_one_cause_are_one_entry_largest_first(parked, night):
    said = parked("causes")

    lines = said.out.splitlines()
    assert said.status == 0
    assert lines[0].startswith("3 jobs  exhausted:503  overloaded  [f503]  2")
    assert lines[1] == "  e.g. captions/img-2: The model is overloaded."
    assert lines[3] == "  what to do: replay once it has passed; switch model if it lasts"
    assert lines[4] == "  next: parked replay --fingerprint f503"
    assert lines[5].startswith("1 job  permanent:400  invalid_request  [f400]")
    assert lines[6] == "  e.g. captions/2026-03-02/odd: Unknown name [removed]"
    assert said.err == "4 parked jobs, 2 causes\n"


def test_json_has_the_same(parked, night):
    told = json.loads(parked("causes", "--json", "--reason", "invalid_request").out)

    (cause,) = told["causes"]
    assert told["total"] == 1
    assert (cause["fingerprint"], cause["jobs"], cause["kind"]) == ("f400", 1, "permanent")
    assert cause["first_parked_at"] <= cause["last_parked_at"]
    assert cause["example"] == {"job_id": "odd", "pipeline": "captions", "batch": "2026-03-02"}
    assert cause["message"] == "Unknown name [removed]"
    assert cause["remedy"].startswith("fix input or code")


def test_the_next_command_keeps_the_other_filters(parked, night):
    said = parked("causes", "--pipeline", "captions", "--class", "exhausted:*", "--since", "2h")

    assert "next: parked replay --pipeline captions --class 'exhausted:*' --fingerprint f503 --since 2h" in said.out


def test_jobs_that_were_erased_are_told_apart_and_to_be_discarded(parked, night):
    parked("erase", "--job", "img-0", "--job", "odd", "--reason", "asked for", "--apply")

    lines = parked("causes").out.splitlines()
    by_cause = {(c["fingerprint"], c["erased"]): c for c in json.loads(parked("causes", "--json").out)["causes"]}

    assert {cause: told["jobs"] for cause, told in by_cause.items()} == {
        ("f503", False): 2,
        ("f503", True): 1,
        ("f400", True): 1,
    }
    assert by_cause["f503", False]["next"] == "parked replay --fingerprint f503"
    assert by_cause["f503", True]["next"] == "parked discard --fingerprint f503 --reason erased"
    assert by_cause["f503", True]["remedy"].startswith("discard them")
    assert lines[5].startswith("1 job  exhausted:503  overloaded  [f503]  erased  2")


def test_an_orphan_has_no_fingerprint_and_is_chosen_by_its_class(parked, story):
    story.running("lost")
    story.ledger.record(op.Leave(story.ledger.owner_id))

    said = parked("causes")

    assert said.out.startswith("1 job  orphaned:maybe_sent  maybe_sent  [-]")
    assert "next: parked replay --class orphaned:maybe_sent" in said.out


def test_more_causes_than_are_shown_are_said(parked, night):
    said = parked("causes", "--limit", "1")

    assert said.out.count("next:") == 1
    assert said.err == "4 parked jobs, 2 causes; --limit 2 shows all\n"


def test_nothing_parked_is_said(parked, story, url):
    assert parked("causes").err.startswith(f"no parked job in {full_name(url)}")
    assert json.loads(parked("causes", "--json").out)["causes"] == []


@pytest.mark.parametrize(
    ("reason", "with_what"),
    [
        (Reason.PROMPT_BLOCKED, " --payload FILE"),
        (Reason.MODEL_NOT_FOUND, f" --to-model {OTHER_MODEL}"),
        (Reason.AUTH_INVALID, ""),
    ],
)
def test_what_is_to_be_typed_next_does_what_is_to_be_done(parked, story, reason, with_what):
    story.parked("a", error_class="permanent:400", reason=reason, fingerprint="f")

    assert parked("causes").out.splitlines()[-1] == f"  next: parked replay --fingerprint f{with_what}"
