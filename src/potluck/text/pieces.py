"""Encodings of the bytes of tokens in vocabularies.

Two encodings are in use. GPT-2's byte-level alphabet maps every byte to a printable character
(Radford et al. 2019, ``bytes_to_unicode`` of its encoder). SentencePiece stores text as it is, a
space as ``▁`` (U+2581), and a byte that is not a whole character as ``<0x0A>``.
"""

from __future__ import annotations

import enum
import re

SPACE_MARK = "▁"
"""SentencePiece's representation of a space."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Notation(enum.Enum):
    """An encoding of bytes as text."""

    BYTE_LEVEL = "byte-level"
    SENTENCE_PIECE = "sentencepiece"


class PieceType(enum.IntEnum):
    """The type of a SentencePiece vocabulary entry, as numbered in its files and in GGUF.

    Entries of the type ``USER_DEFINED`` are always one token wherever they occur; ``UNUSED`` ones
    never occur.
    """

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_alphabet() -> tuple[str, ...]:
    """Return the character of every byte: itself if printable in Latin-1, else from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters = []
    num_moved = 0
    for byte in range(256):
        if byte in printing:
            characters.append(chr(byte))
        else:
            characters.append(chr(0x100 + num_moved))
            num_moved += 1
    return tuple(characters)


BYTE_ALPHABET = _byte_alphabet()
"""The character for each byte in the byte-level encoding."""


def byte_level(data: bytes) -> str:
    """Return bytes in the byte-level encoding."""
    return "".join([BYTE_ALPHABET[byte] for byte in data])


_BYTE_OF = {character: byte for byte, character in enumerate(BYTE_ALPHABET)}


def piece_bytes(piece: str, notation: Notation) -> bytes:
    """Return the bytes that a vocabulary entry represents.

    A byte-level piece with a character outside the alphabet is read as plain text. Lone surrogates
    represent bytes that are not UTF-8 (``surrogateescape``), as in GGUF metadata.
    """
    if notation is Notation.BYTE_LEVEL:
        try:
            return bytes([_BYTE_OF[character] for character in piece])
        except KeyError:
            return piece.encode("utf-8", "surrogateescape")
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace(SPACE_MARK, " ").encode("utf-8", "surrogateescape")


def byte_piece(byte: int, notation: Notation) -> str:
    """Return the piece that represents a single byte."""
    return BYTE_ALPHABET[byte] if notation is Notation.BYTE_LEVEL else f"<0x{byte:02X}>"
