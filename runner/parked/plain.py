"""Texts of others (ids, messages) made fit for a terminal, a log and a mail."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return a text as it can be shown: control characters, and those that turn the writing around, as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
