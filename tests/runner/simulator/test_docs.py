"""The examples of docs/simulator.md, each run as it stands: the reason in its heading is the one that parked finds."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from google import genai

from parked.gemini import Gemini
from parked.judge import judge_answer, judge_exception
from parked.simulator.record import Call
from parked.simulator.replies import usual
from parked.simulator.request import GENERATE, LIST, Request
from parked.simulator.script import QUOTA_FIELDS, REPLIES, RULE_FIELDS, SCRIPT_FIELDS, WHEN_FIELDS, parse_script

PAGE = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]
FAILURES = re.findall(r"^### `(\w+)`\n.*?^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


TIMED = PAGE[PAGE.index("## Quotas") : PAGE.index("## What was called")]
[EVERY_QUOTA, SHORT_MINUTE, DAY, PER_DAY_THAT_WAS_A_MINUTE, CUT, OUTAGE, BROWNOUT, KEYS, RETIRED, SLOW] = [
    json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", TIMED, re.DOTALL | re.MULTILINE)
]


def request_at(at_s, *, text="a harbour", model="gemini-3.5-flash", key="k", method=GENERATE):
    return Request(
        model=model, method=method, body={} if method == GENERATE else None, headers={"x-goog-api-key": key}, path="/",
        at=at_s, at_s=at_s, text=text, call=1, number=1,
    )  # fmt: skip


def asked(script, at_s, **given):
    """Ask at that time, in seconds since the first request; the usual answer is a whole one."""
    request = request_at(at_s, **given)
    return script(request) or usual(request)


def statuses(example, times, **request):
    script = parse_script(example)
    return [asked(script, at_s, **request).status for at_s in times]


def judged(simulator, rule):
    """Ask what the rule waits for through the SDK, for JSON where that matters, and judge what comes."""
    asks_for_json = rule["reply"] == "broken_json"
    payload = {
        "contents": [{"parts": [{"text": f"Tell me of a {rule['when']['text']}."}]}],
        "generationConfig": {"responseMimeType": "application/json"} if asks_for_json else {},
    }
    timeout_s = 0.2 if rule["reply"] == "hang" else 10.0
    with genai.Client(api_key="simulated", http_options={"base_url": simulator.url}) as client:
        try:
            answer = Gemini(client, timeout_s=timeout_s)(payload, "gemini-3.5-flash")
        except Exception as exc:  # noqa: BLE001 - an outcome like any other
            return judge_exception(exc)
        return judge_answer(answer, request=payload)


@pytest.mark.parametrize(("reason", "example"), FAILURES, ids=[reason for reason, _ in FAILURES])
def test_every_example_fails_for_the_reason_in_its_heading(simulator, reason, example):
    script = json.loads(example)
    simulator.answers(parse_script(script))

    assert [judged(simulator, rule).verdict.reason for rule in script["rules"]] == [reason] * len(script["rules"])


def test_the_whole_answers_are_successes(simulator):
    script = next(example for example in EXAMPLES if "function_call" in str(example))
    simulator.answers(parse_script(script))

    assert all(judged(simulator, rule).verdict.ok for rule in script["rules"])


def test_the_first_example_is_a_script():
    assert len(parse_script(EXAMPLES[0]).rules) == 5


def test_the_example_of_all_quotas_lets_fifteen_through_a_minute_and_250_tokens_at_once():
    assert statuses(EVERY_QUOTA, range(17), text="x" * 40) == [200] * 15 + [429] * 2
    assert statuses(EVERY_QUOTA, [0, 0, 12], text="x" * 800) == [200, 429, 200]
    assert statuses(EVERY_QUOTA, [5.0 * n for n in range(1502)], text="x").index(429) == 1500


def test_the_example_of_a_short_minute_is_over_after_two_seconds():
    assert statuses(SHORT_MINUTE, [0, 0.5, 1, 1.5, 2]) == [200, 200, 200, 429, 200]


def test_the_example_of_a_day_that_is_over_begins_anew_after_ten_minutes():
    assert statuses(DAY, [0.1 * n for n in range(701)] + [599, 600]) == [200] * 700 + [429, 429, 200]


def test_the_example_of_a_per_day_that_was_a_minutes_says_day_and_lets_through_after_a_minute(simulator):
    at_s = [0.1 * n for n in range(101)] + [60.0]
    script = parse_script(PER_DAY_THAT_WAS_A_MINUTE)
    replies = [asked(script, each) for each in at_s]
    simulator.will_answer(replies[100])

    assert [reply.status for reply in replies] == [200] * 100 + [429, 200]
    assert judged(simulator, {"when": {"text": "a"}, "reply": ""}).verdict.reason == "daily_quota_exhausted"


def test_the_example_of_a_quota_that_is_cut_lets_half_as_much_through():
    script = parse_script(CUT)
    replies = [asked(script, 0.2 * n) for n in range(900)]

    through = [sum(reply.status == 200 for reply in replies[first : first + 300]) for first in (0, 300, 600)]

    assert through == [200, 200, 100]
    assert {reply.delay_s for reply in replies if reply.status == 429} == {1}


def test_the_example_of_an_outage_lasts_ten_minutes():
    assert statuses(OUTAGE, [0, 59, 60, 659, 660]) == [200, 200, 503, 503, 200]


def test_the_example_of_half_an_outage_fails_half_of_the_calls_for_half_an_hour():
    during, after = statuses(BROWNOUT, range(1800)), statuses(BROWNOUT, range(1800, 3600))

    assert 800 < during.count(503) < 1000
    assert after.count(503) == 0


def test_the_example_of_keys_revokes_one_and_never_takes_the_other():
    assert statuses(KEYS, [0, 29, 30]) == [200, 200, 400]
    assert statuses(KEYS, [0], key="stale") == [400]


def test_the_example_of_a_retired_model_leaves_the_other_alone():
    assert statuses(RETIRED, [29, 30], model="gemini-2.5-flash") == [200, 404]
    assert statuses(RETIRED, [30]) == [200]


def test_the_example_of_slow_answers_gives_each_model_its_own():
    script = parse_script(SLOW)

    pro = sorted(asked(script, 0, model="gemini-3.5-pro").delay_s for _ in range(1000))
    others = [asked(script, 0).delay_s for _ in range(1000)]

    assert 7 < pro[500] < 9
    assert 30 < pro[950] < 50
    assert 0.5 <= min(others) < max(others) <= 2


@pytest.mark.parametrize("field", [*SCRIPT_FIELDS, *RULE_FIELDS, *WHEN_FIELDS, *QUOTA_FIELDS])
def test_every_field_of_a_script_is_on_the_page(field):
    assert f"`{field}`" in PAGE


def test_the_line_of_a_record_has_the_fields_of_a_record():
    [line] = re.findall(r'^    (\{"number".*)$', PAGE, re.MULTILINE)

    assert list(json.loads(line)) == [field.name for field in fields(Call)]


@pytest.mark.parametrize("name", REPLIES)
def test_every_reply_is_on_the_page(name):
    assert re.search(rf'"{name}"|`{name}`', PAGE)


@pytest.mark.parametrize("example", [e for e in EXAMPLES if "rules" in e], ids=lambda example: str(example)[:60])
def test_whoever_asks_for_the_models_gets_them_or_an_error_of_the_script_with_every_example(example):
    request = request_at(0.0, text="", model="", method=LIST)

    reply = parse_script(example)(request) or usual(request)

    assert reply.status != 200 or "models" in reply.rendered(request)
