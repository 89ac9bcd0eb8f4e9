"""The google-genai adapter. It and `wrapping.py` alone know the SDK, which is imported when an adapter is made.

An attempt is exactly one HTTP request, and its raw response comes back: the SDK would repeat some requests by itself,
and it turns an HTTP 200 whose body is an error, empty or `null` into an empty response without an exception.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from parked.arguments import check_seconds
from parked.errors import InvalidJob, SettingsError
from parked.judge import HttpAnswer

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.types import GenerateContentConfig, GenerateContentResponse, HttpResponse

CALLER: Final = "parked.gemini:Gemini"  # by this name jobs remember who calls for them

_ARGUMENTS: Final = frozenset({"contents", "config", "model"})
_HTTP_OPTIONS: Final = ("http_options", "httpOptions")
# The other spelling of what the adapter sets itself; the SDK would take a payload's word for it.
_SET_HERE: Final = frozenset({"shouldReturnHttpResponse", "automaticFunctionCalling"})
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class Gemini:
    """Calls the Gemini API, or Vertex AI, with `(payload, model)`; what the SDK raises passes through.

    Without a client it makes one from the SDK's own variables (`GEMINI_API_KEY`, `GOOGLE_GEMINI_BASE_URL`, those of
    Vertex AI), or with the key in the file that `GEMINI_API_KEY_FILE` names, and closes it; a client that is handed in
    is closed by whoever made it. `timeout_s` holds for each request, whatever the client says.

    Raises:
        SettingsError: there are no credentials, or an argument is wrong.
    """

    name = CALLER

    def __init__(self, client: Client | None = None, *, timeout_s: float = 600.0) -> None:
        from google.genai import Client, types

        from parked.wrapping import is_wrapped

        if client is not None and not isinstance(client, Client):
            raise SettingsError(f"client must be a google.genai.Client, got {type(client).__name__}")
        if is_wrapped(client):
            raise SettingsError(
                "the client was made by parked.wrap, and each job would be two; hand in the one it was made from"
            )
        check_seconds("timeout_s", timeout_s, zero=False)
        self._owns_client = client is None
        self._client = client or _client_of_environment()
        # Exactly one request an attempt. Asked for in each request of a client that somebody else has made: else its
        # own options hold, and the SDK's asyncio side repeats a request whose connection broke even if it has none. Our
        # own client is made with them, which spares the SDK a retry object and 30 objects of cyclic garbage a call.
        self._http_options = types.HttpOptions(
            timeout=max(1, round(timeout_s * 1000)),
            retry_options=None if self._owns_client else types.HttpRetryOptions(attempts=1),
        )
        self._config: dict[str, Any] = {
            "should_return_http_response": True,
            "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
            "http_options": self._http_options,
        }
        self._new_config = _config_class()
        self._rest_config = self._new_config(**self._config)
        self._no_contents = types.Content(parts=[])

    def __call__(self, payload: Any, model: str) -> HttpAnswer:
        return _raw(self._client.models.generate_content(**self._arguments(payload, model)))

    async def acall(self, payload: Any, model: str) -> HttpAnswer:
        """The same on the running event loop; close with `aclose` before that loop ends."""
        return _raw(await self._client.aio.models.generate_content(**self._arguments(payload, model)))

    def check_payload(self, payload: Any) -> None:
        """See `check_payload` of this module."""
        check_payload(payload)

    def destination(self) -> tuple[str, str, int | None]:
        """Return provider, address and port as spans name them; address empty and port None if they aren't known."""
        return destination_of(self._client)

    def close(self) -> None:
        if self._owns_client:
            self._client.close()

    async def aclose(self) -> None:
        """Close what was opened on the running loop, and the rest."""
        if self._owns_client:
            await self._client.aio.aclose()
            self._client.close()

    def _arguments(self, payload: dict[str, Any], model: str) -> dict[str, Any]:
        """What `generate_content` is called with. The job's model counts, not one that the payload names.

        Raises:
            InvalidJob: it can't be sent; what was taken over from elsewhere, nobody has looked at before.
        """
        check_payload(payload)
        if not is_rest_body(payload):
            theirs = {name: value for name, value in (payload.get("config") or {}).items() if name not in _SET_HERE}
            return {
                "model": model,
                "contents": payload["contents"],
                "config": self._new_config(**{**theirs, **self._config}),
            }
        body = {name: value for name, value in payload.items() if name != "model"}
        http_options = self._http_options.model_copy(update={"extra_body": body})
        config = self._rest_config.model_copy(update={"http_options": http_options})
        # The SDK wants some contents; those of `extra_body` replace them.
        return {"model": model, "contents": self._no_contents, "config": config}


def greet(*, timeout_s: float) -> HttpAnswer:
    """Ask the API for the name of one model, which bills nothing, and return its answer, whatever its status.

    Raises:
        SettingsError: there are no credentials, or the surroundings of a client are wrong.
        Exception: what the SDK's HTTP client raises where there is no answer.
    """
    from google.genai import errors, types

    client = _client_of_environment()
    once = types.HttpOptions(timeout=max(1, round(timeout_s * 1000)), retry_options=types.HttpRetryOptions(attempts=1))
    try:
        http = client.models.list(config=types.ListModelsConfig(page_size=1, http_options=once)).sdk_http_response
        headers: Any = (http and http.headers) or {}
        return HttpAnswer(200, _lowered(headers), "")
    except errors.APIError as exc:
        return HttpAnswer(exc.code, _lowered(getattr(exc.response, "headers", None) or {}), json.dumps(exc.details))
    finally:
        client.close()


def is_rest_body(payload: dict[str, Any]) -> bool:
    """Whether a payload goes to the API as it is: no `config`, and contents that are a list of objects with `parts`.

    As it is but for one field: the SDK always sends a `generationConfig`, an empty one if need be, and spells it so.
    """
    contents = payload.get("contents")
    return (
        "config" not in payload
        and isinstance(contents, list)
        and bool(contents)
        and all(isinstance(content, dict) and "parts" in content for content in contents)
    )


def check_payload(payload: Any) -> None:
    """Refuse, before it is accepted, a payload that can't be sent or must not be.

    Raises:
        InvalidJob: no object, no `contents`, a `config` that is no object, `http_options` in either place and
            spelling, or a field that would be dropped on the way.
    """
    if not isinstance(payload, dict):
        raise InvalidJob(f"the payload must be an object with `contents`, got {type(payload).__name__}")
    if payload.get("contents") is None:
        raise InvalidJob("the payload has no `contents`; it must hold what generate_content takes, or a REST body")
    config = payload.get("config")
    if config is not None and not isinstance(config, dict):
        raise InvalidJob(f"the payload's `config` must be an object, got {type(config).__name__}")
    for name in _HTTP_OPTIONS:
        if name in payload or (config and name in config):
            raise InvalidJob(
                f"the payload holds `{name}`, which is refused because it could send the key elsewhere; set such"
                " options on the client, for all jobs"
            )
    if unknown := [] if is_rest_body(payload) else sorted(payload.keys() - _ARGUMENTS):
        raise InvalidJob(
            f"the payload's `{unknown[0]}` would be lost: beside `contents` and `config` it has no place, and in a REST"
            " body, which has no `config`, `contents` are a list of objects with `parts`"
        )


def destination_of(client: Client) -> tuple[str, str, int | None]:
    """See `Gemini.destination`."""
    # No public attribute says where a client sends. If this one goes, spans lose the address and nothing else.
    options = getattr(getattr(client, "_api_client", None), "_http_options", None)
    url = urlsplit(getattr(options, "base_url", None) or "")
    try:
        port = url.port or _DEFAULT_PORTS.get(url.scheme)
    except ValueError:  # no number, or none of a port
        port = None
    return "gcp.vertex_ai" if client.vertexai else "gcp.gemini", url.hostname or "", port


@cache
def _config_class() -> type[GenerateContentConfig]:
    """Return the SDK's config, but faster to read: it saves a quarter of a call, a third of one with a REST body."""
    from google.genai import types

    class GenerateContentConfig(types.GenerateContentConfig):  # by the SDK's name, which its complaints mention
        def __contains__(self, _: object) -> bool:
            # The SDK asks `name in config` for each of its 40 fields before it looks at the attribute. Without this,
            # pydantic lists all fields each time, only to find that none of the pairs is a name.
            return False

        def __deepcopy__(self, memo: dict[int, Any] | None = None) -> GenerateContentConfig:
            # Made for one call and left to it: what it holds need not be copied, bodies of megabytes least of all.
            return self.__copy__()

    return GenerateContentConfig


def _client_of_environment() -> Client:
    from google.auth.exceptions import GoogleAuthError
    from google.genai import Client, types

    from parked.surroundings import certificates, key, proxies

    key.check()
    certificates.check()
    proxies.check()
    api_key = key.in_a_file()
    try:
        return Client(api_key=api_key, http_options=types.HttpOptions(retry_options=types.HttpRetryOptions(attempts=1)))
    except (ValueError, GoogleAuthError) as exc:
        raise SettingsError(
            "no credentials for the Gemini API: set GEMINI_API_KEY or GEMINI_API_KEY_FILE, or for Vertex AI"
            " GOOGLE_GENAI_USE_VERTEXAI=true with GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION"
        ) from exc


def answer_of(response: HttpResponse) -> HttpAnswer:
    """Return a response for which the SDK has raised nothing, as parked judges it."""
    # The SDK raises for every other status. It spells names as its HTTP client does, and that isn't always the same.
    return HttpAnswer(status=200, headers=_lowered(response.headers or {}), body=response.body or "")


def _raw(response: GenerateContentResponse) -> HttpAnswer:
    assert response.sdk_http_response is not None
    return answer_of(response.sdk_http_response)


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
