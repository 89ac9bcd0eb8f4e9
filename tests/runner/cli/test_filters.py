"""The filters mean the same on every command that takes jobs by them."""

from __future__ import annotations

import json

import pytest

from parked.job import State
from parked.ledger import open_ledger
from parked.ledger import operations as op
from parked.ledger.codec import encode, identity
from parked.verdict import MEANINGS, Reason

# When each job was accepted, parked and (where it is answered) answered, in epoch seconds: 1 h apart.
EARLY, LATE = 1_700_000_000.0, 1_700_003_600.0
BETWEEN = "2023-11-14T22:43:20Z"  # in UTC, half an hour after the first

FILTERS = [
    ([], "abcd"),
    (["--pipeline", "other"], "d"),
    (["--batch", "2026-03-02"], "b"),
    (["--batch", ""], "acd"),
    (["--model", "pro"], "a"),
    (["--class", "permanent:400"], "c"),
    (["--class", "exhausted:*"], "abd"),
    (["--class", "*:503"], "abd"),
    (["--class", "Exhausted:*"], ""),
    (["--class", "exhausted:[5]*"], ""),
    (["--class", "exhausted:?03*"], ""),
    (["--failed-with", "invalid_request"], "c"),
    (["--fingerprint", "f-invalid_request"], "c"),
    (["--job", "a", "--job", "d"], "ad"),
    (["--since", BETWEEN], "cd"),
    (["--until", BETWEEN], "ab"),
    (["--since", BETWEEN, "--until", "2h"], "cd"),
    (["--pipeline", "p", "--class", "exhausted:503", "--until", BETWEEN], "ab"),
    (["--job", "a", "--class", "permanent:*"], ""),
]
REASONED = ["--reason", "why not"]


@pytest.fixture
def url_on_each_database(tmp_path):
    """On one is enough: what is tested here stands above the ledger's reader, whose own suite runs on both."""
    return f"sqlite:///{tmp_path}/parked.db"


class Clock:
    now = EARLY

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def four(url):
    """Returns a function that parks four jobs, two of them an hour later; or has them answered by a replay, too."""

    def make(*, recovered: bool) -> None:
        clock = Clock()
        with open_ledger(url, clock=clock) as ledger:
            for clock.now, job_id, names in (
                (EARLY, "a", {"model": "pro"}),
                (EARLY, "b", {"batch": "2026-03-02"}),
                (LATE, "c", {"error_class": "permanent:400", "reason": Reason.INVALID_REQUEST}),
                (LATE, "d", {"pipeline": "other"}),
            ):
                row = park(ledger, job_id, **names)
                if recovered:
                    replay = ledger.record(op.OpenReplay("r", "me", "{}"))
                    ledger.record(op.Start(row.id, ledger.owner_id, replay))
                    answered = op.Answer(row.id, ledger.owner_id, 2, encode("42"), op.Closing())
                    assert ledger.record(answered).state is State.RECOVERED

    return make


def park(
    ledger, job_id, *, pipeline="p", batch="", model="flash", error_class="exhausted:503", reason=Reason.OVERLOADED
):
    accept = op.Accept(
        pipeline, batch, job_id, model, encode("p"), identity("p"), caller="json:dumps", start_for=ledger.owner_id
    )
    row = ledger.record(accept).row
    closing = op.Closing(MEANINGS[reason].kind, reason, MEANINGS[reason].scope, fingerprint=f"f-{reason}")
    return ledger.record(op.Park(row.id, ledger.owner_id, 1, closing, error_class))


def in_list(said):
    return [job["job_id"] for job in json.loads(said.out)["jobs"]]


def in_sample(said):
    return [job["job_id"] for job in json.loads(said.out)["sample"]]


def in_lines(said):
    return [json.loads(line)["job_id"] for line in said.out.splitlines()]


COMMANDS = {
    "list": ([], in_list, False),
    "replay": ([], in_sample, False),
    "discard": (REASONED, in_sample, False),
    "erase": (REASONED, in_sample, False),
    "answers": ([], in_lines, True),
    "list --state recovered": ([], in_list, True),
    "erase of recovered ones": (REASONED, in_sample, True),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("filters", "found"), FILTERS, ids=lambda value: " ".join(value))
def test_every_filter_works_on_every_command(parked, four, command, filters, found):
    more, ids, recovered = COMMANDS[command]
    four(recovered=recovered)

    said = parked(*command.partition(" of ")[0].split(), *filters, *more, "--json")

    assert said.status == 0
    assert "".join(sorted(ids(said))) == found


@pytest.mark.parametrize(("filters", "found"), FILTERS, ids=lambda value: " ".join(value))
def test_every_filter_works_on_causes(parked, four, filters, found):
    four(recovered=False)

    causes = json.loads(parked("causes", *filters, "--json").out)["causes"]

    assert sum(cause["jobs"] for cause in causes) == len(found)
    assert {cause["fingerprint"] for cause in causes} == {
        "f-invalid_request" if job_id == "c" else "f-overloaded" for job_id in found
    }


@pytest.mark.parametrize("command", ["list", "replay", "answers", "causes"])
def test_where_nothing_else_is_called_reason_it_chooses_by_a_verdicts(parked, four, command):
    four(recovered=command == "answers")

    by_one_name = parked(command, "--reason", "invalid_request", "--json")
    by_the_other = parked(command, "--failed-with", "invalid_request", "--json")

    assert by_one_name == by_the_other
    assert "invalid_request" in by_one_name.out or '"job_id": "c"' in by_one_name.out


def test_since_means_accepted_where_a_job_is_not_parked(parked, url):
    clock = Clock()
    with open_ledger(url, clock=clock) as ledger:
        row = park(ledger, "a")
        clock.now = LATE
        ledger.record(op.Discard(row.id, "r"))

    assert in_list(parked("list", "--state", "discarded", "--since", BETWEEN, "--json")) == []
    assert in_list(parked("list", "--state", "discarded", "--until", BETWEEN, "--json")) == ["a"]


def test_erase_counts_from_when_a_job_was_accepted_whatever_its_state(parked, url):
    clock = Clock()
    with open_ledger(url, clock=clock) as ledger:
        accept = op.Accept("p", "", "a", "m", encode("p"), identity("p"), start_for=ledger.owner_id)
        row = ledger.record(accept).row
        clock.now = LATE
        closing = op.Closing(reason=Reason.OVERLOADED)
        ledger.record(op.Park(row.id, ledger.owner_id, 1, closing, "exhausted:503"))

    assert in_sample(parked("erase", "--until", BETWEEN, *REASONED, "--json")) == ["a"]
    assert in_sample(parked("discard", "--until", BETWEEN, *REASONED, "--json")) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list", "--since", "0s"], "--since must be longer than 0, like 2h, 3d or 2026-03-02T02:00Z, got '0s'"),
        (["replay", "--all", "--canary", "-1"], "must be a whole number from 0, got '-1'"),
    ],
)
def test_a_number_that_can_not_be_is_refused_by_its_own_rule(parked, four, words, says):
    four(recovered=False)

    said = parked(*words)

    assert said.status == 2
    assert says in said.err


NO_NAME = "\udcff"  # how Python reads the byte FF of a command line
NO_NAMES = [
    *(["list", flag, NO_NAME] for flag in ("--pipeline", "--batch", "--model", "--class", "--fingerprint", "--job")),
    ["causes", "--pipeline", NO_NAME],
    ["answers", "--pipeline", NO_NAME],
    ["discard", "--job", NO_NAME, *REASONED],
    ["erase", "--pipeline", NO_NAME, *REASONED],
    ["replay", "--job", NO_NAME],
    ["replay", "--all", "--name", NO_NAME],
    ["show", NO_NAME],
    ["show", "a", "--pipeline", NO_NAME],
    ["restore", "a", "--batch", NO_NAME],
]


@pytest.mark.parametrize("words", NO_NAMES, ids=lambda words: "_".join(words[:-1]))
def test_a_name_that_no_job_can_have_is_refused_as_one(parked, url, words):
    open_ledger(url).close()

    said = parked(*words)

    assert said.status == 2
    assert "U+DCFF" in said.err
