"""Notations of token bytes."""

from __future__ import annotations

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from potluck.text.pieces import BYTE_ALPHABET, Notation, byte_piece, piece_bytes


def test_the_alphabet_is_the_librarys() -> None:
    assert sorted(BYTE_ALPHABET) == sorted(ByteLevel.alphabet())
    splitter = ByteLevel(add_prefix_space=False, use_regex=False)
    for character in ("\x00", "\n", " ", "a", "\x7f", "é", "中", "😀"):
        [(expected, _)] = splitter.pre_tokenize_str(character)
        assert "".join(BYTE_ALPHABET[byte] for byte in character.encode()) == expected


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("Ġhello", b" hello"),
        ("Ċ", b"\n"),
        ("ä½", b"\xe4\xbd"),
        ("Ā", b"\x00"),
        ("▁中", "▁中".encode()),
    ],
)
def test_byte_level(piece: str, expected: bytes) -> None:
    assert piece_bytes(piece, Notation.BYTE_LEVEL) == expected


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("▁hello", b" hello"),
        ("▁▁", b"  "),
        ("<0x0A>", b"\n"),
        ("<0xff>", b"\xff"),
        ("<0x0>", b"<0x0>"),
        ("Ġ", "Ġ".encode()),
    ],
)
def test_sentence_piece(piece: str, expected: bytes) -> None:
    assert piece_bytes(piece, Notation.SENTENCE_PIECE) == expected


@pytest.mark.parametrize("notation", Notation)
def test_every_byte_has_a_piece(notation: Notation) -> None:
    for byte in range(256):
        assert piece_bytes(byte_piece(byte, notation), notation) == bytes([byte])
