"""An answer held against a JSON Schema: what passes, what is said of what doesn't, and which schemas are refused."""

from __future__ import annotations

import json
import re

import pytest

import parked
from parked.check import CheckerName
from parked.errors import SettingsError
from parked.named import checker_named
from parked.schema import SchemaCheck, keep, read_schema

INVOICE = {
    "type": "object",
    "properties": {"lines": {"type": "array", "items": {"$ref": "#/$defs/line"}}},
    "required": ["lines"],
    "$defs": {
        "line": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]},
    },
}


def answer(text: str) -> dict:
    return {"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]}


@pytest.mark.parametrize("value", [{"lines": []}, {"lines": [{"sku": "A-1", "more": 1}]}])
def test_an_answer_that_keeps_to_the_schema_passes(value):
    check = SchemaCheck(INVOICE)

    assert check(answer(json.dumps(value))) is None
    assert check(json.dumps(value)) is None  # of a caller of one's own
    assert check(value) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"lines": [{"sku": "A"}, {"sku": 4711}]}', '$.lines[1].sku by the rule type: "string"'),
        ('{"lines": [{}]}', '$.lines[0] by the rule required: ["sku"]'),
        ("[]", '$ by the rule type: "object"'),
        ("Here you are: {}", "no JSON: Expecting value: line 1 column 1"),
        ('{"lines": NaN}', "no JSON: NaN is not in JSON"),
    ],
)
def test_what_is_wrong_is_told_as_place_and_rule(text, said):
    assert said in (SchemaCheck(INVOICE)(answer(text)) or "")


def test_what_is_wrong_quotes_nothing_of_the_answer():
    said = SchemaCheck({"type": "object", "properties": {"a": {"const": 1}}})(answer('{"a": "a secret of Ada"}'))

    assert said == "the answer breaks the schema at $.a by the rule const: 1"


def test_an_answer_without_text_fails():
    call = {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f"}}]}, "finishReason": "STOP"}]}

    assert "no text" in (SchemaCheck(INVOICE)(call) or "")


def test_a_long_rule_is_cut():
    said = SchemaCheck({"enum": ["x" * 50] * 50})(answer("1"))

    assert said is not None
    assert len(said) < 220
    assert said.endswith("…")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ([], "must be an object, got list"),
        ({"type": "OBJECT"}, "at $.type"),
        ({"properties": {"a": {"pattern": "("}}}, "at $.properties.a.pattern"),
        ({"properties": {"a": {"$ref": "#/$defs/gone"}}}, "'#/$defs/gone' leads to nothing"),
        ({"$ref": "https://example.com/schema.json"}, "nothing is fetched"),
        ({"$dynamicRef": "#gone"}, "'#gone' leads to nothing"),
        ({"$schema": "https://example.com/dialect"}, "$schema 'https://example.com/dialect'"),
        ({"$schema": 7}, "$schema 7"),
        ({"$ref": "#"}, "its $ref '#' leads back to itself on the same value"),
        ({"anyOf": [{"type": "string"}, {"$ref": "#"}]}, "its $ref '#' leads back to itself"),
        ({"if": {"type": "object"}, "then": {"not": {"$ref": "#"}}}, "its $ref '#' leads back to itself"),
        (
            {
                "properties": {"x": {"$ref": "#/$defs/a"}},
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
            },
            "its $ref '#/$defs/a', $ref '#/$defs/b' leads back to itself",
        ),
        ({"dependentSchemas": {"a": {"$ref": "#"}}}, "its $ref '#' leads back to itself"),
        ({"$ref": "#/mine/a", "mine": {"a": {"$ref": "#/mine/a"}}}, "its $ref '#/mine/a' leads back to itself"),
    ],
    ids=str,
)
def test_a_schema_that_could_not_judge_is_refused_at_once(schema, why):
    with pytest.raises(SettingsError, match=re.escape(why)):
        SchemaCheck(schema)


def test_a_schema_may_refer_to_itself_for_what_is_inside_a_value():
    tree = {"type": "object", "properties": {"of": {"items": {"anyOf": [{"$ref": "#"}]}}}}
    check = SchemaCheck({**tree, "allOf": [{"$ref": "#/$defs/leaf"}], "$defs": {"leaf": {"minProperties": 1}}})

    assert check(answer('{"of": [{"of": [{"a": 1}]}]}')) is None
    assert "$.of[0].of[0] by the rule minProperties" in (check(answer('{"of": [{"of": [{}]}]}')) or "")


def test_of_several_candidates_each_has_to_pass():
    whole, broken = answer('{"lines": []}')["candidates"], answer('{"lines": 3}')["candidates"]
    check = SchemaCheck(INVOICE)

    assert check({"candidates": whole * 2}) is None
    assert (check({"candidates": whole + broken}) or "").startswith(
        "of candidate 2 the answer breaks the schema at $.l"
    )
    assert "of candidate 2 the answer has no text" in (check({"candidates": [*whole, {"finishReason": "STOP"}]}) or "")


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 900 + "]" * 900], ids=["to be parsed", "to be judged"])
def test_an_answer_that_is_nested_too_deeply_is_called_that(text):
    check = SchemaCheck({"items": {"$ref": "#"}})

    assert check(answer(text)) == "the answer is nested too deeply to be held against the schema"


def test_older_dialects_are_read_by_their_own_rules():
    draft_4 = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}

    assert SchemaCheck(draft_4)(answer("3")) is not None
    assert SchemaCheck(draft_4)(answer("4")) is None
    assert SchemaCheck({**draft_4, "dependentSchemas": 3})(answer("4")) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "can't be read"),
        (b"{", "is no JSON:"),
        (b"[" * 100_000, "nested too deeply"),
        (b"3", "is no JSON Schema"),
    ],
    ids=["missing", "cut", "deep", "a number"],
)
def test_a_file_that_holds_no_schema_is_named(tmp_path, content, why):
    path = tmp_path / "schema.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SettingsError, match=why) as refused:
        read_schema(str(path))

    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", CheckerName()),
        ("mine.checks:check", CheckerName("mine.checks:check")),
        ("schema:0123456789abcdef,allow_truncated", CheckerName("schema:0123456789abcdef", allow_truncated=True)),
        ("allow_truncated", CheckerName(allow_truncated=True)),
    ],
)
def test_the_name_of_a_checker_is_read_as_it_was_written(text, name):
    assert CheckerName.parse(text) == name
    assert str(name) == text


def test_a_schema_is_found_again_in_the_ledger(ledger):
    check = SchemaCheck(INVOICE)
    keep(ledger, check)
    keep(ledger, check)

    with ledger.ask() as reader:
        found = checker_named(f"{check.name},allow_truncated", mark=reader.mark)
        with pytest.raises(SettingsError, match="doesn't hold the schema:ffffffffffffffff"):
            checker_named("schema:ffffffffffffffff", mark=reader.mark)

    assert isinstance(found.check, SchemaCheck)
    assert found.check.schema == INVOICE
    assert found.allow_truncated
    assert SchemaCheck(json.loads(json.dumps(INVOICE))).name == check.name


def test_an_answer_that_breaks_the_schema_is_asked_for_again_and_parked(ledger, scripted, clock, attempts):
    runner = parked.Runner(ledger, scripted(*["[]"] * 4), clock=clock, check=SchemaCheck(INVOICE))

    outcome = runner.run(parked.Job("a-1", model="m", payload="p"))

    assert outcome.error_class == "exhausted:malformed_answer"
    assert {attempt.rule for attempt in attempts("a-1")} == {"value.rejected"}
    assert attempts("a-1")[0].message == 'the answer breaks the schema at $ by the rule type: "object"'
