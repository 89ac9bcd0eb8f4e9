"""The sidecar's HTTP interface, as a WSGI application: a table of pages, and the checks that come before them.

`/metrics` and the probes carry no job data and are open; every other page needs the bearer token.
"""

from __future__ import annotations

import gzip
import hmac
import html
import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from prometheus_client.exposition import choose_encoder, gzip_accepted

from parked.errors import InvalidJob, LedgerUnavailable, SettingsError
from parked.ledger.vault import PLAIN_VAULT, Vault
from parked.version import __version__
from parked_exporter import api
from parked_exporter.collector import Collector, Lookout, OwnFacts

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

# Of the time that Prometheus says it gives a scrape: the rest is for the answer's way.
ANSWERED_IN: Final = 0.8
# A shorter time than this nobody gives a scrape: what says so is no Prometheus, and would only be answered falsely.
LEAST_TIMEOUT_S: Final = 0.1
NO_HOST: Final = frozenset("/?#@\\")  # what parts of a URL begin with that come before or after a host
WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # every address of this machine


class Tasks(Protocol):
    """What the pages show of the schedule."""

    @property
    def running(self) -> bool: ...
    @property
    def writable(self) -> bool | None: ...
    @property
    def unwritable(self) -> str | None: ...
    @property
    def failures(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class Access:
    """By which names this server may be called, and the token for what is not open."""

    names: frozenset[str]  # of hosts, in lower case and without a port
    by_any_address: bool  # it listens on every address of this machine, so each of them is its name
    token: str | None

    @classmethod
    def at(cls, *hosts: str, external_url: str | None, token: str | None) -> Access:
        """`hosts` are the listen address as it was given, and as it is bound."""
        names = {"localhost", *map(str.lower, hosts)}
        if external_url is not None and (external := urlsplit(external_url).hostname):
            names.add(external)
        return cls(frozenset(names), not WILDCARDS.isdisjoint(hosts), token)

    def knows(self, host_header: str) -> bool:
        """Whether a Host header names this server.

        A web page can make a browser send requests here under a name of its own (DNS rebinding), and would then read
        the answers; it can't do so under our names, nor under a bare address.
        """
        if not NO_HOST.isdisjoint(host_header):
            return False
        try:
            name = urlsplit(f"//{host_header}").hostname
        except ValueError:
            return False
        return name is not None and (name in self.names or (self.by_any_address and _is_address(name)))


class Response(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class App:
    """The WSGI application. `tasks` is None in a sidecar that only reads."""

    ledger_url: str
    lookout: Lookout
    tasks: Tasks | None
    access: Access
    vault: Vault = PLAIN_VAULT  # what reads messages
    messages: bool = False  # whether summaries tell them
    ending: Event = field(default_factory=Event)  # set once the sidecar is only there for the last scrapes

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        response = self.respond(environ)
        start_response(
            f"{response.status.value} {response.status.phrase}",
            [
                ("Content-Type", response.content_type),
                ("Content-Length", str(len(response.body))),
                ("Cache-Control", "no-store"),
                ("X-Content-Type-Options", "nosniff"),
                *response.headers,
            ],
        )
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [response.body]

    def respond(self, environ: WSGIEnvironment) -> Response:
        if not self.access.knows(environ.get("HTTP_HOST", "")):
            return _text(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this server does not go by that Host; call it by its listen address, or set PARKED_EXTERNAL_URL",
            )
        path = environ.get("PATH_INFO", "")
        is_open = path in OPEN_PAGES
        if not is_open and path not in GUARDED_PAGES and not path.startswith("/api/"):
            return _text(HTTPStatus.NOT_FOUND, "no such page; there are /metrics, /-/healthy, /-/ready and /")
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _text(
                HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD: this server only shows", ("Allow", "GET, HEAD")
            )
        if not is_open and (refusal := self._refusal(environ)) is not None:
            return refusal
        page = OPEN_PAGES.get(path) or GUARDED_PAGES.get(path)
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, f"no such page; there are {', '.join(GUARDED_PAGES)}")
        return page(self, environ)

    def _refusal(self, environ: WSGIEnvironment) -> Response | None:
        if self.access.token is None:
            return _text(HTTPStatus.FORBIDDEN, "this page shows job data; set PARKED_TOKEN for the sidecar to open it")
        scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        # Compared in constant time: how long a refusal takes must not tell how much of the token was right.
        is_right = hmac.compare_digest(token.strip().encode("latin-1", "replace"), self.access.token.encode())
        if scheme.lower() == "bearer" and is_right:
            return None
        return _text(
            HTTPStatus.UNAUTHORIZED,
            "this page needs the header Authorization: Bearer, with the token of PARKED_TOKEN",
            ("WWW-Authenticate", 'Bearer realm="parked"'),
        )


# --- the pages ---------------------------------------------------------------------------------------------------


def _metrics(app: App, environ: WSGIEnvironment) -> Response:
    own = OwnFacts(
        version=__version__,
        writable=app.tasks.writable if app.tasks is not None else None,
        task_failures=dict(app.tasks.failures) if app.tasks is not None else {},
    )
    try:
        encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
    except (TypeError, ValueError):  # a version that is none; whoever asks so gets the plain format
        encode, content_type = choose_encoder("")
    within_s = ANSWERED_IN * _seconds(environ.get("HTTP_X_PROMETHEUS_SCRAPE_TIMEOUT_SECONDS", ""))
    body = encode(Collector(app.lookout.find(within_s=within_s), own))
    if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
        # Level 1 takes an eighth of the time of the best, for a third more bytes.
        return Response(HTTPStatus.OK, gzip.compress(body, 1), content_type, (("Content-Encoding", "gzip"),))
    return Response(HTTPStatus.OK, body, content_type)


def _healthy(app: App, environ: WSGIEnvironment) -> Response:
    return _text(HTTPStatus.OK, "alive")


def _ready(app: App, environ: WSGIEnvironment) -> Response:
    found = app.lookout.find()
    reasons = [found.why] if found.readings is None else []
    if app.tasks is not None and not app.tasks.running:
        reasons.append("the scheduler does not run")
    if found.readings is not None and app.tasks is not None and app.tasks.unwritable is not None:
        reasons.append(f"the tasks can't write: {app.tasks.unwritable}")
    if app.ending.is_set():
        reasons.append("the sidecar was told to end, and is there for the last scrapes only")
    state = {
        "ready": not reasons,
        "reasons": reasons,
        "ledger": found.readings.ledger if found.readings is not None else None,
        "read_only": app.tasks is None,
        "version": __version__,
        "leases": dict(found.readings.leases) if found.readings is not None else {},
    }
    return _json(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, state)


def _landing(app: App, environ: WSGIEnvironment) -> Response:
    links = "".join(f'<li><a href="{html.escape(path)}">{html.escape(path)}</a></li>' for path in PATHS if path != "/")
    body = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>parked</title>'
        f"<h1>parked {html.escape(__version__)}</h1>"
        f"<p>The sidecar of a ledger of Gemini jobs.</p><ul>{links}</ul></html>\n"
    )
    return Response(
        HTTPStatus.OK, body.encode(), "text/html; charset=utf-8", (("Content-Security-Policy", "default-src 'none'"),)
    )


def _api(page: api.Page, app: App, environ: WSGIEnvironment) -> Response:
    try:
        return _json(
            HTTPStatus.OK,
            api.answer(
                page, environ.get("QUERY_STRING", ""), ledger_url=app.ledger_url, vault=app.vault, messages=app.messages
            ),
        )
    except LedgerUnavailable as exc:
        return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": str(exc)})
    except (SettingsError, InvalidJob) as exc:
        return _json(HTTPStatus.BAD_REQUEST, {"error": str(exc)})
    except api.Busy:
        busy = f"{api.AT_ONCE} questions are being answered, and no more are at once; ask again in a moment"
        return _json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": busy}, ("Retry-After", "1"))


Page = Callable[[App, "WSGIEnvironment"], Response]

OPEN_PAGES: Final[dict[str, Page]] = {"/metrics": _metrics, "/-/healthy": _healthy, "/-/ready": _ready}
GUARDED_PAGES: Final[dict[str, Page]] = {
    "/": _landing,
    **{path: partial(_api, page) for path, page in api.PAGES.items()},
}
PATHS: Final = (*OPEN_PAGES, *GUARDED_PAGES)


def _seconds(text: str) -> float:
    """What a header says; for ever if it isn't there, or says nothing that makes sense."""
    try:
        seconds = float(text)
    except ValueError:
        return float("inf")
    return seconds if seconds >= LEAST_TIMEOUT_S else float("inf")


def _text(status: HTTPStatus, sentence: str, *headers: tuple[str, str]) -> Response:
    return Response(status, f"{sentence}\n".encode(), headers=headers)


def _json(status: HTTPStatus, value: Any, *headers: tuple[str, str]) -> Response:
    return Response(status, json.dumps(value).encode() + b"\n", "application/json; charset=utf-8", headers)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
