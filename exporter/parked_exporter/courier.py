"""A process of its own for one notification, or for a look at addresses: only here is Apprise imported.

Apprise takes 45 MB and half a second, and how long a service's library waits is that library's affair: this process
gives the memory back and can be ended. Addresses hold secrets: they come by standard input, and nothing that Apprise
or what it uses says of them is shown. `python -m parked_exporter.courier` is started by notify.py.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import Any, Final, TypedDict

LIFE_S: Final = 30  # the end of whoever started it does not end it


class Message(TypedDict):
    title: str
    body: str
    good: bool  # whether nothing is wrong; some services show it by a colour


class Errand(TypedDict):
    """What standard input holds. Standard output gets a list of true and false, one for each URL."""

    urls: list[str]
    message: Message | None  # None: only say which URLs Apprise understands


def run(errand: Errand) -> list[bool]:
    import apprise

    asset = apprise.AppriseAsset(
        app_id="parked", app_desc="what is parked, and why", app_url="", image_url_mask="", image_url_logo="",
        # A redirect asks for another page, and that this one is there (a form to log in, say) is no sign that anybody
        # was told. `redirect=yes` in a URL follows them.
        http_redirects=False,
    )  # fmt: skip
    return [_deliver(apprise, asset, url, errand["message"]) for url in errand["urls"]]


def _deliver(apprise: Any, asset: Any, url: str, message: Message | None) -> bool:
    service = apprise.Apprise.instantiate(url, asset=asset)
    if service is None or message is None:
        return service is not None
    if service.overflow_mode == apprise.OverflowMode.UPSTREAM:
        # The default has a service refuse what is too long for it, today and each time it is tried again.
        service.overflow_mode = apprise.OverflowMode.SPLIT
    out = apprise.Apprise(asset=asset)
    out.add(service)
    return bool(
        out.notify(
            title=message["title"],
            body=message["body"],
            body_format=apprise.NotifyFormat.TEXT,
            notify_type=apprise.NotifyType.SUCCESS if message["good"] else apprise.NotifyType.WARNING,
        )
    )


def main() -> None:
    signal.alarm(LIFE_S)
    logging.disable(logging.CRITICAL)
    answers = run(json.load(sys.stdin))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
