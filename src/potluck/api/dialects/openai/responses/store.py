"""Stores responses that later requests can continue, in the memory of one gateway."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from potluck.types.text import ChatMessage

MAX_STORED_RESPONSES = 4096
MAX_STORED_BYTES = 64 * 2**20
"""Approximate limit of the stored texts. The least recently used responses are evicted."""

_OVERHEAD_BYTES = 512
"""Overhead of a message or a response in addition to its texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response as JSON, the messages that it and its request added to ``previous``, and the ids
    of its items.
    """

    response: bytes
    messages: tuple[ChatMessage, ...]
    item_ids: tuple[str, ...] = ()
    previous: StoredResponse | None = None
    num_bytes: int = field(init=False)
    """Approximate memory use, including the responses that it continues: they stay as long as it
    does."""

    def __post_init__(self) -> None:
        earlier = 0 if self.previous is None else self.previous.num_bytes
        own = _OVERHEAD_BYTES + len(self.response) + sum(map(_num_bytes, self.messages))
        object.__setattr__(self, "num_bytes", earlier + own)

    def chat(self) -> list[ChatMessage]:
        """Return the whole chat up to the end of the response."""
        parts: list[Sequence[ChatMessage]] = []
        at: StoredResponse | None = self
        while at is not None:
            parts.append(at.messages)
            at = at.previous
        return [message for part in reversed(parts) for message in part]


def _num_bytes(message: ChatMessage) -> int:
    """Return the approximate memory use of a message: one to four bytes per character."""
    texts = [message.content, message.reasoning or ""]
    texts += [each.arguments for each in message.tool_calls]
    return _OVERHEAD_BYTES + sum(map(sys.getsizeof, texts))


class ResponseStore:
    """The most recent responses. Thread-safe.

    Each response keeps all that precede it in its chain, and they count for each response of the
    chain.
    """

    def __init__(
        self,
        *,
        max_responses: int = MAX_STORED_RESPONSES,
        max_bytes: int = MAX_STORED_BYTES,
    ) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._responses_of: dict[str, str] = {}
        """The responses that items belong to, by the ids of both."""
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, response_id: str) -> StoredResponse | None:
        """Return a response and mark it as used; return None if it is not stored."""
        with self._lock:
            stored = self._responses.get(response_id)
            if stored is not None:
                self._responses.move_to_end(response_id)
            return stored

    def item(self, item_id: str) -> dict[str, Any] | None:
        """Return an item of a stored response; None if there is none with this id."""
        with self._lock:
            owner = self._responses_of.get(item_id)
        stored = None if owner is None else self.get(owner)
        if stored is None:
            return None
        output = msgspec.json.decode(stored.response)["output"]
        return next((item for item in output if item["id"] == item_id), None)

    def put(self, response_id: str, stored: StoredResponse) -> None:
        """Store a response until it is evicted."""
        with self._lock:
            self._responses[response_id] = stored
            self._responses_of |= dict.fromkeys(stored.item_ids, response_id)
            self._num_bytes += stored.num_bytes
            while self._responses and (
                len(self._responses) > self._max_responses or self._num_bytes > self._max_bytes
            ):
                _, oldest = self._responses.popitem(last=False)
                self._forget(oldest)

    def remove(self, response_id: str) -> bool:
        """Remove a response; return whether it was stored."""
        with self._lock:
            stored = self._responses.pop(response_id, None)
            if stored is not None:
                self._forget(stored)
            return stored is not None

    def _forget(self, stored: StoredResponse) -> None:
        self._num_bytes -= stored.num_bytes
        for item_id in stored.item_ids:
            self._responses_of.pop(item_id, None)
