"""A client that streams one completion over HTTP and records the times of its tokens."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NO_END: Mapping[str, int] = {"2": -100, "6": -100}
"""The logit bias of demo's end tokens: not sampled, so that every answer has its full length."""

_TOKEN_IDS = (300, 1000)
"""Prompts are drawn from the ids between demo's special tokens and the second number."""

_SILENCE_SECONDS = 180.0


def random_prompt(draw: random.Random, num_tokens: int) -> list[int]:
    """Draw the token ids of a prompt."""
    return [draw.randrange(*_TOKEN_IDS) for _ in range(num_tokens)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request, sampled with penalties, whose answer a seed determines.

    ``schema`` is the JSON schema of the answer, as a text.
    """

    prompt: Sequence[int] | str
    max_tokens: int
    seed: int
    temperature: float = 1.0
    penalty: float = 0.3
    has_logprobs: bool = True
    schema: str | None = None

    def body(self, model: str) -> Mapping[str, object]:
        """Return the body of a request to ``/v1/completions``."""
        return {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": 0.95,
            "presence_penalty": self.penalty,
            "frequency_penalty": self.penalty,
            "seed": self.seed,
            "logit_bias": NO_END,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"logprobs": 1} if self.has_logprobs else {}),
            **({"guided_json": self.schema} if self.schema else {}),
        }


@dataclass(slots=True)
class TokenStream:
    """An answer as it comes. ``status`` is 0 until there is one; ``error`` is empty if all is well.

    ``times`` are those of events with tokens, of ``time.monotonic``; ``logprobs`` are of tokens.
    """

    status: int = 0
    retry_after: float | None = None
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    num_comments: int = 0
    num_tokens: int | None = None
    error: str = ""
    sent_at: float = 0.0
    ended_at: float | None = None
    has_begun: threading.Event = field(default_factory=threading.Event)

    @property
    def is_whole(self) -> bool:
        """Whether the answer is complete."""
        return self.ended_at is not None and not self.error and self.num_tokens is not None

    def read(self, port: int, model: str, ask: Ask) -> None:
        """Send the request and read the answer to its end; errors are noted, not raised."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_SILENCE_SECONDS)
        self.sent_at = time.monotonic()
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(ask.body(model)), headers)
            response = connection.getresponse()
            self.status = response.status
            if response.status != http.HTTPStatus.OK:
                after = response.getheader("Retry-After")
                self.retry_after = float(after) if after else None
                self.error = response.read(2000).decode("utf-8", "replace") or "no text"
                return
            for line in response:
                self._take(line)
            if not self.error and self.num_tokens is None:
                self.error = "the stream ended before its last event"
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            connection.close()
            self.ended_at = time.monotonic()
            self.has_begun.set()

    def _take(self, line: bytes) -> None:
        if line.startswith(b":"):
            self.num_comments += 1
        if not line.startswith(b"data: {"):
            return
        event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            self.error = str(event["error"]["message"])
        for choice in event.get("choices", ()):
            scores = (choice.get("logprobs") or {}).get("token_logprobs") or ()
            if choice["text"] or scores:
                self.times.append(time.monotonic())
            self.text += choice["text"]
            self.logprobs += scores
            self.has_begun.set()
        if event.get("usage"):
            self.num_tokens = event["usage"]["completion_tokens"]


def stream_whole(port: int, model: str, ask: Ask) -> TokenStream:
    """Stream an answer that must be complete. Raise ``RuntimeError`` if it is not."""
    stream = TokenStream()
    stream.read(port, model, ask)
    if not stream.is_whole or stream.num_tokens != ask.max_tokens:
        raise RuntimeError(f"an undisturbed answer failed: {stream.status} {stream.error}")
    return stream


def joint_rate(streams: Sequence[Sequence[float]], num_tokens: int) -> float:
    """Return the tokens per second of all streams together, while all of them decode.

    ``streams`` holds the times of each stream's events. Each stream has ``num_tokens`` tokens, and
    may have fewer events, because text waits for the rest of a character.
    """
    begin = max(times[0] for times in streams)
    end = min(times[-1] for times in streams)
    tokens = sum(
        num_tokens / len(times) * sum(begin < at <= end for at in times) for times in streams
    )
    return tokens / max(end - begin, 1e-9)


def together(calls: Iterable[Callable[[], object]]) -> None:
    """Make all calls, each on a thread."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def post_json(connection: socket.socket, path: str, body: Mapping[str, object]) -> Any:
    """Post ``body`` over a new connection, close it, and return the JSON of the answer.

    Raise ``RuntimeError`` for any status other than 200.
    """
    client = http.client.HTTPConnection("127.0.0.1", connection.getpeername()[1])
    client.sock = connection
    with contextlib.closing(client):
        client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = client.getresponse()
        text = response.read().decode()
    if response.status != http.HTTPStatus.OK:
        raise RuntimeError(f"HTTP status {response.status}: {text}")
    return json.loads(text)
