from __future__ import annotations

import json

import pytest

from parked.errors import SettingsError
from parked.simulator.demo import demo_prompts, demo_script
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

    assert (rule.reply, rule.delay_s) == (None, 1.5)


@pytest.mark.parametrize("name", sorted(set(REPLIES) - {"error"}))
def test_every_reply_can_be_named_without_options(name):
    script_of({"reply": name})


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (["overloaded"], "a rule must be an object"),
        ({"wen": {}, "reply": "overloaded"}, "a rule has no 'wen'; it knows when, reply, delay_s"),
        ({"when": {"text": "a"}}, "it says neither what to reply nor by how much to delay"),
        ({"reply": "overload"}, "there is no reply 'overload'; did you mean 'overloaded'?"),
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
    ],
)
def test_a_malformed_rule_is_refused_with_its_number_and_what_is_wrong(rule, complaint):
    with pytest.raises(SettingsError) as caught:
        script_of({"reply": "overloaded"}, rule)

    assert str(caught.value).startswith("rule 2: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("value", [[], {}, {"rules": {}}, {"rules": [], "more": 1}])
def test_a_script_is_an_object_with_rules(value):
    with pytest.raises(SettingsError, match="a script is an object with a list of rules"):
        parse_script(value)


def test_a_script_file_is_named_in_its_errors(tmp_path):
    missing, broken, wrong = tmp_path / "missing.json", tmp_path / "broken.json", tmp_path / "wrong.json"
    broken.write_text('{"rules": [')
    wrong.write_text(json.dumps({"rules": [{"reply": "nothing"}]}))

    for file, complaint in ((missing, "No such file"), (broken, "is not JSON"), (wrong, "rule 1: there is no reply")):
        with pytest.raises(SettingsError) as caught:
            load_script(file)
        assert str(file) in str(caught.value)
        assert complaint in str(caught.value)


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
