"""The least number of tokens that a text can have, known from its bytes alone.

No token stands for more bytes than the longest entry of the vocabulary that has the byte in it. So
a byte that occurs in entries of up to L bytes accounts for at least 1/L of a token, and the sum
over a text is at most its number of tokens. It is far below the true number for prose, and near it
for what is long without meaning, such as digits or one character over and over.
"""

from __future__ import annotations

from collections.abc import Iterable

_PART_CHARACTERS = 64 * 1024
_COMPOSED_SHRINKS = 4
"""Normalization form C makes UTF-8 at most three times shorter (U+212A, 3 bytes, becomes K)."""


class SizeBound:
    """For one vocabulary. Immutable."""

    def __init__(
        self,
        pieces: Iterable[tuple[bytes, int]],
        *,
        composes: bool,
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        """``pieces`` are all tokens: the bytes in each, and the most bytes of text that it covers.

        ``composes``: whether texts are brought to normalization form C first. ``left_out``: bytes
        that have no token, so that any number of them may vanish.
        """
        longest = [1] * 256
        for piece, num_bytes in pieces:
            for byte in set(piece):
                if longest[byte] < num_bytes:
                    longest[byte] = num_bytes
        self._share = tuple(0 if b in left_out else 1 / longest[b] for b in range(256))
        self._composes = composes

    def least_tokens(self, text: str, enough: int) -> int:
        """The least number of tokens that ``text`` can have; counting stops above ``enough``."""
        shrinks = _COMPOSED_SHRINKS if self._composes and not text.isascii() else 1
        total = 0.0
        for start in range(0, len(text), _PART_CHARACTERS):
            part = text[start : start + _PART_CHARACTERS].encode("utf-8")
            total += sum(part.count(byte) * self._share[byte] for byte in set(part))
            if total > (enough + 1) * shrinks:
                break
        return int(total / shrinks * (1 - 1e-9))  # 1e-9: far above the sum's rounding error
