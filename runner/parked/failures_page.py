"""The page `docs/failures.md`, made from the tables by `python -m parked.failures_page`. A test compares them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from parked import rules
from parked.carried import CLIENT_PACKAGES, RETELLERS
from parked.rulebook import TABLES, evidence_text, what_parked_does
from parked.verdict import MEANINGS

_INTRODUCTION = """\
# What a failure means

<!-- Made by `python -m parked.failures_page`; a test compares. Change runner/parked/verdict.py or rules.py instead. -->

A failure has a **reason**. The reason fixes its **kind**: `retryable` (the same request may succeed later),
`permanent` (it can't until somebody changes input, configuration or code) or `unknown` (no evidence). The **scope**
says whose fault it is: this job's, the model's, or the whole project's. `rate_limited`, `daily_quota_exhausted` and
`no_quota` have the scope `project` where the limit that the API names is not per model.

What parked does is told of a run of many jobs, where others show whose fault it is. A job that runs alone
(`Runner.run`) has nobody to ask: it waits for what the server names, and is parked where a run would pause. Jobs that a
pause leaves are pending ([Quotas, outages and pauses](operating.md#quotas-outages-and-pauses)). After twenty different
jobs in a row that fail alike, whatever the reason, some others are tried, and where these do so too, the model pauses.

## Reasons
"""

_RULES = """\
## Rules

The first row that holds decides, and its name is the `rule` of the verdict. In the tables, text is a regular expression
that is searched in any letter case in the first {chars} characters of the message, without what stands in quotes.

An exception that carries the error of a server is judged by that error: one of google-genai, google.api_core and gRPC,
an HTTP error of httpx, requests, aiohttp and urllib, and any with a status of {packages}. Where
gRPC got no token ("Getting metadata from plugin failed"), it is judged like `google.auth.RefreshError`. An exception
with which an older SDK of Google stands for a blocked or stopped answer is judged by the reason that it names. What
these say of an error in their own text is used where nothing else in the chain of causes says anything: {retellers}.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield from _table(
        ("reason", "kind", "scope", "meaning", "what parked does", "what an operator does"),
        (
            (f"`{reason}`", m.kind, m.scope, m.meaning, what_parked_does(reason), m.remedy)
            for reason, m in MEANINGS.items()
        ),
    )
    yield _RULES.format(
        chars=rules.TEXT_CHARS,
        packages=", ".join(f"`{name}`" for name in CLIENT_PACKAGES),
        retellers=", ".join(f"`{name}`" for name in RETELLERS),
    )
    for title, table in TABLES:
        yield f"### {title}\n"
        yield from _table(
            ("rule", "evidence", "reason", "source"),
            ((f"`{rule.name}`", evidence_text(rule), f"`{rule.reason}`", f"<{rule.source}>") for rule in table),
        )


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(page())
