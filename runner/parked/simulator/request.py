"""A call as it reached the simulator."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

# `/v1beta/models/M:method`, and Vertex AI's longer ways to the same: `/v1beta1/projects/…/publishers/google/models/M:…`
_PATH: Final = re.compile(r"/v1\w*/(?:.+/)?(?:models|tunedModels)/([^/:]+):(\w+)")

_LIST: Final = re.compile(r"/v1\w*/(?:.+/)?models")

GENERATE: Final = "generateContent"
STREAM: Final = "streamGenerateContent"
METHODS: Final = (GENERATE, STREAM)
LIST: Final = "models.list"  # no word of a path: the API is asked for its models by GET


@dataclass(frozen=True, slots=True)
class Request:
    model: str  # empty if the path names none
    method: str  # the last word of the path, e.g. `generateContent`, or `models.list`; empty if it is no call
    body: Any  # the decoded JSON; None if it is none
    headers: Mapping[str, str]  # names in any case
    path: str  # with the query
    at: float  # seconds on the monotonic clock, when it had arrived
    at_s: float  # the same since the first request arrived
    text: str  # the text of the prompt: that of all contents, without the system instruction
    call: int  # 1-based: how often this model was asked this prompt so far
    number: int  # 1-based: how many requests there were so far

    @property
    def config(self) -> Mapping[str, Any]:
        """The generation config, in either of the API's two spellings; empty if there is none."""
        body = self.body if isinstance(self.body, Mapping) else {}
        config = body.get("generationConfig", body.get("generation_config"))
        return config if isinstance(config, Mapping) else {}

    @property
    def key(self) -> str:
        """The API key that it came with, in either of the API's two ways; empty if there is none."""
        return self.headers.get("x-goog-api-key") or (parse_qs(urlsplit(self.path).query).get("key") or [""])[0]


def parse_path(path: str) -> tuple[str, str]:
    """Return model and method of a decoded path; both empty if it calls no model."""
    match = _PATH.fullmatch(path)
    return (match[1], match[2]) if match else ("", "")


def lists_models(path: str) -> bool:
    """Whether a GET of this decoded path asks for the models."""
    return _LIST.fullmatch(path) is not None


def prompt_text(body: Any) -> str:
    """Return the text parts of all contents, one a line; whatever has another shape is passed over."""
    contents = body.get("contents") if isinstance(body, dict) else None
    parts = [part for content in _items(contents) if isinstance(content, dict) for part in _items(content.get("parts"))]
    return "\n".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def tokens_of(text: str) -> int:
    """Return roughly what a tokenizer would count."""
    return -(-len(text) // 4)


def _items(value: Any) -> list[Any]:
    """The API takes a lone object where a list is expected."""
    return value if isinstance(value, list) else [value]
