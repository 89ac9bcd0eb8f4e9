"""Which proxy stands between this machine and the API, and whether it can be reached."""

from __future__ import annotations

import logging
import os
import socket
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from parked.errors import SettingsError

API: Final = "https://generativelanguage.googleapis.com"
REACHED_WITHIN_S: Final = 2.0
LOOPBACK: Final = ("127.0.0.1", "localhost")
# What both of the SDK's HTTP clients understand. aiohttp goes past a proxy that is spoken to by TLS, and takes none
# that is written without a scheme, though others read it as this one.
SCHEMES: Final = frozenset({"http"})
PORTS: Final = {"http": 80}

_log = logging.getLogger("parked")


class Proxy(NamedTuple):
    """A proxy as a variable names it, without its user and password."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


class Seen(NamedTuple):
    api: str  # the host that is called
    proxy: Proxy | None  # through which
    why_not: str  # it can't be reached; empty if it can, or wasn't tried
    loopback_behind: str  # what of this machine is asked for through a proxy; empty if nothing


def api_url() -> str:
    """The address of the API as the SDK takes it from its variables; Vertex AI's own isn't told apart."""
    return os.environ.get("GOOGLE_GEMINI_BASE_URL") or API


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy that a request of this URL goes through.

    Raises:
        SettingsError: the variable that names it can't be read; its value isn't told, since it may hold a password.
    """
    parts = urlsplit(url)
    proxies = getproxies()
    named = next((name for name in (parts.scheme, "all") if proxies.get(name)), None)
    if named is None or proxy_bypass(parts.hostname or ""):
        return None
    variable = f"{named.upper()}_PROXY"
    value = proxies[named]
    try:
        proxy = urlsplit(value)
        port = proxy.port or PORTS.get(proxy.scheme)
    except ValueError:
        proxy, port = urlsplit(""), None
    if proxy.scheme not in SCHEMES or not proxy.hostname or port is None:
        raise SettingsError(
            f"{variable} names no proxy that can be used for the API; write it like http://proxy.example.com:3128, or"
            f" name {parts.hostname} in NO_PROXY"
        )
    return Proxy(proxy.scheme, proxy.hostname, port)


def look(*, connects: bool) -> Seen:
    """See what is between; with `connects`, also whether somebody listens there.

    Raises:
        SettingsError: the variable that names it can't be read.
    """
    proxy = proxy_for(api_url())
    why_not = why_unreachable(proxy) if proxy is not None and connects else ""
    host = urlsplit(api_url()).hostname or ""
    behind = next((name for name in LOOPBACK if getproxies().get("http") and not proxy_bypass(name)), "")
    return Seen(host, proxy, why_not, behind)


def check() -> None:
    """For who is about to call: refuse a proxy that none could use, and warn of one that doesn't answer.

    Raises:
        SettingsError: the variable that names it can't be read.
    """
    proxy = proxy_for(api_url())
    if proxy is not None and (why := why_unreachable(proxy)):
        _log.warning("proxy_unreachable: %s", sentence(proxy, why))


def why_unreachable(proxy: Proxy) -> str:
    """Return why nobody takes a connection there; empty if somebody does."""
    try:
        socket.create_connection((proxy.host, proxy.port), REACHED_WITHIN_S).close()
    except TimeoutError:
        return "it doesn't answer"
    except OSError as exc:
        return exc.strerror or type(exc).__name__
    return ""


def sentence(proxy: Proxy, why: str) -> str:
    return f"calls go through the proxy {proxy}, which can't be reached ({why}); {remedy(urlsplit(api_url()).hostname)}"


def remedy(host: str | None) -> str:
    return f"start it, mend HTTPS_PROXY, or name {host} in NO_PROXY"
