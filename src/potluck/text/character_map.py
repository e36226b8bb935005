r"""Normalization in SentencePiece models: character replacement and spaces.

The character map (``precompiled_charsmap``) is a double-array trie as built by Darts
(https://github.com/s-yata/darts-clone), over the UTF-8 bytes of the text to replace; its values are
offsets into a table of null-terminated replacements. The ``tokenizers`` library implements the same
step, but splits the text into graphemes first, and so loses the line feed of ``\r\n``.
"""

from __future__ import annotations

import re
import struct

import numpy as np

_NO_CHARACTER = re.compile(r"(?!)")
_SPACES = re.compile(" {2,}")
_LONGEST_SOURCE = 32
"""Maximum length of a key; SentencePiece's built-in tables have keys of up to 18 characters."""


class CharacterMap:
    """Replaces characters, using the longest match at each position. Immutable."""

    def __init__(self, charsmap: bytes) -> None:
        """Raise ``ValueError`` if ``charsmap`` is malformed."""
        if len(charsmap) < 4:
            raise ValueError("the character map is truncated")
        (num_bytes,) = struct.unpack_from("<I", charsmap)
        if num_bytes % 4 or num_bytes < 1024 or num_bytes > len(charsmap) - 4:
            raise ValueError("the character map has a trie of invalid size")
        self._units = np.frombuffer(charsmap, "<u4", num_bytes // 4, 4)
        self._table = charsmap[4 + num_bytes :]
        self._start = _offset(int(self._units[0]))
        self._begins: dict[str, bool] = {}

    def replace(self, text: str) -> str:
        """Return ``text`` with everything replaced that the map contains."""
        begins = [character for character in set(text) if self._may_begin(character)]
        pattern = re.compile(f"[{re.escape(''.join(begins))}]") if begins else _NO_CHARACTER
        parts = []
        done = 0
        for match in pattern.finditer(text):
            start = match.start()
            if start < done:
                continue
            found = self._longest(text[start : start + _LONGEST_SOURCE])
            if found is not None:
                length, replacement = found
                parts += [text[done:start], replacement]
                done = start + length
        parts.append(text[done:])
        return "".join(parts)

    def _may_begin(self, character: str) -> bool:
        known = self._begins.get(character)
        if known is None:
            known = self._begins[character] = self._walk(self._start, character) is not None
        return known

    def _longest(self, text: str) -> tuple[int, str] | None:
        """Return the length of the longest match in ``text``, and its replacement."""
        found = None
        position = self._start
        for length, character in enumerate(text, 1):
            step = self._walk(position, character)
            if step is None:
                break
            position, has_value = step
            if has_value:
                found = (length, self._replacement(self._unit(position) & 0x7FFFFFFF))
        return found

    def _walk(self, position: int, character: str) -> tuple[int, bool] | None:
        """Follow ``character`` in the trie; return the node, and whether it has a value."""
        unit = 0
        for byte in character.encode("utf-8"):
            unit = self._unit(position ^ byte)
            if unit & 0x800000FF != byte:  # this bit marks units that hold a value
                return None
            position ^= byte ^ _offset(unit)
        return position, bool(unit >> 8 & 1)

    def _unit(self, position: int) -> int:
        return int(self._units[position]) if position < len(self._units) else 0

    def _replacement(self, start: int) -> str:
        end = self._table.find(b"\0", start)
        return self._table[start : max(start, end)].decode("utf-8", errors="replace")


def trim_spaces(text: str) -> str:
    """Return ``text`` with single spaces between words and none at either end."""
    return _SPACES.sub(" ", text.strip(" "))


def _offset(unit: int) -> int:
    """Return the offset of a unit's children, to be applied with exclusive or."""
    return (unit >> 10) << ((unit & 0x200) >> 6)
