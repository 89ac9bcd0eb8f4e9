"""A model that answers at once: `--call noop:answer`."""

from __future__ import annotations

from typing import Any

PAYLOAD = {"contents": "Describe the picture in one sentence, for a reader who can't see it. " * 3}


async def answer(payload: Any, model: str) -> dict[str, str]:
    return {"text": "A dog sleeps on a red sofa in the afternoon sun."}
