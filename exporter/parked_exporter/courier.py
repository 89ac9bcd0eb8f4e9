"""A process of its own for one notification, or for a look at addresses: only here is Apprise imported.

Apprise takes 45 MB and half a second, and how long a service's library waits is that library's affair: this process
gives the memory back and can be ended. Addresses hold secrets: they come by standard input, and nothing that Apprise
or what it uses says of them is shown. `python -m parked_exporter.courier` is started by notify.py.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from typing import Any, Final, TypedDict

LIFE_S: Final = 30  # the end of whoever started it does not end it


class Message(TypedDict):
    title: str
    body: str
    good: bool  # whether nothing is wrong; some services show it by a colour


class Errand(TypedDict):
    """What standard input holds. Standard output gets a list with what is wrong with each URL; null: nothing."""

    urls: list[str]
    message: Message | None  # None: only say which URLs Apprise understands


NOT_KNOWN: Final = "it is no address that Apprise knows"
# How its services log what they were told: the one thing of that which quotes nobody.
STATUS: Final = r"\berror=([1-5][0-9]{2})\b"


class Statuses(logging.Handler):
    """Keeps the HTTP status of the last failure, and nothing else of what is logged."""

    last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.search(STATUS, record.getMessage()):
            self.last = found[1]


def run(errand: Errand) -> list[str | None]:
    import apprise

    asset = apprise.AppriseAsset(
        app_id="parked", app_desc="what is parked, and why", app_url="", image_url_mask="", image_url_logo="",
        # A redirect asks for another page, and that this one is there (a form to log in, say) is no sign that anybody
        # was told. `redirect=yes` in a URL follows them.
        http_redirects=False,
    )  # fmt: skip
    return [_deliver(apprise, asset, url, errand["message"]) for url in errand["urls"]]


def _deliver(apprise: Any, asset: Any, url: str, message: Message | None) -> str | None:
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None:
        return NOT_KNOWN
    if message is None:
        return None
    if service.overflow_mode == apprise.OverflowMode.UPSTREAM:
        # The default has a service refuse what is too long for it, today and each time it is tried again.
        service.overflow_mode = apprise.OverflowMode.SPLIT
    out = apprise.Apprise(asset=asset)
    out.add(service)
    logger = logging.getLogger("apprise")
    logger.addHandler(statuses := Statuses())
    try:
        is_sent = out.notify(
            title=message["title"],
            body=message["body"],
            body_format=apprise.NotifyFormat.TEXT,
            notify_type=apprise.NotifyType.SUCCESS if message["good"] else apprise.NotifyType.WARNING,
        )
    finally:
        logger.removeHandler(statuses)
    if is_sent:
        return None
    return "it was not reached" if statuses.last is None else f"HTTP {statuses.last}"


def main() -> None:
    signal.alarm(LIFE_S)
    logging.getLogger().addHandler(logging.NullHandler())  # else what is logged goes to standard error
    answers = run(json.load(sys.stdin))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
