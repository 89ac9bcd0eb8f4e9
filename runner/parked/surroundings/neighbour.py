"""The sidecar, asked over HTTP as Prometheus would ask it, but past any proxy."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Final, NamedTuple

from parked.values import Address

ANSWERED_WITHIN_S: Final = 5.0
ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where to ask a server that listens everywhere


class Seen(NamedTuple):
    address: str
    why_not: str = ""  # nobody answers; empty if somebody does
    is_one: bool = False  # what answers is a sidecar
    ready: bool = False
    reasons: tuple[str, ...] = ()  # why it isn't
    ledger: str | None = None  # the word of the ledger that it reads
    version: str | None = None


def look(listen: Address) -> Seen:
    address = str(listen)
    host = ANY.get(listen.host, listen.host)
    connection = HTTPConnection(host, listen.port, timeout=ANSWERED_WITHIN_S)
    try:
        connection.request("GET", "/-/ready", headers={"Host": "localhost"})
        answer = connection.getresponse()
        state = json.loads(answer.read(1 << 20))
    except TimeoutError:
        return Seen(address, why_not="it doesn't answer in time")
    except OSError as exc:
        return Seen(address, why_not=exc.strerror or type(exc).__name__)
    except (HTTPException, ValueError):
        return Seen(address)
    finally:
        connection.close()
    if not isinstance(state, dict) or "ready" not in state:
        return Seen(address)
    return Seen(
        address,
        is_one=True,
        ready=bool(state["ready"]),
        reasons=tuple(map(str, state.get("reasons") or ())),
        ledger=state.get("ledger"),
        version=state.get("version"),
    )
