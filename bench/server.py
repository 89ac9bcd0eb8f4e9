"""A loopback server that answers every request of the Gemini API at once with the same whole answer.

    python bench/server.py

It prints its port, then serves until it is ended. The simulator of the package is for behaviour; this one only has to
cost so little that it never is what is measured.
"""

from __future__ import annotations

import asyncio
import json

_BODY = json.dumps({
    "candidates": [
        {
            "content": {"parts": [{"text": "The customer cannot sign in after the update. " * 8}], "role": "model"},
            "finishReason": "STOP",
            "index": 0,
        }
    ],
    "usageMetadata": {
        "promptTokenCount": 412,
        "candidatesTokenCount": 88,
        "totalTokenCount": 500,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 412}],
    },
    "modelVersion": "gemini-3.5-flash",
    "responseId": "bench",
}).encode()  # fmt: skip
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=UTF-8\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)
_LENGTH = b"content-length:"


class AnswerAtOnce(asyncio.Protocol):
    """Reads no more of a request than where it ends."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._read = b""

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (head_end := self._read.find(b"\r\n\r\n")) >= 0:
            head = self._read[:head_end].lower()
            at = head.find(_LENGTH)
            length = int(head[at + len(_LENGTH) :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._read) < head_end + 4 + length:
                return
            self._read = self._read[head_end + 4 + length :]
            self._transport.write(ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(AnswerAtOnce, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
