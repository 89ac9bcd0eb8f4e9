"""One job's course as a list of effects: no clock, no model, no ledger."""

import pytest

from parked.course import Ask, Hold, Raised, Record, Reply, Returned, Rules, Turn, course
from parked.job import State
from parked.judge import judge_answer, judge_exception
from parked.ledger import operations as op
from parked.ledger.codec import decode
from parked.policy import GiveUp, LetGo, Policy, Ruling, decide
from parked.verdict import Disposition, Reason

ME, ANOTHER = 7, 8
PENDING = op.JobRow(
    1, "p", "", "a-1", "m", State.PENDING, None, None, None, None, None, None,
    0, 0, 0, None, 1, "", "", 0.0, None, None, None, None, None, None, None, None, b"", 0,
)  # fmt: skip


def judge(payload, reply):
    if isinstance(reply.outcome, Raised):
        return judge_exception(reply.outcome.error)
    return judge_answer(reply.outcome.value)


def rule(hold, verdict):
    if verdict.ok:
        return None
    then = decide(hold.row.strikes + 1, verdict, policy=Policy(), jitter=0.0, day_left_s=0.0)
    return Ruling(then, strike=True)


def rules(**changed):
    return Rules(judge, has_check=False, rule=rule)._replace(**changed)


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
    assert steps.send(None) == Record(op.Start(1, ME, revision=0))
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
    assert steps.send(running(strikes=1)) == Turn("m", 2.0)
    assert steps.send(None) == Record(op.Start(1, ME, previous=1, revision=0))


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


def test_a_job_that_is_let_go_after_a_failure_is_handed_back_with_what_it_failed_with(hold):
    hold.attempt, hold.row = 1, running(strikes=2)
    steps = course(hold, rules(rule=lambda hold, verdict: Ruling(LetGo(strikes=1), strike=False)))
    next(steps)

    release = steps.send(Reply(Raised(ConnectionResetError()), 0.1)).operation

    assert isinstance(release, op.Release)
    assert (release.to_the_back, release.strikes, release.closing.reason) == (True, 1, Reason.NETWORK)
    assert finished(steps, PENDING).row.state is State.PENDING


@pytest.mark.parametrize(
    ("told", "kind"), [(LetGo(), op.Release), (GiveUp(Disposition.EXHAUSTED), op.Park)], ids=["let go", "given up"]
)
def test_a_job_that_waits_for_its_next_attempt_can_be_told_to_leave(hold, told, kind):
    hold.attempt, hold.row = 1, running()
    steps = course(hold, rules())
    next(steps)
    steps.send(Reply(Raised(ConnectionResetError()), 0.1))
    steps.send(running(strikes=1))

    ending = steps.send(told).operation

    assert isinstance(ending, kind)
    assert finished(steps, PENDING).finished


def test_a_job_that_was_never_started_is_left_as_it_is(hold):
    steps = course(hold, rules())
    next(steps)

    assert finished(steps, LetGo()).row == PENDING


def test_a_claim_that_is_handed_back_before_its_call_says_so(hold):
    hold.attempt, hold.row = 3, running()

    assert hold.release() == op.Release(1, ME, attempt=3, called=False)


def test_a_hold_knows_what_to_hand_back_wherever_its_course_is_ended(hold):
    steps = course(hold, rules())
    next(steps)
    assert hold.release() == op.Release(1, ME, attempt=0, called=False)

    steps.send(None)
    steps.send(op.Started(running(), 3))
    assert hold.release() == op.Release(1, ME, attempt=3)

    steps.close()
    assert not hold.finished
