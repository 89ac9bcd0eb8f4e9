from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parked.errors import SettingsError
from parked.simulator.delays import Fixed
from parked.simulator.demo import demo_prompts, demo_script
from parked.simulator.request import Request
from parked.simulator.script import REPLIES, load_script, parse_script


def script_of(*rules):
    return parse_script({"rules": list(rules)})


def test_the_first_rule_that_is_for_a_request_answers_it(simulator, client):
    simulator.answers(script_of({"when": {"text": "harbour"}, "reply": "overloaded"}, {"reply": "server_error"}))

    assert client.ask("a harbour in the fog").status == 503
    assert client.ask("a hill").status == 500


def test_without_a_rule_the_answer_is_the_usual_one(simulator, client):
    simulator.answers(script_of({"when": {"text": "harbour"}, "reply": "overloaded"}))

    assert client.ask("a hill").text == "Simulated answer to: a hill"


def test_rules_can_go_by_pattern_and_model(simulator, client):
    simulator.answers(
        script_of(
            {"when": {"text_matches": "^img-[0-9]+$"}, "reply": "bad_key"},
            {"when": {"model": "gemini-1.0-pro"}, "reply": "model_not_found"},
        )
    )

    assert client.ask("img-17").status == 400
    assert client.ask("img-x").status == 200
    assert client.ask("img-x", path="/v1beta/models/gemini-1.0-pro:generateContent").status == 404


def test_calls_are_counted_for_each_prompt(simulator, client):
    simulator.answers(script_of({"when": {"first": 1}, "reply": "overloaded"}))

    assert [client.ask(prompt).status for prompt in ("a", "b", "a", "b")] == [503, 503, 200, 200]


def test_single_calls_can_be_named(simulator, client):
    simulator.answers(script_of({"when": {"calls": [2, 4]}, "reply": "overloaded"}))

    assert [client.ask("a").status for _ in range(5)] == [200, 503, 200, 503, 200]


def test_every_nth_request_is_counted_over_all_prompts_that_a_rule_is_for(simulator, client):
    simulator.answers(script_of({"when": {"text": "a", "every": 2}, "reply": "overloaded"}))

    assert [client.ask(prompt).status for prompt in ("a1", "b", "a2", "a3", "a4")] == [200, 200, 503, 200, 503]


def test_a_reply_takes_options(simulator, client):
    simulator.answers(script_of({"reply": {"rate_limited": {"retry_delay_s": 2}}}))

    [retry_info] = [d for d in client.ask().json["error"]["details"] if d["@type"].endswith("RetryInfo")]

    assert retry_info["retryDelay"] == "2s"


def test_a_delay_alone_slows_the_usual_answer():
    [rule] = script_of({"delay_s": 1.5}).rules

    assert (rule.reply, rule.delay) == (None, Fixed(1.5))


def request(text="a", *, at_s=0.0, model="gemini-3.5-flash", key="k", path="/"):
    headers = {"x-goog-api-key": key} if key else {}
    return Request(
        model=model, method="generateContent", body={}, headers=headers, path=path,
        at=at_s, at_s=at_s, text=text, call=1, number=1,
    )  # fmt: skip


def statuses(script, *requests):
    return [200 if (reply := script(each)) is None else reply.status for each in requests]


def test_a_rule_can_be_for_a_time():
    script = script_of({"when": {"from_s": 60, "to_s": 660}, "reply": "overloaded"})

    answered = statuses(script, *[request(at_s=at_s) for at_s in (0, 59.9, 60, 659.9, 660)])

    assert answered == [200, 200, 503, 503, 200]


def test_a_rule_can_be_for_a_key_in_either_of_its_places():
    script = script_of({"when": {"key": "stale"}, "reply": "bad_key"})

    answered = statuses(
        script, request(key="stale"), request(key="good"), request(key="", path="/v1/models/m:x?alt=sse&key=stale")
    )

    assert answered == [400, 200, 400]


def test_a_share_of_the_calls_is_drawn_and_the_same_each_time():
    rule = {"when": {"share": 0.25}, "reply": "overloaded"}
    calls = [request() for _ in range(2000)]

    first, again = statuses(script_of(rule), *calls), statuses(script_of(rule), *calls)
    other = statuses(parse_script({"rules": [rule], "seed": 1}), *calls)

    assert first == again
    assert first != other
    assert 400 < first.count(503) < 600


def test_a_share_of_0_is_refused_and_one_of_1_is_all():
    assert statuses(script_of({"when": {"share": 1}, "reply": "overloaded"}), *[request()] * 50) == [503] * 50


@pytest.mark.parametrize(
    ("delay", "median_s", "p95_s"),
    [
        ({"uniform": {"from": 1, "to": 3}}, 2, 2.9),
        ({"lognormal": {"median": 1, "p95": 4}}, 1, 4),
        ({"lognormal": {"median": 2, "p95": 2}}, 2, 2),
    ],
)
def test_delays_are_spread_as_their_distribution_says(delay, median_s, p95_s):
    script = script_of({"delay_s": delay})

    drawn = sorted(script(request()).delay_s for _ in range(4000))

    assert drawn[2000] == pytest.approx(median_s, rel=0.1)
    assert drawn[3800] == pytest.approx(p95_s, rel=0.15)


def test_models_can_be_slow_each_in_its_own_way():
    script = script_of({"when": {"model": "pro"}, "delay_s": 20}, {"delay_s": 1})

    assert [script(request(model=model)).delay_s for model in ("pro", "flash")] == [20, 1]


def test_what_quotas_let_through_is_left_to_the_rules_below_and_what_they_refuse_is_not():
    script = script_of(
        {"when": {"from_s": 10}, "reply": "bad_key"},
        {"quotas": [{"requests": 1, "per": "minute"}], "delay_s": 0.5},
        {"reply": "server_error", "delay_s": 2},
    )

    replies = [script(request(at_s=at_s)) for at_s in (0, 1, 10)]

    assert [(reply.status, reply.delay_s) for reply in replies] == [(500, 2), (429, 0.5), (400, 0)]


@pytest.mark.parametrize("name", sorted(set(REPLIES) - {"error"}))
def test_every_reply_can_be_named_without_options(name):
    script_of({"reply": name})


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (["overloaded"], "a rule must be an object"),
        ({"wen": {}, "reply": "overloaded"}, "a rule has no 'wen'; it knows when, reply, delay_s, quotas"),
        ({"when": {"text": "a"}}, "it says neither what to reply, nor which quotas hold"),
        ({"reply": "overload"}, "there is no reply 'overload'; did you mean 'overloaded'?"),
        ({"reply": "prompt_blocked"}, "there is no reply 'prompt_blocked'; did you mean 'blocked_prompt'?"),
        ({"reply": ["overloaded"]}, "reply must be a name, or an object of one name and its options"),
        ({"reply": {"overloaded": {}, "text": {}}}, "reply must be a name, or an object of one name"),
        ({"reply": {"rate_limited": {"delay": 2}}}, "reply rate_limited has no 'delay'; it knows retry_delay_s"),
        ({"reply": {"rate_limited": {"retry_delay_s": "2s"}}}, "retry_delay_s can't be '2s'"),
        ({"reply": {"rate_limited": {"limit": True}}}, "limit can't be True"),
        ({"reply": {"overloaded": {"now": 1}}}, "reply overloaded has no 'now'; it knows no options"),
        ({"reply": {"error": {"code": 418}}}, "reply error needs status, message"),
        ({"reply": "overloaded", "delay_s": -1}, "delay_s must be a number of seconds from 0 to 3600, got -1"),
        ({"reply": "overloaded", "delay_s": float("nan")}, "delay_s must be a number of seconds"),
        ({"when": {"txt": "a"}, "reply": "overloaded"}, "when has no 'txt'"),
        ({"when": {"text": 7}, "reply": "overloaded"}, "text must be text, got 7"),
        ({"when": {"text_matches": "("}, "reply": "overloaded"}, "text_matches is no regular expression"),
        ({"when": {"first": 0}, "reply": "overloaded"}, "first must be a whole number from 1, got 0"),
        ({"when": {"every": True}, "reply": "overloaded"}, "every must be a whole number from 1, got True"),
        ({"when": {"calls": 1}, "reply": "overloaded"}, "calls must be a list of whole numbers from 1, got 1"),
        ({"when": {"first": 1, "every": 2}, "reply": "overloaded"}, "only one of calls, first and every"),
        ({"when": {"text_matches": "a{99999999999999999999}"}, "reply": "overloaded"}, "no regular expression"),
        ({"when": {"key": 7}, "reply": "bad_key"}, "key must be text, got 7"),
        ({"when": {"from_s": -1}, "reply": "bad_key"}, "from_s must be a number of seconds from 0, got -1"),
        ({"when": {"from_s": 10, "to_s": 10}, "reply": "bad_key"}, "to_s must be later than from_s (10), got 10"),
        ({"when": {"share": 0}, "reply": "bad_key"}, "share must be a number over 0, up to 1, got 0"),
        ({"when": {"share": 2}, "reply": "bad_key"}, "share must be a number over 0, up to 1, got 2"),
        ({"reply": "overloaded", "delay_s": 10**400}, "delay_s must be a number of seconds from 0 to 3600"),
        ({"delay_s": {"normal": {}}}, 'delay_s must be a number of seconds, {"uniform"'),
        ({"delay_s": {"uniform": {"from": 1, "to": "2"}}}, "delay_s: to must be a number of seconds from 0 to 3600"),
        ({"delay_s": {"uniform": {"from": 2, "to": 1}}}, "delay_s: the second number must be at least the first"),
        ({"delay_s": {"lognormal": {"median": 0, "p95": 1}}}, "delay_s: median must be a number of seconds from 0.001"),
        ({"delay_s": {"lognormal": {"median": 1, "p95": 2, "p99": 3}}}, "delay_s must be a number of seconds, {"),
        ({"reply": {"html": {"status": 99}}}, "reply html: 99 is no status of an answer; those are 200 to 599"),
        ({"reply": {"error": {"code": 7000, "status": "X", "message": "y"}}}, "reply error: 7000 is no status"),
        ({"reply": "overloaded", "quotas": [{"requests": 1, "per": "minute"}]}, "it has both a reply and quotas"),
        ({"quotas": {}}, "quotas must be a list such as"),
        ({"quotas": []}, "quotas must be a list such as"),
        ({"quotas": [{"requests": 1, "per": "minute"}, 7]}, "quota 2: a quota must be an object, got 7"),
        ({"quotas": [{"request": 1}]}, "quota 1: a quota has no 'request'; it knows requests, tokens"),
        ({"quotas": [{"per": "minute"}]}, "quota 1: it must have one of requests and tokens"),
        ({"quotas": [{"requests": 1, "tokens": 1}]}, "quota 1: it must have one of requests and tokens"),
        ({"quotas": [{"requests": 0, "per": "minute"}]}, "quota 1: requests must be a whole number from 1"),
        ({"quotas": [{"requests": 1}]}, "quota 1: per must be one of minute, day, got None"),
        ({"quotas": [{"requests": 1, "per": ["day"]}]}, "quota 1: per must be one of minute, day, got ['day']"),
        ({"quotas": [{"requests": 1, "per": "day", "window": "open"}]}, "window must be one of fixed, sliding, bucket"),
        ({"quotas": [{"requests": 1, "per": "day", "holds": 5}]}, "quota 1: holds is nothing for a fixed window"),
        (
            {"quotas": [{"requests": 1, "per": "minute", "window": "sliding", "resets_at_s": 1}]},
            "quota 1: resets_at_s is nothing for a sliding window",
        ),
        (
            {"quotas": [{"requests": 1, "per": "minute", "window": "bucket", "holds": 0}]},
            "holds must be a whole number",
        ),
        ({"quotas": [{"requests": 1, "per": "day", "resets_at_s": "noon"}]}, "resets_at_s must be a number of seconds"),
        ({"quotas": [{"requests": 1, "per": "day", "of": "region"}]}, "of must be one of model, project, got 'region'"),
        ({"quotas": [{"requests": 1, "per": "day", "quota_id": 7}]}, "quota_id must be text, got 7"),
        ({"quotas": [{"requests": 1, "per": "day", "says": "quota"}]}, "says must be a list, got 'quota'"),
        ({"quotas": [{"requests": 1, "per": "day", "says": ["id"]}]}, "says must be one of quota, delay, got 'id'"),
    ],
)
def test_a_malformed_rule_is_refused_with_its_number_and_what_is_wrong(rule, complaint):
    with pytest.raises(SettingsError) as caught:
        script_of({"reply": "overloaded"}, rule)

    assert str(caught.value).startswith("rule 2: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("value", [[], {}, {"rules": {}}])
def test_a_script_is_an_object_with_rules(value):
    with pytest.raises(SettingsError, match="a script is an object with a list of rules"):
        parse_script(value)


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ({"more": 1}, "a script has no 'more'; it knows rules, minute_s, seed"),
        ({"minute_s": 0}, "minute_s must be a number of seconds from 0.01 to 3600, got 0"),
        ({"seed": 1.5}, "seed must be a whole number, got 1.5"),
    ],
)
def test_what_holds_for_a_whole_script_is_checked_too(field, complaint):
    with pytest.raises(SettingsError) as caught:
        parse_script({"rules": [], **field})

    assert str(caught.value) == complaint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "No such file"),
        ('{"rules": [', "is not JSON"),
        ('{"rules": ' + "[" * 100_000, "is not JSON"),
        ('{"rules": [{"reply": "nothing"}]}', "rule 1: there is no reply"),
        ('{"rules": [{"reply": "hang", "reply": "text"}]}', "'reply' stands twice in one object"),
    ],
    ids=["missing", "broken", "nested", "wrong", "twice"],
)
def test_a_script_file_is_named_in_its_errors(tmp_path, text, complaint):
    file = tmp_path / "script.json"
    if text is not None:
        file.write_text(text)

    with pytest.raises(SettingsError) as caught:
        load_script(file)

    assert str(file) in str(caught.value)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_demo_parks_three_jobs_in_25_and_a_replay_recovers_two_of_them(simulator, client):
    prompts = list(demo_prompts(25))

    def answered(prompt: str) -> bool:
        """Whether one of four calls brings a text; the API's own trouble passes meanwhile."""
        for _ in range(4):
            try:
                answer = client.ask(prompt)
            except ConnectionError:
                continue
            if answer.status == 200 and "text" in str(answer.json.get("candidates", "")):
                return True
        return False

    simulator.answers(demo_script())
    parked = [prompt for prompt in prompts if not answered(prompt)]
    simulator.answers(demo_script(mended=True))
    still_parked = [prompt for prompt in parked if not answered(prompt)]

    assert len(parked) == 3
    assert ["wound" in prompt for prompt in still_parked] == [True]


# --- whatever a script holds --------------------------------------------------------------------------------------

WHOLE = {
    "minute_s": 2,
    "seed": 1,
    "rules": [
        {"when": {"text": "a", "text_matches": "b", "model": "m", "key": "k", "calls": [1, 2]}, "reply": "overloaded"},
        {"when": {"from_s": 1, "to_s": 2, "share": 0.5, "first": 1}, "reply": {"rate_limited": {"retry_delay_s": 2}}},
        {"when": {"every": 2}, "reply": {"error": {"code": 418, "status": "TEAPOT", "message": "x", "details": []}}},
        {"quotas": [{"requests": 1, "per": "minute", "of": "project", "quota_id": "x", "says": ["quota"]}]},
        {"quotas": [{"tokens": 1, "per": "day", "window": "bucket", "holds": 3}], "delay_s": 1},
        {"quotas": [{"requests": 1, "per": "day", "resets_at_s": 5}], "delay_s": {"uniform": {"from": 1, "to": 2}}},
        {"delay_s": {"lognormal": {"median": 1, "p95": 2}}},
        {"reply": {"stopped": {"finish_reason": "SAFETY", "text": None}}},
        {"reply": {"html": {"status": 502}}},
    ],
}


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


def replaced_at(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced_at(value[path[0]], path[1:], new)
    return copy


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def test_the_script_that_is_changed_below_is_whole():
    assert len(parse_script(WHOLE).rules) == 9


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(list(places(WHOLE))), ANYTHING)
def test_a_script_is_taken_and_answers_or_is_refused_in_a_sentence(place, value):
    refusal = None
    try:
        script = parse_script(replaced_at(WHOLE, place, value))
    except SettingsError as exc:
        refusal = str(exc)
    if refusal is not None:
        assert "\n" not in refusal
        assert len(place) < 2 or place[0] != "rules" or refusal.startswith(f"rule {place[1] + 1}: ")
        return
    for at_s in (0.0, 1.5, 2.5):
        reply = script(request("ab", at_s=at_s, model="m"))
        if reply is not None and not isinstance(reply.body, bytes):
            json.dumps(reply.rendered(request()))
