"""How answers are written: the protocol of renderers, and what several dialects share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.api.delta import Delta, ScoredToken
from potluck.api.errors import ApiError
from potluck.types.text import Tokenizer

Json = dict[str, object]

EVENT_STREAM = "text/event-stream"
"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

WAITING_COMMENT = b": waiting\n\n"
"""An event stream's comment, which clients skip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request: each prompt once, and all that its choices were given.

    ``num_cached_tokens`` of the prompts were not computed, because a cache had them.
    ``num_reasoning_tokens`` of the new ones are what the model thought.
    """

    num_prompt_tokens: int
    num_new_tokens: int
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0


class Renderer(Protocol):
    """Writes one answer in one dialect, whole or as a stream. Each request has its own.

    The methods for streams return the bytes to send, which may be none. They are called in this
    order: ``begin`` when the first delta is there, ``delta`` for each that is not empty, ``end``
    after the last choice has ended, or ``failed`` instead of anything that would follow. Before
    ``whole``, ``begin`` is called as well, and what it returns is not sent.
    """

    @property
    def request_id(self) -> str:
        """What the request is called, in the answer and in the log."""
        ...

    @property
    def stream_type(self) -> str:
        """The media type of a stream."""
        ...

    @property
    def waiting(self) -> bytes:
        """What is sent where a stream has had nothing to send for long."""
        ...

    def begin(self, usage: Usage) -> bytes:
        """What comes before everything else; ``usage`` has no new tokens yet."""
        ...

    def delta(self, index: int, delta: Delta) -> bytes:
        """More of the choice ``index``."""
        ...

    def end(self, usage: Usage) -> bytes:
        """What comes after everything else."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that cannot be completed."""
        ...

    def whole(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> bytes:
        """The whole answer, whose choices have gained these deltas."""
        ...


def scored_json(scored: ScoredToken, tokenizer: Tokenizer, *, least: float = -math.inf) -> Json:
    """Return a token and the likeliest in its place; no log-probability is below ``least``."""

    def one(token: int, logprob: float | None) -> Json:
        data = tokenizer.token_bytes(token)
        return {
            "token": data.decode(errors="replace"),
            "logprob": None if logprob is None else max(logprob, least),
            "bytes": list(data),
        }

    top = [one(other.token, other.logprob) for other in scored.top]
    return {**one(scored.token, scored.logprob), "top_logprobs": top}


def event(data: bytes, name: str | None = None) -> bytes:
    """Return a server-sent event; ``data`` has no line breaks."""
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
