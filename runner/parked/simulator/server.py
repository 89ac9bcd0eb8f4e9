"""The simulator: a real HTTP server on loopback that speaks the Gemini REST API and answers as it is told."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any, Final, Self

from aiohttp import web

from parked.errors import ParkedError
from parked.simulator.record import Call
from parked.simulator.replies import Delivery, Reply, error, invalid_request, usual
from parked.simulator.request import LIST, METHODS, STREAM, Request, lists_models, parse_path, prompt_text

Rule = Callable[[Request], Reply | None]

_START_PATIENCE_S: Final = 10.0


class Simulator:
    """A server in a thread of its own; use it in a `with`, or call `start` and `stop`.

    It answers each request with the next reply of `will_answer`, else with what the rule of `answers` returns, else
    with a short text about the prompt. Those methods, and what it has seen (`requests`, `calls`), may be used from any
    thread.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        records: bool = True,
        record: Callable[[Call], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Port 0 means any free one. Without `records` no request or call is kept, for runs larger than memory.

        `record` is told of each call once it is over, in the simulator's own thread. By the `monotonic` clock go the
        times of requests, and with them quotas and rules for a time; delays are always real.
        """
        self.requests: list[Request] = []  # in the order of their arrival; only ever appended to
        self.calls: list[Call] = []  # in the order in which they were over; only ever appended to
        self._host, self._port, self._records, self._record = host, port, records, record
        self._monotonic = monotonic
        self._first_at: float | None = None  # when the first request arrived
        self._queue: deque[Reply] = deque()
        self._rule: Rule | None = None
        self._asked: Counter[int] = Counter()  # by hash, so that long prompts aren't kept
        self._arrived = threading.Condition()
        self._number = 0
        self._holds = False
        self._held: list[asyncio.Future[None]] = []  # touched by the loop's thread only
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen, and return once requests are taken.

        Raises:
            ParkedError: the address can't be listened on.
        """
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="gemini-simulator", daemon=True)
        self._thread.start()
        try:
            self._port = ready.result(_START_PATIENCE_S)
        except OSError as exc:
            raise ParkedError(
                f"can't listen on {self._host}:{self._port} ({exc.strerror or exc}); take another port, or 0 for any"
                " free one"
            ) from exc
        return self

    def stop(self) -> None:
        """Close all connections, whatever is under way, and end the thread. Doing it twice does no harm."""
        if self._loop is not None and self._stopping is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The base URL, as `GOOGLE_GEMINI_BASE_URL` takes it."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}"

    # --- what to answer ----------------------------------------------------------------------------------------

    def will_answer(self, *replies: Reply) -> None:
        """Answer the next requests with these, one each, in the order in which the requests arrive."""
        self._queue.extend(replies)

    def answers(self, rule: Rule | None) -> None:
        """From now on, ask this rule what to answer; where it returns None, the answer is the usual one."""
        self._rule = rule

    def hold(self) -> None:
        """Answer nothing from now on until `release`; requests are still taken and seen."""
        self._holds = True

    def release(self) -> None:
        """Answer all that was held back, also what hangs."""
        self._holds = False
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._let_go)

    # --- what was asked ----------------------------------------------------------------------------------------

    @property
    def bodies(self) -> list[Any]:
        return [request.body for request in self.requests]

    def wait_for_requests(self, count: int, timeout_s: float = 30.0) -> None:
        """Wait until this many requests have arrived in all, answered or not.

        Raises:
            TimeoutError: they didn't come in time.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._number >= count, timeout_s):
                raise TimeoutError(f"{self._number} of {count} requests arrived within {timeout_s:g} s")

    # --- the server's thread -----------------------------------------------------------------------------------

    def _run(self, ready: Future[int]) -> None:
        try:
            asyncio.run(self._serve(ready))
        except Exception as exc:  # noqa: BLE001 - whatever keeps it from starting is raised by `start`
            ready.set_exception(exc)

    async def _serve(self, ready: Future[int]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, backlog=1024).start()
            ready.set_result(runner.addresses[0][1])
            await self._stopping.wait()
        finally:
            for released in self._held:
                released.cancel()
            await runner.cleanup()

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        request = self._take(http, await http.content.read())  # not `http.read()`, which stops at a megabyte
        sent, delivery = None, Delivery.NONE  # until something is
        try:
            reply = self._reply(request)
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            if self._holds or reply.held:
                released = asyncio.get_running_loop().create_future()
                self._held.append(released)
                await released
            if http.transport is None:  # whoever asked has gone meanwhile
                return web.Response()
            response = await _sent(reply, request, http)
            if reply.delivery is not Delivery.NONE:
                sent, delivery = reply.status, reply.delivery
            return response
        finally:
            took_s = self._monotonic() - request.at
            self._keep(Call.of(request, took_s=took_s, status=sent, delivery=delivery))

    def _keep(self, call: Call) -> None:
        if self._records:
            self.calls.append(call)
        if self._record is not None:
            self._record(call)

    def _take(self, http: web.BaseRequest, raw: bytes) -> Request:
        model, method = parse_path(http.path) if http.method == "POST" else ("", "")
        if http.method == "GET" and lists_models(http.path):
            method = LIST
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        text = prompt_text(body)
        key = hash((model, text))
        with self._arrived:
            self._number += 1
            self._asked[key] += 1
            now = self._monotonic()
            self._first_at = now if self._first_at is None else self._first_at
            request = Request(
                model=model,
                method=method,
                body=body,
                headers=http.headers,
                path=http.path_qs,
                at=now,
                at_s=now - self._first_at,
                text=text,
                call=self._asked[key],
                number=self._number,
            )
            if self._records:
                self.requests.append(request)
            self._arrived.notify_all()
        return request

    def _reply(self, request: Request) -> Reply:
        if request.method == LIST:
            reply = (self._rule and self._rule(request)) or usual(request)
            is_an_error = reply.status != 200 or reply.delivery is not Delivery.WHOLE
            return reply if is_an_error else replace(usual(request), delay_s=reply.delay_s)
        if request.method not in METHODS:
            return error(404, "NOT_FOUND", f"Nothing is served at {request.path}.")
        if not isinstance(request.body, dict):
            return invalid_request("Invalid JSON payload received. The body is no JSON object.")
        if self._queue:
            return self._queue.popleft()
        return (self._rule and self._rule(request)) or usual(request)

    def _let_go(self) -> None:
        held, self._held = self._held, []
        for released in held:
            if not released.done():
                released.set_result(None)


def serve(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    rule: Rule | None = None,
    record: Callable[[Call], None] | None = None,
    announce: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is told the base URL once requests are taken. Main thread only.

    Raises:
        ParkedError: the address can't be listened on; or what `record` raises, which ends it.
    """
    ended = threading.Event()
    failures: list[ParkedError] = []

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    def keep(call: Call) -> None:
        assert record is not None
        if failures:
            return
        try:
            record(call)
        except ParkedError as exc:
            failures.append(exc)
            ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with Simulator(host=host, port=port, records=False, record=keep if record else None) as simulator:
            simulator.answers(rule)
            announce(simulator.url)
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if failures:
        raise failures[0]


async def _sent(reply: Reply, request: Request, http: web.BaseRequest) -> web.StreamResponse:
    if reply.delivery is Delivery.NONE:
        _hang_up(http)
        return web.Response()  # reaches nobody
    headers = {"Content-Type": reply.content_type, **reply.headers}
    pieces = [_body(reply, request)]
    if request.method == STREAM and reply.status == 200:
        sse = http.query.get("alt") == "sse"
        pieces = _events(reply.rendered(request), sse=sse)
        if sse:
            headers["Content-Type"] = "text/event-stream"
    if reply.delivery is Delivery.WHOLE:
        return web.Response(body=b"".join(pieces), status=reply.status, headers=headers)

    response = web.StreamResponse(status=reply.status, headers=headers)
    response.content_length = sum(len(piece) for piece in pieces)
    with suppress(ConnectionResetError):  # whoever asked has gone before us
        await response.prepare(http)
        await response.write(pieces[0] if len(pieces) > 1 else pieces[0][: len(pieces[0]) // 2])
    _hang_up(http)
    return response


def _hang_up(http: web.BaseRequest) -> None:
    if http.transport is not None:
        http.transport.close()


def _body(reply: Reply, request: Request) -> bytes:
    rendered = reply.rendered(request)
    return rendered if isinstance(rendered, bytes) else json.dumps(rendered).encode()


def _events(answer: Any, *, sse: bool) -> list[bytes]:
    """An answer as a stream sends it: as server-sent events, or else as one JSON array, piece by piece."""
    if isinstance(answer, bytes):
        return [answer]
    pieces = [json.dumps(piece).encode() for piece in _pieces(answer)]
    if sse:
        return [b"data: " + piece + b"\r\n\r\n" for piece in pieces]
    last = len(pieces) - 1
    return [
        (b"[" if place == 0 else b"") + piece + (b"]" if place == last else b",\r\n")
        for place, piece in enumerate(pieces)
    ]


def _pieces(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """A text in two pieces, the first of them without a finish reason; anything else in one."""
    match answer:
        case {"candidates": [{"content": {"parts": [{"text": str(text)}]}} as whole]} if len(text) > 1:
            half = len(text) // 2
            first, second = (
                {**whole, "content": {**whole["content"], "parts": [{"text": piece}]}}
                for piece in (text[:half], text[half:])
            )
            first.pop("finishReason", None)
            return [{**answer, "candidates": [first]}, {**answer, "candidates": [second]}]
    return [answer]
