"""Named SQL statements, read from a file: one file a database, the same names in all."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

SQL_FOLDER: Final = Path(__file__).parent / "sql"

_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_REFERENCE: Final = re.compile(r"\{(\w+)\}")
_COMMENT: Final = re.compile(r"--[^\n]*")


@cache
def load(dialect: str) -> dict[str, str]:
    """Return the statements of `sql/<dialect>.sql` by name, comments removed and `{name}` replaced by that text."""
    parts = _NAME.split((SQL_FOLDER / f"{dialect}.sql").read_text("utf-8"))[1:]
    texts = {name: _plain(text) for name, text in zip(parts[::2], parts[1::2], strict=True)}
    return {name: _REFERENCE.sub(lambda found: texts[found[1]], text) for name, text in texts.items()}


def split(script: str) -> list[str]:
    """Return the statements of a script: each ends with a semicolon at the end of a line."""
    return [
        text for part in re.split(r";[ \t]*$", _COMMENT.sub("", script), flags=re.MULTILINE) if (text := part.strip())
    ]


def _plain(text: str) -> str:
    return " ".join(_COMMENT.sub("", text).split()).removesuffix(";").rstrip()
