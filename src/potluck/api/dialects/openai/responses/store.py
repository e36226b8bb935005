"""Responses that later requests may continue, in the memory of one gateway."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from potluck.api.rendering import Json
from potluck.types.text import ChatMessage

MAX_STORED_RESPONSES = 4096
MAX_STORED_BYTES = 64 * 2**20
"""Of texts, about. The oldest go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response, and the chat up to its end, without the instructions.

    ``num_bytes`` is about what it takes in addition to ``previous``, whose chat it continues.
    """

    response: Json
    messages: tuple[ChatMessage, ...]
    previous: StoredResponse | None
    num_bytes: int

    def chat(self) -> list[ChatMessage]:
        """The whole chat up to the end of the response."""
        parts: list[Sequence[ChatMessage]] = []
        at: StoredResponse | None = self
        while at is not None:
            parts.append(at.messages)
            at = at.previous
        return [message for part in reversed(parts) for message in part]


class ResponseStore:
    """The latest responses. A chain of them keeps its beginnings, which are counted once more."""

    def __init__(
        self,
        *,
        max_responses: int = MAX_STORED_RESPONSES,
        max_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response, which has been used now; None if it is not there any more."""
        stored = self._responses.get(response_id)
        if stored is not None:
            self._responses.move_to_end(response_id)
        return stored

    def put(self, response_id: str, stored: StoredResponse) -> None:
        """Keep a response for as long as there is room."""
        self._responses[response_id] = stored
        self._num_bytes += stored.num_bytes
        while self._responses and (
            len(self._responses) > self._max_responses or self._num_bytes > self._max_bytes
        ):
            _, oldest = self._responses.popitem(last=False)
            self._num_bytes -= oldest.num_bytes

    def remove(self, response_id: str) -> bool:
        """Forget a response; returns whether it was there."""
        stored = self._responses.pop(response_id, None)
        if stored is not None:
            self._num_bytes -= stored.num_bytes
        return stored is not None
