"""Where each kind of byte-level vocabulary cuts a text; expected words are worked out by hand."""

from __future__ import annotations

import pytest

from potluck.text.pieces import BYTE_ALPHABET
from potluck.text.pre_tokenizers import BYTE_PRE_TOKENIZERS

_BYTES = {character: byte for byte, character in enumerate(BYTE_ALPHABET)}

TEXT = "It's HelloWorld 12345?!\n\n  x"
QWEN2 = ["It", "'s", " HelloWorld", " ", *"12345", "?!\n\n", " ", " x"]
LLAMA3 = ["It", "'s", " HelloWorld", " ", "123", "45", "?!\n\n", " ", " x"]
GPT2 = ["It", "'s", " HelloWorld", " 12345", "?!", "\n\n ", " x"]
DIGITS = ["It", "'s", " HelloWorld", " ", *"12345", "?!", "\n\n ", " x"]
SEED_CODER = ["It", "'s", " HelloWorld", " ", *"12345", "?!", "\n\n", " ", " x"]
GPT4O = ["It's", " Hello", "World", " ", "123", "45", "?!\n\n", " ", " x"]
TEKKEN = ["It", "'s", " Hello", "World", " ", *"12345", "?!\n\n", " ", " x"]
VIKING = ["It's", " HelloWorld", " ", *"12345", "?!\n\n ", " x"]


def words(name: str, text: str) -> list[str]:
    pieces = BYTE_PRE_TOKENIZERS[name].build().pre_tokenize_str(text)
    return [bytes(_BYTES[character] for character in piece).decode() for piece, _ in pieces]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-2", GPT2),
        ("mellum", GPT2),
        ("trillion", GPT2),
        ("a.x-4.0", GPT2),
        ("llama-bpe", LLAMA3),
        ("llama3", LLAMA3),
        ("falcon3", LLAMA3),
        ("pixtral", LLAMA3),
        ("midm-2.0", LLAMA3),
        ("minicpm5", LLAMA3),
        ("qwen2", QWEN2),
        ("megrez", QWEN2),
        ("kormo", QWEN2),
        ("f2llmv2", QWEN2),
        ("deepseek-r1-qwen", QWEN2),
        ("smollm", DIGITS),
        ("minerva-7b", DIGITS),
        ("seed-coder", SEED_CODER),
        ("gpt-4o", GPT4O),
        ("tekken", TEKKEN),
        ("viking", VIKING),
    ],
)
def test_where_a_text_is_cut(name: str, expected: list[str]) -> None:
    assert words(name, TEXT) == expected


def test_what_else_differs_between_them() -> None:
    ignoring = {name for name, each in BYTE_PRE_TOKENIZERS.items() if each.ignores_merges}
    assert ignoring == {
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"),
        *("tekken", "minicpm5"),
    }
    beginning = {name for name, each in BYTE_PRE_TOKENIZERS.items() if each.adds_bos}
    assert beginning == ignoring - {"minicpm5"}
