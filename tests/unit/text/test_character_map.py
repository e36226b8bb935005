"""Replaced characters; the sentencepiece library says what is right."""

from __future__ import annotations

import random
import struct
import sys
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
from support.models.text_models import HARD_TEXTS, SENTENCES, train_sentence_piece

from potluck.text.sentence_piece import CharacterMap, read_sentence_piece, trim_spaces

RULES = ("nmt_nfkc", "nfkc", "nfkc_cf")


@cache
def charsmap(rule: str, directory: Path) -> bytes:
    path = directory / "tokenizer.model"
    path.write_bytes(train_sentence_piece(normalization_rule_name=rule))
    return read_sentence_piece(path).charsmap


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_characters_are_replaced_as_by_the_library(rule: str, tmp_path: Path) -> None:
    ours = CharacterMap(charsmap(rule, tmp_path))
    library = sentencepiece.SentencePieceNormalizer(
        rule_name=rule,
        escape_whitespaces=False,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
    )
    rng = random.Random(5)
    characters = [chr(code) for code in range(1, 0x3100) if chr(code).isprintable()]
    characters += ["ﬁ", "ｶﾞ", "㍿", "Å", "e\u0301", "\r\n", "\u1100\u1161\u11a8", "\u0344"]
    texts = ["".join(rng.choices(characters, k=20)) for _ in range(500)]
    for text in (*HARD_TEXTS, *SENTENCES, *characters, *texts):
        assert ours.replace(text) == library.normalize(text), text.encode("unicode_escape")


def test_only_what_begins_a_known_text_is_looked_at(tmp_path: Path) -> None:
    ours = CharacterMap(charsmap("nfkc", tmp_path))
    assert ours.replace("") == ""
    text = "plain ASCII text, " * 1000
    assert ours.replace(text) == text


@pytest.mark.parametrize(
    "data", [b"", b"\x00\x04", struct.pack("<I", 2048) + b"x" * 1024, b"x" * 9]
)
def test_malformed_maps_are_told(data: bytes) -> None:
    with pytest.raises(ValueError, match="character map"):
        CharacterMap(data)


def test_maps_of_any_bytes_do_no_harm() -> None:
    rng = random.Random(7)
    for _ in range(50):
        ours = CharacterMap(struct.pack("<I", 4096) + rng.randbytes(4096 + 100))
        ours.replace("".join(chr(rng.randrange(1, 0xD800)) for _ in range(200)))
    assert sys.getsizeof(ours) < 10_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [("  a   b ", "a b"), ("a b", "a b"), ("   ", ""), ("", ""), ("a\n  b", "a\n b")],
)
def test_spaces_are_trimmed(text: str, expected: str) -> None:
    assert trim_spaces(text) == expected
