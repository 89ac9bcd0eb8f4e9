"""A request to the sidecar's application without a network between."""

from __future__ import annotations

from typing import Any
from wsgiref.util import setup_testing_defaults

from parked_exporter.web import App


class Answered:
    """What came back for a request; `path` may have a query."""

    def __init__(
        self, app: App, path: str, *, method: str = "GET", host: str = "127.0.0.1:9465", **headers: str
    ) -> None:
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "HTTP_HOST": host}
        environ["PATH_INFO"], _, environ["QUERY_STRING"] = path.partition("?")
        environ |= {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        setup_testing_defaults(environ)
        self.body = b"".join(app(environ, self._start))

    def _start(self, status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
        self.status, self.headers = int(status[:3]), dict(headers)
