"""A simulator, and a plain HTTP client to ask it with: what it sends is judged without any SDK."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from parked.simulator import Simulator

PATH = "/v1beta/models/gemini-3.5-flash:generateContent"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.json["candidates"][0]["content"]["parts"])


class Client:
    def __init__(self, simulator: Simulator) -> None:
        self._address = urlsplit(simulator.url).netloc

    def ask(self, prompt: str = "What is six times seven?", *, path: str = PATH, **fields: Any) -> Answer:
        return self.post(json.dumps({"contents": [{"parts": [{"text": prompt}]}], **fields}), path=path)

    def post(self, body: str, *, path: str = PATH) -> Answer:
        return self._send("POST", path, body)

    def get(self, path: str) -> Answer:
        return self._send("GET", path, None)

    def _send(self, method: str, path: str, body: str | None) -> Answer:
        connection = HTTPConnection(self._address, timeout=10)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", "X-Goog-Api-Key": "k"})
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with Simulator() as running:
        yield running


@pytest.fixture
def connect() -> Callable[[Simulator], Client]:
    return Client


@pytest.fixture
def client(simulator: Simulator) -> Client:
    return Client(simulator)
