"""The examples of docs/simulator.md, each run as it stands: the reason in its heading is the one that parked finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from google import genai

from parked.gemini import Gemini
from parked.judge import judge_answer, judge_exception
from parked.simulator.script import REPLIES, parse_script

PAGE = (Path(__file__).parents[3] / "docs" / "simulator.md").read_text(encoding="utf-8")
EXAMPLES = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)]
FAILURES = re.findall(r"^### `(\w+)`\n.*?^```json\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


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


@pytest.mark.parametrize("name", REPLIES)
def test_every_reply_is_on_the_page(name):
    assert re.search(rf'"{name}"|`{name}`', PAGE)
