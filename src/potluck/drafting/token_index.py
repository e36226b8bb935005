"""An index of the places where runs of tokens occur in a growing text.

It is the match finder of a compressor: a hash table of runs of ``num_anchor`` tokens, and with each
place the one before it that has the same hash (hash chains, as in zlib's deflate). It takes 24
bytes per token at most. Adding a token, taking it back and looking for a match cost the same
however long the text is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

_NOWHERE = -1

_MAX_CANDIDATES = 16
"""Places that are compared with the end of a text, the latest first."""

MAX_MATCH_TOKENS = 32
"""Matches are compared no further: longer ones are no better."""

_BULK_TOKENS = 128
"""From so many tokens on NumPy is faster than a loop."""

_LEAST_BITS = 8

_MULTIPLIER = 0x9E3779B1
"""Knuth's multiplicative hash: 2^32 divided by the golden ratio, rounded to an odd number."""

_WORD = 0xFFFFFFFF


class TokenIndex:
    """The tokens of one text, and where runs of them are. Not thread-safe."""

    def __init__(self, num_anchor: int, *, max_candidates: int = _MAX_CANDIDATES) -> None:
        """``num_anchor``: the shortest match that is found; at least 1."""
        self._num_anchor = num_anchor
        self._max_candidates = max_candidates
        self._bits = _LEAST_BITS
        self._tokens = array("i")
        self._latest = array("i", [_NOWHERE]) * (1 << self._bits)
        self._earlier = array("i")  # of each place where a run ends: the one before it

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> Sequence[int]:
        """The text. It is the index's own, and only to be read."""
        return self._tokens

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens``."""
        start = len(self._tokens)
        self._tokens.extend(tokens)
        is_full = len(self._tokens) > 1 << self._bits
        if is_full or len(tokens) >= _BULK_TOKENS:
            self._build()
            return
        for place in range(start, len(self._tokens)):
            self._add(place)

    def truncate(self, num_tokens: int) -> None:
        """Forget the tokens from the index ``num_tokens`` on."""
        for place in range(len(self._tokens) - 1, num_tokens - 1, -1):
            earlier = self._earlier.pop()
            if place >= self._num_anchor - 1:
                self._latest[self._slot(self._tokens, place)] = earlier
        del self._tokens[num_tokens:]

    def longest_match(self, text: Sequence[int]) -> tuple[int, int]:
        """Find where the end of ``text`` occurs: the place after it, and how many tokens are alike.

        ``text`` may be :attr:`tokens`, whose very end is no match. Of equally long matches it is
        the latest. The length is 0 if there is none, and at most ``MAX_MATCH_TOKENS``. Of places
        with the same hash only the latest ``max_candidates`` are compared.
        """
        own = self._tokens
        last = len(text) - 1
        if last < self._num_anchor - 1:
            return 0, 0
        place = self._latest[self._slot(text, last)]
        if text is own:
            place = self._earlier[last]
        best_end = best = 0
        for _ in range(self._max_candidates):
            if place == _NOWHERE:
                break
            most = min(MAX_MATCH_TOKENS, place + 1, last + 1)
            # A candidate that is longer than the best one is equal where that one ended, too.
            if best < most and own[place - best] == text[last - best]:
                length = 0
                while length < most and own[place - length] == text[last - length]:
                    length += 1
                if length > best:
                    best_end, best = place + 1, length
                    if best == MAX_MATCH_TOKENS:
                        break
            place = self._earlier[place]
        return (best_end, best) if best >= self._num_anchor else (0, 0)

    def _add(self, place: int) -> None:
        if place < self._num_anchor - 1:
            self._earlier.append(_NOWHERE)
            return
        slot = self._slot(self._tokens, place)
        self._earlier.append(self._latest[slot])
        self._latest[slot] = place

    def _slot(self, tokens: Sequence[int], last: int) -> int:
        value = 0
        for index in range(last - self._num_anchor + 1, last + 1):
            value = ((value + tokens[index]) * _MULTIPLIER) & _WORD
        return value >> (32 - self._bits)

    def _build(self) -> None:
        """Index all tokens, in a table that is at most half full."""
        num_tokens = len(self._tokens)
        self._bits = max(_LEAST_BITS, num_tokens.bit_length() + 1)
        tokens = np.frombuffer(self._tokens, np.int32).astype(np.uint32)
        first = self._num_anchor - 1
        values = np.zeros(max(0, num_tokens - first), np.uint32)
        for offset in range(self._num_anchor):
            values = (values + tokens[offset : offset + len(values)]) * np.uint32(_MULTIPLIER)
        slots = values >> np.uint32(32 - self._bits)
        order = np.argsort(slots, kind="stable").astype(np.int32)
        same = slots[order[1:]] == slots[order[:-1]]
        earlier = np.full(num_tokens, _NOWHERE, np.int32)
        earlier[order[1:][same] + first] = order[:-1][same] + first
        latest = np.full(1 << self._bits, _NOWHERE, np.int32)
        ends = np.append(~same, True)[: len(order)]
        latest[slots[order[ends]]] = order[ends] + first
        self._earlier = array("i", earlier.tobytes())
        self._latest = array("i", latest.tobytes())
