"""What a judgement needs to know of a request, read from a payload in any of its spellings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# REST name -> SDK name
FACTS: Final = {
    "responseMimeType": "response_mime_type",
    "responseModalities": "response_modalities",
    "maxOutputTokens": "max_output_tokens",
    "candidateCount": "candidate_count",
    "temperature": "temperature",
    "automaticContinuation": "automatic_continuation",
    "stream": "stream",
}
_SPELLINGS: Final = frozenset(FACTS) | frozenset(FACTS.values())
_CONFIGS: Final = ("config", "generationConfig", "generation_config")


def request_facts(payload: Any) -> Mapping[str, Any]:
    """Return the facts of `FACTS` that a payload states, by their REST names; nothing where it states none.

    `payload` is the arguments of `generate_content` with its `config`, a REST body with `generationConfig`, or such
    facts themselves; names in camelCase or snake_case.
    """
    facts: dict[str, Any] = {}
    if isinstance(payload, Mapping):
        for source in (payload, *(payload.get(name) for name in _CONFIGS)):
            if isinstance(source, Mapping) and not _SPELLINGS.isdisjoint(source):
                for name, sdk_name in FACTS.items():
                    value = either(source, name, sdk_name)
                    if value is not None:
                        facts[name] = value
    return facts


def either(mapping: Mapping[str, Any], rest_name: str, sdk_name: str) -> Any:
    """Return the value under the REST name, else under the SDK's name, else None."""
    value = mapping.get(rest_name)
    return mapping.get(sdk_name) if value is None else value
