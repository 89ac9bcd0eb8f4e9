"""A JSON Schema as the check of an answer: `parked run --schema FILE`.

Where more than one candidate was asked for, each has to pass. What is wrong is told as a place and the rule that is
broken there; the answer itself is not quoted. The schema is kept in the ledger under a name made from its hash, so that
a replay has it on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parked.answers import is_response, texts_of
from parked.errors import SettingsError
from parked.ledger.codec import identity

if TYPE_CHECKING:
    from parked.ledger import Ledger

PREFIX: Final = "schema:"
TOO_DEEP: Final = "the answer is nested too deeply to be held against the schema"
_HASH_CHARS: Final = 16
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_RULE_CHARS: Final = 120
# What applies to the same value as the schema that holds it: one schema, a list of them, or one for each property.
_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE_BY_PROPERTY: Final = ("dependentSchemas", "dependencies")


class SchemaCheck:
    """A check (see `Check`) that holds the text of an answer against a JSON Schema.

    Raises:
        SettingsError: `schema` is no JSON Schema, refers to something that is not in it (nothing is fetched), or to
            itself in a circle, so that it could judge nothing.
    """

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self._validator = _validator(schema)
        self.name: Final = f"{PREFIX}{identity(schema).hex()[:_HASH_CHARS]}"  # how a job remembers it

    def __call__(self, answer: Any) -> str | None:
        """Return what is wrong with an answer, None if nothing is. An own caller's JSON value counts as it is."""
        if isinstance(answer, str):
            return self._wrong_with_text(answer)
        if not isinstance(answer, Mapping) or not is_response(answer):
            return self._wrong_with(answer)
        texts = texts_of(answer) or [None]
        for number, text in enumerate(texts, start=1):
            why = self._wrong_with_text(text)
            if why is not None:
                return f"of candidate {number} {why}" if len(texts) > 1 else why
        return None

    def _wrong_with_text(self, text: str | None) -> str | None:
        if text is None:
            return "the answer has no text for the schema to hold against"
        try:
            value = json.loads(text, parse_constant=_refuse)
        except ValueError as exc:
            return f"the text of the answer is no JSON: {exc}"
        except RecursionError:
            return TOO_DEEP
        return self._wrong_with(value)

    def _wrong_with(self, value: Any) -> str | None:
        from jsonschema.exceptions import best_match

        try:
            broken = best_match(self._validator.iter_errors(value))
        except RecursionError:
            return TOO_DEEP
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
    """Refuse a reference that leads nowhere, or back to where it stands, now rather than at every answer.

    Raises:
        SettingsError: names it.
    """
    from jsonschema_specifications import REGISTRY
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import specification_with

    specification = specification_with(kind.ID_OF(kind.META_SCHEMA))
    resource = specification.create_resource(schema)
    at = REGISTRY.with_resource("", resource).resolver_with_root(resource)
    waiting = [(resource, at)]
    # Which schemas apply to the same value as a schema, by identity; and the reference that names it, if one does.
    same_value: dict[int, list[tuple[int, str]]] = {}
    while waiting:
        resource, at = waiting.pop()
        contents = resource.contents
        if not isinstance(contents, Mapping) or id(contents) in same_value:
            continue
        leads_to = same_value[id(contents)] = [(id(sub), "") for sub in _in_place(contents)]
        for name in sorted(_REFERENCES & contents.keys()):
            try:
                found = at.lookup(contents[name])
            except Unresolvable:
                raise SettingsError(f"its {name} {contents[name]!r} leads to nothing; nothing is fetched") from None
            leads_to.append((id(found.contents), f"{name} {contents[name]!r}"))
            waiting.append((specification.create_resource(found.contents), found.resolver))
        waiting += [(sub, at.in_subresource(sub)) for sub in resource.subresources()]
    _refuse_circles(same_value)


def _in_place(contents: Mapping[str, Any]) -> Iterator[Any]:
    yield from (contents[name] for name in _IN_PLACE if name in contents)
    for name in _IN_PLACE_LISTS:
        several = contents.get(name)
        yield from several if isinstance(several, list) else ()
    for name in _IN_PLACE_BY_PROPERTY:
        by_property = contents.get(name)
        yield from by_property.values() if isinstance(by_property, Mapping) else ()


def _refuse_circles(same_value: Mapping[int, list[tuple[int, str]]]) -> None:
    """Refuse a schema that applies itself to the same value again and again. `same_value`: as in `_resolve_all`."""
    done: set[int] = set()
    for start in same_value:
        way = {start: ""}  # the schemas that lead here, each with the reference that led to it
        waiting = [iter(same_value[start])]
        while waiting:
            schema, reference = next(waiting[-1], (None, ""))
            if schema is None:
                waiting.pop()
                done.add(way.popitem()[0])
            elif schema in way:
                led = [*list(way.values())[list(way).index(schema) + 1 :], reference]
                circle = [reference for reference in led if reference]
                first = circle.index(min(circle))  # where it was entered is a matter of chance
                said = ", ".join(circle[first:] + circle[:first])
                raise SettingsError(
                    f"its {said} leads back to itself on the same value, so that it could judge nothing"
                )
            elif schema in same_value and schema not in done:
                way[schema] = reference
                waiting.append(iter(same_value[schema]))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not in JSON")
