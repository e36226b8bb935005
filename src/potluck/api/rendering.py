"""The interface of renderers, and helpers that several dialects share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from potluck.api.delta import Delta, ScoredToken
from potluck.api.errors import ApiError
from potluck.types.text import Tokenizer

Json = dict[str, object]

EVENT_STREAM = "text/event-stream"
"""Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html"""

WAITING_COMMENT = b": waiting\n\n"
"""A comment in an event stream, which clients ignore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of a request: each prompt once, and the tokens of all choices.

    ``num_cached_tokens`` of the prompt tokens were found in a cache. ``num_reasoning_tokens`` of
    the generated tokens were reasoning. ``num_drafted_tokens`` were drafted and verified, and
    ``num_accepted_tokens`` of them were accepted.
    """

    num_prompt_tokens: int
    num_new_tokens: int
    num_cached_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0


class Renderer(Protocol):
    """Renders one answer in one dialect, whole or as a stream. Each request has its own.

    The methods for streams return the bytes to send, which may be empty. They are called in this
    order: ``begin`` when the first delta is available, ``delta`` for each non-empty delta, ``end``
    after the last choice has ended, or ``failed`` in place of anything that would follow. ``begin``
    is also called before ``whole``, and its result is then discarded.
    """

    @property
    def request_id(self) -> str:
        """The id of the request in the answer and in the log."""
        ...

    @property
    def stream_type(self) -> str:
        """The media type of a stream."""
        ...

    @property
    def waiting(self) -> bytes:
        """Return the keep-alive to send if a stream has been silent for long."""
        ...

    def begin(self, usage: Usage) -> bytes:
        """Return what precedes everything else; ``usage`` counts no generated tokens yet."""
        ...

    def delta(self, index: int, delta: Delta) -> bytes:
        """Return an increment of the choice ``index``."""
        ...

    def end(self, usage: Usage) -> bytes:
        """Return what follows everything else."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """Return the end of a stream that cannot be completed."""
        ...

    def whole(self, choices: Mapping[int, Sequence[Delta]], usage: Usage) -> bytes:
        """Return the whole answer, with the given deltas of its choices."""
        ...


def scored_json(scored: ScoredToken, tokenizer: Tokenizer, *, least: float = -math.inf) -> Json:
    """Return a token and the most likely ones in its place; log-probabilities are at least
    ``least``.
    """

    def one(token: int, logprob: float | None) -> Json:
        data = tokenizer.token_bytes(token)
        return {
            "token": data.decode(errors="replace"),
            "logprob": None if logprob is None else max(logprob, least),
            "bytes": list(data),
        }

    top = [one(other.token, other.logprob) for other in scored.top]
    return {**one(scored.token, scored.logprob), "top_logprobs": top}


def arguments_object(text: str) -> Json:
    """Return the arguments of a call as an object, or within one if they cannot be read: the call
    was cut off, or they are nested too deeply.
    """
    try:
        return msgspec.json.decode(text, type=Json)
    except (msgspec.DecodeError, RecursionError):
        return {"arguments": text}


def event(data: bytes, name: str | None = None) -> bytes:
    """Return a server-sent event; ``data`` contains no line breaks."""
    if name is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
