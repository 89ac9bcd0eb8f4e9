"""`parked.wrap`: a client of the google-genai SDK whose every request for an answer is a job.

For each call of `generate_content` the SDK's own models work with an HTTP client of ours, which hands each request in
as a job, and the response back. So the SDK goes on reading arguments and responses, images, files, functions and
schemas included, and a job's payload is the request's body as it goes over the wire. Nothing of the SDK is changed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar

from parked.arguments import check_function
from parked.calls import too_late
from parked.errors import LedgerUnavailable, NotAnswered, SettingsError
from parked.gemini import CALLER, answer_of, destination_of
from parked.job import ANSWERED, Job, Outcome, State, check_name
from parked.judge import HttpAnswer
from parked.ledger import Ledger
from parked.ledger.shared import shared_ledger
from parked.policy import Policy
from parked.runner import Runner
from parked.running import Running, policy_for

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.types import GenerateContentResponse, HttpOptions, HttpResponse

__all__ = ["is_wrapped", "wrap"]

ClientT = TypeVar("ClientT", bound="Client")
_T = TypeVar("_T")

_ORIGINAL: Final = "_parked_original"  # the attribute of a wrapped client by which it is known
_ASKS: Final = ":generateContent"  # how the path of a request for an answer ends

_log = logging.getLogger("parked.wrap")


def wrap(
    client: ClientT,
    *,
    ledger: Ledger | None = None,
    pipeline: str = "default",
    batch: str = "",
    job_id: Callable[..., str] | None = None,
    policy: Policy | None = None,
    allow_truncated: bool = False,
) -> ClientT:
    """Return a client that works as this one does, but whose `models.generate_content` makes a job of each request.

    So do `aio.models.generate_content` and messages of chats; streams and all else go past parked. A request is
    committed before it is sent, and retried by the policy, which takes the place of the SDK's own retries. Then the
    last attempt's response is returned or its exception raised, as without parked. The job of a failure is parked,
    also that of a response with nothing in it, which is returned. A request without an answer within
    `attempt_timeout_s` ends with an exception of the SDK's HTTP client, or TimeoutError.

    Each job has a fresh id, so that equal prompts are two jobs. `job_id(model=…, contents=…, config=…)` makes one
    instead: then a known job is not called again. Its stored answer is returned, or `NotAnswered` raised. A call that
    takes several requests (functions, continuations) names the later ones `ID/2`, `ID/3`.

    Without a ledger, the one that the settings name is opened, once a process, and created if it is missing. The given
    client goes on working by itself; closing either closes both, and no ledger.

    Raises:
        SettingsError: the client is none of google-genai, or is wrapped already, or another argument is wrong.
        LedgerUnavailable: the ledger can't be opened; from a call: it can't be written, and nothing came of it. What a
            request came to is returned or raised also where it can't be written down: then a log line says so.
        InvalidJob: from a call: the request or its id can't be kept as they are, NaN say, and nothing was sent.
    """
    from google.genai import Client
    from google.genai.models import AsyncModels, Models

    if not isinstance(client, Client):
        raise SettingsError(
            f"client must be a google.genai.Client, got {type(client).__name__}; of an asyncio client wrap the Client"
            " that it belongs to, and take its `aio`"
        )
    if is_wrapped(client):
        raise SettingsError("the client is wrapped already, and each request would be two jobs; use it as it is")
    http = getattr(client, "_api_client", None)
    if not (
        isinstance(client.models, Models)
        and isinstance(client.aio.models, AsyncModels)
        and all(callable(getattr(http, name, None)) for name in ("request", "async_request"))
    ):
        raise SettingsError(
            "this client doesn't send its requests as those of google-genai 3 do, so they can't be made jobs; call it"
            " from a function of yours that a parked.Runner calls"
        )
    check_name("pipeline", pipeline)
    check_name("batch", batch, empty=True)
    if job_id is not None:
        check_function("job_id", job_id, rule="that makes ids")
    book = _Book(client, ledger, job_id, policy, pipeline=pipeline, batch=batch, allow_truncated=allow_truncated)
    models, amodels = _recording(client.models, book), _recording_async(client.aio.models, book)
    aio = _like(client.aio, models=property(lambda _: amodels))
    wrapped = _like(
        client,
        models=property(lambda _: models),
        aio=property(lambda _: aio),
        __del__=lambda _: None,  # the SDK's would close what the given client still works with
    )
    setattr(wrapped, _ORIGINAL, client)  # kept for as long as this one is: at its end it closes what both work with
    return wrapped


def is_wrapped(client: object) -> bool:
    """Whether `wrap` has made it."""
    return hasattr(client, _ORIGINAL)


def _like(original: _T, **members: Any) -> _T:
    """Return what has all that an object has, and these members instead of those of its class."""
    cls = type(original)
    like: _T = object.__new__(
        type(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__, **members})
    )
    like.__dict__.update(original.__dict__)
    return like


def _recording(models: _T, book: _Book) -> _T:
    cls: Any = type(models)

    @wraps(cls.generate_content)
    def generate_content(self: Any, *, model: str, contents: Any, config: Any = None) -> GenerateContentResponse:
        http = _RecordingHttp(book, model, contents, config)
        return http.checked(cls(http).generate_content(model=model, contents=contents, config=config))

    return _like(models, generate_content=generate_content)


def _recording_async(models: _T, book: _Book) -> _T:
    cls: Any = type(models)

    @wraps(cls.generate_content)
    async def generate_content(self: Any, *, model: str, contents: Any, config: Any = None) -> GenerateContentResponse:
        http = _RecordingHttp(book, model, contents, config)
        return http.checked(await cls(http).generate_content(model=model, contents=contents, config=config))

    return _like(models, generate_content=generate_content)


class _Book:
    """What all calls of a wrapped client share."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger | None,
        job_id: Callable[..., str] | None,
        policy: Policy | None,
        *,
        pipeline: str,
        batch: str,
        allow_truncated: bool,
    ) -> None:
        from google.genai.types import HttpOptions

        self.http: Any = getattr(client, "_api_client")  # noqa: B009 - the SDK's own, which has no public name
        options = getattr(self.http, "_http_options", None)
        self.extra_body: Mapping[str, Any] | None = getattr(options, "extra_body", None)
        self.job_id = job_id
        destination = destination_of(client)
        policy = policy_for(policy)
        # A request that nobody waits for any more ends by itself, unless its client has a time of its own.
        has_time = getattr(options, "timeout", None) is not None
        self._timeout_ms = None if has_time else max(1, round(policy.attempt_timeout_s * 1000))
        self._new_options = HttpOptions
        self._on = Running(
            shared_ledger(role="runner") if ledger is None else ledger,
            _Exchange(self.http, "", None, destination),
            pipeline=pipeline,
            batch=batch,
            policy=policy,
            allow_truncated=allow_truncated,
        )
        self._destination = destination

    def exchange(self, path: str, theirs: Any) -> _Exchange:
        """Make ready what sends a request; `theirs` are the SDK's options for it, if there are any."""
        from google.genai.types import HttpRetryOptions

        options: HttpOptions = self._new_options.model_validate(theirs or {})
        changes: dict[str, Any] = {"retry_options": HttpRetryOptions(attempts=1)}
        if options.timeout is None:
            changes["timeout"] = self._timeout_ms
        return _Exchange(self.http, path, options.model_copy(update=changes), self._destination)

    def running(self, exchange: _Exchange) -> Running:
        return replace(self._on, call_model=exchange)

    def result(self, job: Job, outcome: Outcome, exchange: _Exchange) -> HttpResponse:
        """Return or raise what a job came to, as the SDK's own HTTP client would have done it."""
        from google.genai.types import HttpResponse

        was_known = outcome.state in ANSWERED and not (outcome.verdict and outcome.verdict.ok)
        if was_known and outcome.answer is not None:
            return HttpResponse(headers={}, body=json.dumps(outcome.answer))  # or the answer came by another way
        if was_known or exchange.last is None:
            on = self._on
            raise NotAnswered(on.pipeline, on.batch, job.job_id, outcome.state, outcome.error_class)
        if outcome.state is State.PARKED:
            self._on.say_parked(job.job_id, outcome.error_class)
        if not exchange.last:
            raise too_late(self._on.policy.attempt_timeout_s)
        return exchange.came()

    def unrecorded(self, job: Job, exchange: _Exchange, why: LedgerUnavailable) -> HttpResponse:
        """Return or raise what the last request of a job came to, which could not be written down.

        It was paid for, and without parked it would have been had: the ledger's fault must not take it away.
        """
        if not exchange.last:
            raise why
        _log.error(
            "outcome_not_recorded job=%s pipeline=%s: its call was made, and the program has what came of it, but %s",
            job.job_id,
            self._on.pipeline,
            why,
        )
        return exchange.came()


class _RecordingHttp:
    """The SDK's HTTP client for one call of `generate_content`, but that its requests are jobs."""

    def __init__(self, book: _Book, model: Any, contents: Any, config: Any) -> None:
        self._book = book
        self._model = model
        given = book.job_id
        self._ids = _ids(given(model=model, contents=contents, config=config)) if given else _fresh_ids()
        self._handed_in = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._book.http, name)

    def request(self, http_method: str, path: str, request_dict: dict[str, Any], http_options: Any = None) -> Any:
        if not path.partition("?")[0].endswith(_ASKS):
            return self._book.http.request(http_method, path, request_dict, http_options)
        job, exchange = self._job(request_dict, http_options), self._book.exchange(path, http_options)
        try:
            outcome = Runner.of(self._book.running(exchange)).run(job)
        except LedgerUnavailable as exc:
            return self._book.unrecorded(job, exchange, exc)
        return self._book.result(job, outcome, exchange)

    async def async_request(
        self, http_method: str, path: str, request_dict: dict[str, Any], http_options: Any = None
    ) -> Any:
        if not path.partition("?")[0].endswith(_ASKS):
            return await self._book.http.async_request(http_method, path, request_dict, http_options)
        from parked.aio import AsyncRunner

        job, exchange = self._job(request_dict, http_options), self._book.exchange(path, http_options)
        try:
            outcome = await AsyncRunner.of(self._book.running(exchange)).run(job)
        except LedgerUnavailable as exc:
            return self._book.unrecorded(job, exchange, exc)
        return self._book.result(job, outcome, exchange)

    def checked(self, response: GenerateContentResponse) -> GenerateContentResponse:
        """See that a response of the API has come by way of a job."""
        if response.sdk_http_response is not None and not self._handed_in:
            _log.error(
                "call_not_recorded model=%s: this google-genai sends by a way that parked doesn't know; upgrade parked",
                self._model,
            )
        return response

    def _job(self, request: dict[str, Any], http_options: Any) -> Job:
        self._handed_in += 1
        options = http_options or {}
        extra = options.get("extra_body") if isinstance(options, dict) else options.extra_body
        body = {name: value for name, value in request.items() if not name.startswith("_")}
        body = _as_rest_body(_merged(body, extra or self._book.extra_body or {}))
        model = self._model.removeprefix("models/") if isinstance(self._model, str) else self._model
        return Job(next(self._ids), model=model, payload=body)


class _Exchange:
    """Sends the requests of one job, one an attempt, and keeps what the last one came to."""

    name = CALLER  # whoever replays the job sends its payload, which is a REST body, by the adapter

    def __init__(
        self, http: Any, path: str, options: HttpOptions | None, destination: tuple[str, str, int | None]
    ) -> None:
        # Of the last attempt made here, if one was: what came, or nothing while nobody knows.
        self.last: list[HttpResponse | Exception] | None = None
        self._http, self._path, self._options, self._destination = http, path, options, destination

    def __call__(self, payload: Any, model: str) -> HttpAnswer:
        came: list[HttpResponse | Exception] = []
        self.last = came
        try:
            response: HttpResponse = self._http.request("post", self._path, dict(payload), self._options)
        except Exception as exc:
            came.append(exc)
            raise
        came.append(response)
        return answer_of(response)

    async def acall(self, payload: Any, model: str) -> HttpAnswer:
        came: list[HttpResponse | Exception] = []
        self.last = came
        try:
            response: HttpResponse = await self._http.async_request("post", self._path, dict(payload), self._options)
        except Exception as exc:
            came.append(exc)
            raise
        came.append(response)
        return answer_of(response)

    def came(self) -> HttpResponse:
        """Return or raise what the last attempt came to; there must be something."""
        assert self.last
        (came,) = self.last
        if isinstance(came, BaseException):
            raise came
        return came

    def destination(self) -> tuple[str, str, int | None]:
        return self._destination


def _ids(given: str) -> Iterator[str]:
    """The ids of the requests of one call."""
    yield given
    for number in count(2):
        yield f"{given}/{number}"


def _fresh_ids() -> Iterator[str]:
    while True:
        yield f"call-{os.urandom(12).hex()}"


def _as_rest_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request's body so that the adapter knows it for one: it wants `parts` in each content."""
    contents = body.get("contents")
    if not isinstance(contents, list):
        return body
    return {**body, "contents": [each if "parts" in each else {**each, "parts": []} for each in contents]}


def _merged(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with the `extra_body` of HTTP options in it. As the SDK does, `a_b` and `aB` are taken for one."""
    if not extra:
        return body
    spelled = {name.replace("_", "").lower(): name for name in body}
    merged = dict(body)
    for name, value in extra.items():
        name = spelled.get(name.replace("_", "").lower(), name)
        there = merged.get(name)
        both = isinstance(there, dict) and isinstance(value, Mapping)
        merged[name] = _merged(there, value) if both else value  # type: ignore[arg-type]  # `both` says that it is one
    return merged
