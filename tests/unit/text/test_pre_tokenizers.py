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
TINY_AYA = ["It's", " Hello", "World", " ", "12", "345", "?!\n\n", " ", " x"]
DEEPSEEK3 = ["It", "'s", " HelloWorld", " ", "123", "45", "?!\n\n", " ", " x"]
EXAONE_MOE = ["It", "'s", " HelloWorld", " ", *"12345", "?!\n", "\n", " ", " x"]
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
        ("falcon-h1", LLAMA3),
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
        ("olmo", GPT2),
        ("exaone4", GPT2),
        ("granite-docling", GPT2),
        ("command-r", DIGITS),
        ("exaone", DIGITS),
        ("dbrx", LLAMA3),
        ("chatglm-bpe", LLAMA3),
        ("glm4", LLAMA3),
        ("glm5", LLAMA3),
        ("hunyuan", QWEN2),
        ("solar-open", QWEN2),
        ("qwen35", QWEN2),
        ("minimax-m2", GPT4O),
        ("kimi-k2", GPT4O),
        ("llama4", GPT4O),
        ("kanana2", GPT4O),
        ("tiny_aya", TINY_AYA),
        ("cohere2moe", TINY_AYA),
        ("hunyuan-dense", DEEPSEEK3),
        ("exaone-moe", EXAONE_MOE),
    ],
)
def test_where_a_text_is_cut(name: str, expected: list[str]) -> None:
    assert words(name, TEXT) == expected


def test_what_else_differs_between_them() -> None:
    ignoring = {name for name, each in BYTE_PRE_TOKENIZERS.items() if each.ignores_merges}
    assert ignoring == {
        *("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "midm-2.0"),
        *("falcon-h1", "tekken", "minicpm5", "glm4", "glm5", "lfm2", "kimi-k2"),
    }
    beginning = {name for name, each in BYTE_PRE_TOKENIZERS.items() if each.adds_bos}
    assert beginning == ignoring - {"minicpm5", "glm4", "glm5", "kimi-k2"}
    composing = {name for name, each in BYTE_PRE_TOKENIZERS.items() if each.composes}
    assert composing == {"qwen2", "qwen35", "olmo", "mpt", "command-r"}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        # Vowel signs are marks: in Hindi most words have one.
        ("qwen2", "हिन्दी!", ["ह", "िन", "्द", "ी!"]),
        ("qwen35", "हिन्दी!", ["हिन्दी", "!"]),
        # Letters that single spaces separate are one word, as in initials.
        ("exaone-moe", "U S A x1", ["U S A x", "1"]),
        # Chinese characters are words of their own.
        ("gpt-4o", "a中文b", ["a中文b"]),
        ("kimi-k2", "a中文b の'll", ["a", "中文", "b", " の'll"]),
        # Digits are cut in threes from the right, where they end a word.
        ("tiny_aya", "1234567 12345x", ["1", "234", "567", " ", "123", "45", "x"]),
    ],
)
def test_what_only_few_of_them_do(name: str, text: str, expected: list[str]) -> None:
    assert words(name, text) == expected
