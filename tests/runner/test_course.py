"""One job's course as a list of effects: no clock, no model, no ledger."""

import pytest

from parked.course import Ask, Hold, Raised, Record, Reply, Returned, Rules, Sleep, Turn, course
from parked.job import State
from parked.judge import judge_answer, judge_exception
from parked.ledger import operations as op
from parked.ledger.codec import decode
from parked.policy import GiveUp, Policy, decide
from parked.verdict import Disposition, Reason

ME, ANOTHER = 7, 8
PENDING = op.JobRow(
    1, "p", "", "a-1", "m", State.PENDING, None, None, None, None, None, None,
    0, 0, 0, None, 1, "", "", 0.0, None, None, None, None, None, None, None, None, b"", 0,
)  # fmt: skip


def rules(**changed):
    given = {
        "judge": lambda payload, reply: (
            judge_exception(reply.outcome.error)
            if isinstance(reply.outcome, Raised)
            else judge_answer(reply.outcome.value)
        ),
        "has_check": False,
        "heed": lambda model, verdict: None,
        "strikes": lambda verdict: True,
        "decide": lambda standing, verdict: decide(standing, verdict, policy=Policy(), jitter=0.0, day_left_s=0.0),
    }
    return Rules(**{**given, **changed})


def running(**changed) -> op.JobRow:
    return PENDING._replace(state=State.RUNNING, owner_id=ME, calls=1)._replace(**changed)


@pytest.fixture
def hold() -> Hold:
    return Hold(PENDING, {"contents": "6*7"}, ME)


def finished(steps, sent) -> Hold:
    with pytest.raises(StopIteration) as end:
        steps.send(sent)
    hold: Hold = end.value.value
    return hold


def test_a_job_waits_for_its_turn_is_started_asked_and_answered(hold):
    steps = course(hold, rules())

    assert next(steps) == Turn("m")
    assert steps.send(None) == Record(op.Start(1, ME))
    assert steps.send(op.Started(running(), 1)) == Ask({"contents": "6*7"}, "m", 1)
    answer = steps.send(Reply(Returned("42"), duration_s=0.5)).operation

    assert (answer.id, answer.owner_id, answer.attempt) == (1, ME, 1)
    assert decode(answer.answer) == "42"
    assert answer.closing.duration_s == 0.5
    ended = finished(steps, running(state=State.SUCCEEDED))
    assert ended.finished
    assert ended.row.state is State.SUCCEEDED


def test_a_job_in_other_hands_is_left_to_them(hold):
    steps = course(hold, rules())
    next(steps)
    steps.send(None)

    ended = finished(steps, op.Held(running(owner_id=ANOTHER)))

    assert ended.row.owner_id == ANOTHER
    assert ended.finished
    assert not ended.called


def test_a_failure_is_recorded_before_its_backoff_and_started_anew_after_it(hold):
    steps = course(hold, rules())
    next(steps)
    steps.send(None)
    steps.send(op.Started(running(), 1))

    retried = steps.send(Reply(Raised(ConnectionResetError()), 0.1)).operation

    assert isinstance(retried, op.Retried)
    assert (retried.strike, retried.wait_s, retried.closing.reason) == (True, 2.0, Reason.NETWORK)
    assert steps.send(running(strikes=1)) == Sleep(2.0)
    assert steps.send(None) == Turn("m")
    assert steps.send(None) == Record(op.Start(1, ME, previous=1))


def test_a_job_that_was_opened_with_its_acceptance_is_asked_at_once(hold):
    hold.attempt, hold.row = 1, running()

    assert next(course(hold, rules())) == Ask({"contents": "6*7"}, "m", 1)


def test_a_job_that_is_given_up_is_parked_with_its_class(hold):
    hold.attempt, hold.row = 4, running(calls=4, strikes=3)
    steps = course(hold, rules())
    next(steps)

    park = steps.send(Reply(Raised(ConnectionResetError()), 0.1)).operation

    assert isinstance(park, op.Park)
    assert park.error_class == "exhausted:network"
    assert finished(steps, running(state=State.PARKED)).row.state is State.PARKED


def test_an_owner_that_lost_the_job_meanwhile_makes_no_further_attempt(hold):
    hold.attempt, hold.row = 1, running()
    steps = course(hold, rules())
    next(steps)
    steps.send(Reply(Raised(ConnectionResetError()), 0.1))

    ended = finished(steps, running(state=State.PARKED, owner_id=None))

    assert ended.row.state is State.PARKED


def test_refusals_are_counted_apart_from_strikes(hold):
    seen = []

    def remember(standing, verdict):
        seen.append((standing.strikes, standing.refusals))
        return GiveUp(Disposition.EXHAUSTED)

    hold.attempt, hold.row = 1, running(strikes=2)
    steps = course(hold, rules(strikes=lambda verdict: False, decide=remember))
    next(steps)
    steps.send(Reply(Raised(ConnectionResetError()), 0.1))

    assert seen == [(2, 1)]


def test_a_hold_knows_what_to_hand_back_wherever_its_course_is_ended(hold):
    steps = course(hold, rules())
    next(steps)
    assert hold.release() == op.Release(1, ME, attempt=0)

    steps.send(None)
    steps.send(op.Started(running(), 3))
    assert hold.release() == op.Release(1, ME, attempt=3)

    steps.close()
    assert not hold.finished
