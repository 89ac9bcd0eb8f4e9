"""What stands on the pages in docs/: for the tests that run it."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def diffs(page: str) -> dict[str, str]:
    """The diffs of a page, each by the heading that it stands under."""
    found, heading = {}, ""
    for title, diff in re.findall(r"^##+ ([^\n]*)$|^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        heading = title or heading
        if diff:
            assert heading not in found
            found[heading] = diff
    return found


def side(diff: str, sign: str) -> str:
    """One side of a diff: the lines that stand on both, and those with this sign."""
    return "".join(line[1:] or "\n" for line in diff.splitlines(keepends=True) if line[0] in f" \n{sign}")
