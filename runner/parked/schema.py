"""A JSON Schema as the check of an answer: `parked run --schema FILE`.

What is wrong is told as a place and the rule that is broken there; the answer itself is not quoted. The schema is kept
in the ledger under a name made from its hash, so that a replay has it on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parked.answers import RESPONSE_KEYS, text_of
from parked.errors import SettingsError
from parked.ledger.codec import identity

if TYPE_CHECKING:
    from parked.ledger import Ledger

PREFIX: Final = "schema:"
_HASH_CHARS: Final = 16
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_RULE_CHARS: Final = 120


class SchemaCheck:
    """A check (see `Check`) that holds the text of an answer against a JSON Schema.

    Raises:
        SettingsError: `schema` is no JSON Schema, or refers to something that is not in it; nothing is fetched.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._validator = _validator(schema)
        self.name: Final = f"{PREFIX}{identity(schema).hex()[:_HASH_CHARS]}"  # how a job remembers it

    def __call__(self, answer: Any) -> str | None:
        """Return what is wrong with an answer, None if nothing is. An own caller's JSON value counts as it is."""
        from jsonschema.exceptions import best_match

        value = answer
        text = text_of(answer)
        if text is not None:
            try:
                value = json.loads(text, parse_constant=_refuse)
            except ValueError as exc:
                return f"the text of the answer is no JSON: {exc}"
        elif isinstance(answer, Mapping) and not RESPONSE_KEYS.isdisjoint(answer):
            return "the answer has no text for the schema to hold against"
        broken = best_match(self._validator.iter_errors(value))
        if broken is None:
            return None
        rule = json.dumps(broken.validator_value)
        if len(rule) > _RULE_CHARS:
            rule = f"{rule[: _RULE_CHARS - 1]}…"
        return f"the answer breaks the schema at {broken.json_path} by the rule {broken.validator}: {rule}"


def read_schema(path: str) -> SchemaCheck:
    """Read a schema file.

    Raises:
        SettingsError: it can't be read, is no JSON, or no JSON Schema; the message names the file.
    """
    try:
        schema = json.loads(Path(path).read_bytes(), parse_constant=_refuse)
    except OSError as exc:
        raise SettingsError(f"the schema {path} can't be read: {exc.strerror}") from None
    except (ValueError, RecursionError) as exc:
        why = "nested too deeply" if isinstance(exc, RecursionError) else exc
        raise SettingsError(f"the schema {path} is no JSON: {why}") from None
    try:
        return SchemaCheck(schema)
    except SettingsError as exc:
        raise SettingsError(f"{path} is no JSON Schema: {exc}") from None


def keep(ledger: Ledger, check: SchemaCheck) -> None:
    """Keep the schema in the ledger, for the replay of the jobs that it checks."""
    from parked.ledger.operations import SetMark

    with ledger.ask() as reader:
        known = reader.mark(check.name)
    if known != check.schema:
        ledger.record(SetMark(check.name, check.schema))


def _validator(schema: Any) -> Any:
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for
    from jsonschema_specifications import REGISTRY

    if not isinstance(schema, dict):
        raise SettingsError(f"a schema must be an object, got {type(schema).__name__}")
    dialect = schema.get("$schema")
    kind = Draft202012Validator if dialect is None else None
    if isinstance(dialect, str):
        kind = validator_for(schema, default=None)
    if kind is None:
        raise SettingsError(f"its $schema {dialect!r} is none that is known here")
    try:
        kind.check_schema(schema)
        _resolve_all(schema, kind)
    except SchemaError as exc:
        raise SettingsError(f"at {exc.json_path}: {exc.message}") from None
    except RecursionError:
        raise SettingsError("nested too deeply") from None
    # With a registry of its own the validator fetches nothing.
    return kind(schema, registry=REGISTRY)


def _resolve_all(schema: Mapping[str, Any], kind: Any) -> None:
    """Refuse a reference that leads nowhere now, rather than at every answer.

    Raises:
        SettingsError: names it.
    """
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    resource = specification_with(kind.ID_OF(kind.META_SCHEMA)).create_resource(schema)
    at = REGISTRY.with_resource("", resource).resolver_with_root(resource)
    waiting = [(resource, at)]
    while waiting:
        resource, at = waiting.pop()
        contents = resource.contents if isinstance(resource.contents, Mapping) else {}
        for name in _REFERENCES & contents.keys():
            try:
                at.lookup(contents[name])
            except Unresolvable:
                raise SettingsError(f"its {name} {contents[name]!r} leads to nothing; nothing is fetched") from None
        waiting += [(sub, at.in_subresource(sub)) for sub in resource.subresources()]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not in JSON")
