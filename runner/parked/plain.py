"""Texts of others (ids, messages), numbers and flags, made fit for a terminal, a log and a mail."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return a text as it can be shown: control characters, and those that turn the writing around, as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def number_text(number: float) -> str:
    """`0.15`, `33`, `1643`: three digits, from 100 on the whole number; never with an exponent."""
    if abs(number) >= 100:
        return f"{number:.0f}"
    return f"{float(f'{number:.3g}'):f}".rstrip("0").rstrip(".")


def flag(name: str, value: str) -> list[str]:
    """Return a flag with its value as words; a value that looks like a flag stays with its name."""
    return [f"{name}={value}"] if value.startswith("-") else [name, value]
