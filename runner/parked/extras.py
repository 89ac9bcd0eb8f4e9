"""What is installed with `parked[…]`, and how."""

from __future__ import annotations


def install(extra: str = "") -> str:
    """What to type, and where, to have an extra; without one: what parked itself needs."""
    return f"pip install '.[{extra}]' in a checkout of parked" if extra else "pip install . in a checkout of parked"
