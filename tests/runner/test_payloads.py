"""What goes into a ledger comes out as it went in, or is refused when it is handed in: bodies, names, messages."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
import random
from collections import OrderedDict
from enum import StrEnum
from http import HTTPStatus
from types import SimpleNamespace

import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import parked
from parked.job import MAX_KEY_BYTES, MAX_NAME_CHARS, State
from parked.ledger import codec
from parked.ledger.codec import MAX_DEPTH
from parked.ledger.store import Filters

PAIR = "\ud83d\ude00"  # two surrogates; JSON has no way to tell them from one emoji
TWENTY_MB = 20_000_000
INT_DIGITS = 4_300  # Python's own limit

texts = st.text(st.characters(exclude_categories=()))
numbers = st.integers() | st.integers(-(10**400), 10**400) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
names = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=MAX_KEY_BYTES // 4 // 4)
numbered = itertools.count()  # examples of one test share a ledger
on_one_ledger = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def ledger_url(url_on_each_database):
    return url_on_each_database


@pytest.fixture
def echo(ledger):
    """Returns a function that runs a job whose answer is its payload, and gives its outcome."""
    runner = parked.Runner(ledger, lambda payload, model: {"answer": payload})

    def run(payload, job_id):
        return runner.run(parked.Job(job_id, "m", payload))

    return run


def stored_payload(ledger, job_id):
    with ledger.ask() as reader:
        (row,) = reader.jobs_by_key(job_id, pipeline=None, batch=None)
        return codec.decode(reader.payload(row.id))


def jobs_in(ledger):
    with ledger.ask() as reader:
        return reader.count(Filters(), states=list(State))


def same(one, other):
    """Equal also in what `==` doesn't see: 1 is not True, and -0.0 not 0.0."""
    return repr(one) == repr(other)


def nested(levels, innermost=1):
    value = innermost
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


def comes_back(ledger, echo, payload, job_id):
    outcome = echo(payload, job_id)
    again = echo(payload, job_id)
    assert outcome.state is State.SUCCEEDED
    assert same(stored_payload(ledger, job_id), payload)
    assert same(again.answer, {"answer": payload})


@on_one_ledger
@given(payload=values)
def test_a_json_value_comes_back_as_it_went_in_or_is_refused_for_its_surrogates(ledger, echo, payload):
    job_id = f"a-{next(numbered)}"
    if same(json.loads(json.dumps(payload)), payload):
        comes_back(ledger, echo, payload, job_id)
    else:
        with pytest.raises(parked.InvalidJob, match="surrogates"):
            echo(payload, job_id)


@pytest.mark.parametrize(
    "payload",
    [
        None, "", [], {}, 0, False, {"": ""}, [[], [{}]],
        "a\0b", {"\0": "\0"}, "\ud800", "low \udfff before high \ud800", {"\udc80": 1},
        "😀👩‍👩‍👧 \U0010ffff", "\u2028\x7f\x85",
        2**63, -(2**63) - 1, 2**64, 10**30, 10 ** (INT_DIGITS - 1),
        -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 0.1 + 0.2, 1e16, 1e22, 123456789.123456789,
        nested(MAX_DEPTH - 1),
    ],
    ids=lambda payload: type(payload).__name__,
)  # fmt: skip
def test_a_payload_and_an_answer_at_the_edge_come_back(ledger, echo, payload):
    comes_back(ledger, echo, payload, "a-1")


def test_twenty_megabytes_come_back_among_small_ones(ledger):
    big = {"contents": "\0x😀" * (TWENTY_MB // 12)}
    payloads = {f"a-{n}": big if n == 5 else n for n in range(12)}
    runner = parked.Runner(ledger, lambda payload, model: {"answer": payload})

    outcomes = list(runner.run_many([parked.Job(id, "m", payload) for id, payload in payloads.items()]))

    assert len(codec.encode(big).data) > TWENTY_MB
    assert {outcome.job_id: outcome.answer["answer"] for outcome in outcomes} == payloads
    assert stored_payload(ledger, "a-5") == big


def circle():
    value: list = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (math.nan, "not JSON compliant"),
        ([math.inf], "not JSON compliant"),
        ({"a": {1: 2}}, "the key 1 is not text"),
        ({True: 1}, "the key True is not text"),
        (b"bytes", "bytes"),
        ({1, 2}, "set"),
        (circle(), "Circular"),
        (nested(MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH} levels"),
        (nested(100_000), f"nested deeper than {MAX_DEPTH} levels"),
        (10**INT_DIGITS, "4300 digits"),
        (PAIR, r"U\+D83D U\+DE00"),
        ([{"k": f"a{PAIR}b"}], r"U\+D83D U\+DE00"),
        ({PAIR: 1}, r"U\+D83D U\+DE00"),
    ],
    ids=lambda value: ascii(value) if isinstance(value, str) else type(value).__name__,
)
def test_a_payload_that_would_not_come_back_is_refused_and_nothing_taken_on(ledger, echo, payload, said):
    with pytest.raises(parked.InvalidJob, match=said):
        echo(payload, "a-1")

    assert jobs_in(ledger) == 0


def test_a_payload_can_be_read_from_deep_inside_a_program(ledger, echo):
    echo(nested(MAX_DEPTH), "a-1")

    def deeper(levels):
        return deeper(levels - 1) if levels else stored_payload(ledger, "a-1")

    assert same(deeper(300), nested(MAX_DEPTH))


DEEP = 100_000  # more than `str` goes through on any Python: since 3.13 some 9,000 levels
DEEP_TEXT = '[{"k": ' * (DEEP // 2) + r'"\u0000"' + "}]" * (DEEP // 2)


class Shy:
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ({"score": math.nan}, "{'score': nan}"),
        ({1: "one"}, "{1: 'one'}"),
        (b"\0\xff", r"b'\x00\xff'"),
        (10**INT_DIGITS, "<int>"),
        ({"k": PAIR}, {"k": "😀"}),
        (Shy(), "<Shy>"),
        (SimpleNamespace(to_dict=lambda: {"a": PAIR}), {"a": "😀"}),
        (nested(DEEP, "\0"), DEEP_TEXT),
        ([nested(DEEP, math.nan), circle()], None),
    ],
    ids=["nan", "keys", "bytes", "digits", "pair", "shy", "object", "deep", "deep and worse"],
)
def test_an_answer_that_json_cant_hold_is_kept_as_text(ledger, answer, kept):
    runner = parked.Runner(ledger, lambda payload, model: answer)

    first = runner.run(parked.Job("a-1", "m", 1))
    again = runner.run(parked.Job("a-1", "m", 1))

    assert (first.state, again.state) == (State.SUCCEEDED, State.SUCCEEDED)
    assert again.answer == kept if kept is not None else "NaN" in again.answer
    assert (first.answer, first.text) == (again.answer, again.text)


class Label(pydantic.BaseModel):
    name: str = "cat"


class Pet(StrEnum):
    CAT = "cat"


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Seen:
    at: str = "noon"


@pytest.mark.parametrize("way", ["alone", "many"])
@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (Label(), {"name": "cat"}),
        ([Label()], "[Label(name='cat')]"),
        (Seen(), "Seen(at='noon')"),
        ({"on": datetime.date(2026, 3, 2)}, "{'on': datetime.date(2026, 3, 2)}"),
        ({"a": {1}}, "{'a': {1}}"),
        (("a", 1), ["a", 1]),
        ({"pair": [("a", 1)]}, {"pair": [["a", 1]]}),
        (Pet.CAT, "cat"),
        ([Pet.CAT], ["cat"]),
        ({Pet.CAT: 1}, {"cat": 1}),
        (OrderedDict(a=1), {"a": 1}),
        ([Text("a")], ["a"]),
        ([HTTPStatus.OK], [200]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_outcome_gives_the_answer_as_the_ledger_has_it_the_first_time_too(ledger, way, answer, kept):
    runner, job = parked.Runner(ledger, lambda payload, model: answer), parked.Job("a-1", "m", 1)

    (first,) = [runner.run(job)] if way == "alone" else runner.run_many([job])
    again = runner.run(job)

    assert same(first.answer, kept)
    assert same(again.answer, kept)
    assert first.text == again.text


def test_an_answer_that_is_json_already_is_not_made_anew(ledger):
    answer = {"labels": ["cat", "Übermut"], "score": 0.5}

    assert parked.Runner(ledger, lambda payload, model: answer).run(parked.Job("a-1", "m", 1)).answer is answer


@on_one_ledger
@given(job_id=names, pipeline=names, batch=names, model=names)
def test_names_come_back_as_they_went_in(ledger, job_id, pipeline, batch, model):
    batch = f"{next(numbered)}{batch}"
    runner = parked.Runner(ledger, lambda payload, model: "42", pipeline=pipeline, batch=batch)

    assert runner.run(parked.Job(job_id, model, 1)).state is State.SUCCEEDED

    with ledger.ask() as reader:
        (row,) = reader.jobs_by_key(job_id, pipeline=pipeline, batch=batch)
    assert (row.job_id, row.pipeline, row.batch, row.model) == (job_id, pipeline, batch, model)


def astral(characters, seed):
    """Text that no database compresses, of four bytes each."""
    random_numbers = random.Random(seed)
    return "".join(chr(random_numbers.randrange(0x20000, 0x2A6D0)) for _ in range(characters))


@pytest.mark.parametrize(
    ("job_id", "pipeline", "batch", "model"),
    [
        (512, 137, 1, 511),  # 2,600 bytes of the job's key
        (137, 512, 1, 1),
        (137, 1, 512, 1),
        (1, 137, 1, 512),  # 2,600 bytes of what it waits under
    ],
)
def test_the_longest_names_fit_into_every_ledger(ledger, attempts, states, job_id, pipeline, batch, model):
    def fails(payload, model):
        raise ConnectionResetError

    fails.__qualname__ = "f"
    fails.__module__ = "m"
    runner = parked.Runner(
        ledger,
        fails,
        pipeline=astral(pipeline, 1),
        batch=astral(batch, 2),
        policy=parked.Policy(max_attempts=1),
    )

    outcome = runner.run(parked.Job(astral(job_id, 3), astral(model, 4), 1))

    assert outcome.state is State.PARKED
    assert states() == {State.PARKED: 1}


@pytest.mark.parametrize("names", [{"batch": astral(140, 2)}, {"pipeline": astral(512, 1)}], ids=["batch", "pipeline"])
def test_names_that_no_index_holds_together_are_refused_and_nothing_taken_on(ledger, names):
    runner = parked.Runner(ledger, lambda payload, model: "42", **names)

    with pytest.raises(parked.InvalidJob, match=f"bytes together; at most {MAX_KEY_BYTES}"):
        runner.run(parked.Job(astral(512, 3), astral(512, 4), 1))

    assert jobs_in(ledger) == 0


BAD_NAMES = ("x" * 513, "a\0b", "a\nb", "a\x7fb", "a\x85b", "\ud800", PAIR, 5, None, b"a")
FIELDS = ("job_id", "model", "pipeline", "batch")


@pytest.mark.parametrize(
    ("field", "bad"),
    [*itertools.product(FIELDS, BAD_NAMES), *((field, "") for field in FIELDS if field != "batch")],
    ids=lambda value: ascii(value)[:20],
)
def test_a_name_that_is_none_is_refused(ledger, field, bad):
    given = {"job_id": "a-1", "model": "m", "pipeline": "p", "batch": "b"} | {field: bad}

    with pytest.raises(parked.InvalidJob, match=field):
        parked.Runner(ledger, lambda payload, model: "42", pipeline=given["pipeline"], batch=given["batch"]).run(
            parked.Job(given["job_id"], given["model"], 1)
        )

    assert jobs_in(ledger) == 0


@pytest.mark.parametrize("bad", ["a\0b", "\ud800", "x" * 600], ids=ascii)
def test_a_caller_or_a_check_without_a_usable_name_is_refused_when_the_runner_is_made(ledger, bad):
    def named(*given):
        return None

    named.__qualname__ = bad

    with pytest.raises(parked.InvalidJob, match="name of call_model"):
        parked.Runner(ledger, named)
    with pytest.raises(parked.InvalidJob, match="name of the check"):
        parked.Runner(ledger, lambda payload, model: 1, check=named)


@on_one_ledger
@given(text=texts, note=texts)
def test_what_an_exception_says_parks_its_job_whatever_it_says(ledger, text, note):
    job_id = f"a-{next(numbered)}"

    def call(payload, model):
        error = ValueError(text)
        error.add_note(note)
        raise error

    outcome = parked.Runner(ledger, call, policy=parked.Policy(max_attempts=1)).run(parked.Job(job_id, "m", 1))

    assert outcome.error_class == "exhausted:unclassified"
    with ledger.ask() as reader:
        (row,) = reader.jobs_by_key(job_id, pipeline=None, batch=None)
        (attempt,) = reader.attempts(row.id)
    assert attempt.message.startswith("ValueError")
    assert attempt.fingerprint


HUGE = 10**30
FOREIGN = "a\0b\ud800"


def error_body(code=429, status="RESOURCE_EXHAUSTED", message=FOREIGN, delay=None):
    details = [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": FOREIGN}]},
    ]
    return {"error": {"code": code, "status": status, "message": message, "details": details}}


@pytest.mark.parametrize(
    "outcome",
    [
        error_body(HUGE), error_body(-5), error_body(429.5), error_body(math.inf), error_body(FOREIGN),
        error_body(400, status=FOREIGN), error_body(message="\0" * TWENTY_MB),
        error_body(delay="1e999s"), error_body(delay="9" * 400 + "s"), error_body(delay="nans"),
        error_body(delay=math.inf), error_body(delay=FOREIGN),
        parked.ApiError(HUGE, FOREIGN), parked.ApiError(-1, FOREIGN),
        ValueError("\ud800\0" * TWENTY_MB),
        {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": FOREIGN * 50}]},
        {"promptFeedback": {"blockReason": FOREIGN, "blockReasonMessage": FOREIGN}},
    ],
    ids=lambda outcome: type(outcome).__name__,
)  # fmt: skip
def test_a_failure_with_absurd_facts_parks_its_job_and_keeps_its_message(
    ledger, scripted, clock, attempts, states, outcome
):
    runner = parked.Runner(ledger, scripted(*[outcome] * 8), clock=clock, policy=parked.Policy(max_attempts=1))

    assert runner.run(parked.Job("a-1", "m", 1)).state is State.PARKED

    assert states() == {State.PARKED: 1}
    assert attempts("a-1")[-1].message
    assert attempts("a-1")[-1].fingerprint


@pytest.mark.parametrize("response_id", [FOREIGN, "r" * 5_000_000], ids=["foreign", "long"])
def test_an_answer_with_an_absurd_response_id_keeps_its_other_facts(ledger, scripted, attempts, response_id):
    answer = {
        "candidates": [{"content": {"parts": [{"text": FOREIGN}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": math.inf},
        "responseId": response_id,
    }
    runner = parked.Runner(ledger, scripted(answer))

    assert runner.run(parked.Job("a-1", "m", 1)).state is State.SUCCEEDED

    (attempt,) = attempts("a-1")
    assert (attempt.tokens_in, attempt.tokens_out) == (7, None)
    assert len(attempt.response_id) <= MAX_NAME_CHARS


@pytest.mark.parametrize("error_class", [FOREIGN, "", "x" * 600, 5], ids=ascii)
def test_the_articles_park_refuses_a_class_that_is_no_name(tmp_path, monkeypatch, error_class):
    monkeypatch.setenv("PARKED_LEDGER", f"sqlite:///{tmp_path}/article.db")

    with pytest.raises(parked.InvalidJob, match="error_class"):
        parked.park("a-1", {"q": 1}, "m", error_class, FOREIGN, 4)


@pytest.mark.parametrize("tries", [-1, HUGE, "4", None])
def test_the_articles_park_refuses_a_number_of_attempts_that_is_none(tmp_path, monkeypatch, tries):
    monkeypatch.setenv("PARKED_LEDGER", f"sqlite:///{tmp_path}/article.db")

    with pytest.raises(parked.InvalidJob, match="attempts"):
        parked.park("a-1", {"q": 1}, "m", "exhausted:503", FOREIGN, tries)
