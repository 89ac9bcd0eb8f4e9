"""The simulator in a process of its own: answers by the prompt's first word, and tells of each call before it answers.

`python -m torture.api` prints its URL, then a JSON object for each call. So whoever has an answer has it from a call
that was told of.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO, Final, NamedTuple

from parked.simulator import replies as reply
from parked.simulator import serve
from parked.simulator.replies import Reply
from parked.simulator.request import Request

# Waits nobody: the same job is called again at once, and parked at its second failure.
OVERLOADED_NOW: Final = replace(reply.overloaded(), headers={"Retry-After": "0"})

# What a prompt that begins with this word meets in its calls, in this order, and then for ever; None: an answer.
FATES: Final[dict[str, tuple[Reply | None, ...]]] = {
    "plain": (None,),
    "slow": (None,),
    "busy": (OVERLOADED_NOW, None),
    "overloaded": (OVERLOADED_NOW, OVERLOADED_NOW, OVERLOADED_NOW, None),
    "refused": (reply.rate_limited(retry_delay_s=0.05), None),
    "wrong": (reply.invalid_request(),),
    "mended": (reply.invalid_request(), None),
    "blocked": (reply.blocked_prompt(),),
    "empty": (reply.no_candidates(), None),
    "silent": (reply.no_candidates(),),
    "cut": (reply.cut_body(), None),
}
DELAYS_S: Final = (0.0, 0.01, 0.03)
SLOW_S: Final = 0.3


class Call(NamedTuple):
    who: str  # the name of the process that called, which it has as its key
    prompt: str
    number: int  # 1-based: how often this prompt was asked
    answered: bool  # whether it got its answer, or a failure


def answer_to(prompt: str, call: int) -> str:
    return f"{prompt} #{call}"


def rule(request: Request) -> Reply:
    fate = FATES[request.text.partition(" ")[0]]
    failure = fate[min(request.call, len(fate)) - 1]
    call = Call(request.headers.get("x-goog-api-key", ""), request.text, request.call, failure is None)
    os.write(1, json.dumps(call).encode() + b"\n")
    chosen = failure or reply.text(answer_to(request.text, request.call))
    slow = request.text.startswith("slow")
    return replace(chosen, delay_s=SLOW_S if slow else DELAYS_S[request.number % len(DELAYS_S)])


class Api:
    """The parent's end."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torture.api"], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._stream: IO[bytes] = self._process.stdout
        self.url: str = self._stream.readline().decode().strip()
        self._heard = b""
        os.set_blocking(self._stream.fileno(), False)

    def fileno(self) -> int:
        return self._stream.fileno()

    def hear(self) -> list[Call]:
        """All calls that were told of since the last time; none if there were none."""
        heard = [self._heard]
        while True:
            try:
                more = os.read(self.fileno(), 1 << 16)
            except BlockingIOError:
                break
            if not more:
                raise RuntimeError("the simulator has ended")
            heard.append(more)
        *lines, self._heard = b"".join(heard).split(b"\n")
        return [Call(*json.loads(line)) for line in lines]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._stream.close()


if __name__ == "__main__":
    serve(rule=rule, announce=lambda url: print(url, flush=True))
