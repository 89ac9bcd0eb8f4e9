"""Whether the container in which this runs is well: what the image's HEALTHCHECK asks, `python -m` this module.

Either program may be the container's. A sidecar is asked. Any other command is well as long as it lives, which it does
while the container does; whether its jobs get on is what the sidecar shows. Not asked is whether the ledger answers
(`/-/ready`): a sidecar that waits for it isn't mended by a restart.
"""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path, PurePath
from typing import Final

from parked.settings import Address, SidecarSettings, variable
from parked_exporter.command import PROGRAM, parser

TIMEOUT_S: Final = 4.0  # below that of HEALTHCHECK, so that the reason is told
REACHED_AT: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # who listens on every address does so on this one


def listens_at(words: Sequence[str], env: Mapping[str, str]) -> Address | None:
    """Where the sidecar listens that was started by this command line, after an init's own words or not; else None."""
    names = [PurePath(word).name for word in words]
    if PROGRAM not in names:
        return None
    arguments = parser().parse_args(words[names.index(PROGRAM) + 1 :])
    name = variable("listen")
    listen = SidecarSettings.load({"listen": arguments.listen}, {name: env[name]} if name in env else {}).listen
    return Address(REACHED_AT.get(listen.host, listen.host), listen.port)


def why_unwell(listen: Address) -> str | None:
    """Ask the sidecar there; None if it is well."""
    connection = http.client.HTTPConnection(listen.host, listen.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/-/healthy")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as exc:
        return str(exc) or type(exc).__name__
    finally:
        connection.close()
    return None if status == HTTPStatus.OK else f"it answers {status}"


def main() -> int:
    """Return 0 if the container is well, 1 if it isn't; Docker keeps the sentence (`docker inspect`)."""
    first_process = Path("/proc/1/cmdline").read_text("utf-8", "surrogateescape")
    listen = listens_at(first_process.rstrip("\0").split("\0"), os.environ)
    if listen is None:
        return _say("no sidecar runs here; the command of the container lives", 0)
    if (why := why_unwell(listen)) is not None:
        return _say(f"the sidecar at {listen} doesn't answer as it should: {why}", 1)
    return _say(f"the sidecar at {listen} answers", 0)


def _say(sentence: str, status: int) -> int:
    print(sentence, file=sys.stderr)  # noqa: T201 - what `docker inspect` shows
    return status


if __name__ == "__main__":
    raise SystemExit(main())
