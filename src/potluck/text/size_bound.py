"""A lower bound on the number of tokens of a text, from its bytes alone.

No token represents more bytes than the longest vocabulary entry that contains the byte. So a byte
that occurs in entries of up to L bytes accounts for at least 1/L of a token, and the sum over a
text is at most its number of tokens. The bound is far below the true number for prose, and close to
it for long texts without meaning, such as digits or one repeated character.
"""

from __future__ import annotations

from collections.abc import Iterable

_PART_CHARACTERS = 64 * 1024
_COMPOSED_SHRINKS = 4
"""Normalization form C makes UTF-8 at most three times shorter (U+212A, 3 bytes, becomes K)."""


class SizeBound:
    """The bound for one vocabulary. Immutable."""

    def __init__(
        self,
        pieces: Iterable[tuple[bytes, int]],
        *,
        composes: bool,
        left_out: frozenset[int] = frozenset(),
    ) -> None:
        """``pieces`` are all tokens: the bytes in each, and the most bytes of text that it covers.

        ``composes``: whether texts are converted to normalization form C first. ``left_out``: bytes
        without a token, any number of which may be dropped.
        """
        longest = [1] * 256
        for piece, num_bytes in pieces:
            for byte in set(piece):
                if longest[byte] < num_bytes:
                    longest[byte] = num_bytes
        self._share = tuple(0 if b in left_out else 1 / longest[b] for b in range(256))
        self._composes = composes

    def least_tokens(self, text: str, enough: int) -> int:
        """Return a lower bound on the number of tokens of ``text``; counting stops above
        ``enough``.
        """
        shrinks = _COMPOSED_SHRINKS if self._composes and not text.isascii() else 1
        total = 0.0
        for start in range(0, len(text), _PART_CHARACTERS):
            part = text[start : start + _PART_CHARACTERS].encode("utf-8")
            total += sum(part.count(byte) * self._share[byte] for byte in set(part))
            if total > (enough + 1) * shrinks:
                break
        return int(total / shrinks * (1 - 1e-9))  # 1e-9: far above the sum's rounding error
