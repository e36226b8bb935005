"""``potluck.text.fill_in``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.models.text_models import (
    HARD_TEXTS,
    LLAMA3_SPECIAL,
    byte_level_metadata,
    sentence_piece_metadata,
    train_byte_level,
)
from tokenizers import pre_tokenizers as pre

from potluck.errors import PromptTooLongError
from potluck.text.fill_in import FillIn, find_fill_in
from potluck.text.gguf import build_tokenizer, read_fill_in_tokens
from potluck.text.pieces import PieceType
from potluck.text.tokenizer import TextTokenizer

GPT2 = pre.ByteLevel(add_prefix_space=False)
BEFORE, AFTER = "def f(x):\n    return ", "\n\nprint(f(3)) <|fim_middle|>"


def byte_level(special: Sequence[str]) -> TextTokenizer:
    return build_tokenizer(byte_level_metadata(train_byte_level(GPT2), "gpt-2", special))


def code_llama(**named: int) -> dict[str, Any]:
    """Metadata in the style of CodeLlama, whose tokens for gaps are at the end."""
    metadata: dict[str, Any] = dict(sentence_piece_metadata())
    for key, values in (
        ("tokens", [f"\u2581<{name}>" for name in ("PRE", "SUF", "MID", "EOT")]),
        ("scores", [0.0] * 4),
        ("token_type", [PieceType.CONTROL] * 4),
    ):
        metadata[f"tokenizer.ggml.{key}"] = [*metadata[f"tokenizer.ggml.{key}"], *values]
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in named.items()}


@pytest.mark.parametrize(
    ("special", "form"),
    [
        (
            ("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|file_sep|>"),
            "<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>",
        ),
        (
            ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>"),
            "<fim_prefix>{before}<fim_suffix>{after}<fim_middle>",
        ),
        (
            ("<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"),
            "<｜fim▁begin｜>{before}<｜fim▁hole｜>{after}<｜fim▁end｜>",
        ),
        (("[PREFIX]", "[MIDDLE]", "[SUFFIX]"), "[SUFFIX]{after}[PREFIX]{before}"),
        (
            ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"),
            "<[fim-suffix]>{after}<[fim-prefix]>{before}<[fim-middle]>",
        ),
    ],
)
def test_prompts_of_families(special: tuple[str, ...], form: str) -> None:
    tokenizer = byte_level(("<|endoftext|>", *special))
    found = find_fill_in(tokenizer)
    assert found is not None
    # Control tokens in what a user wrote are text.
    prompt = found.prompt(tokenizer, BEFORE, AFTER)
    expected = list(tokenizer.encode(""))
    for part in _parts(form):
        if part in ("before", "after"):
            text = BEFORE if part == "before" else AFTER
            expected += tokenizer.encode(text, add_bos=False)
        else:
            expected += tokenizer.encode(part, add_bos=False, parse_special=True)
    assert prompt == expected
    ends = {tokenizer.encode(text, add_bos=False, parse_special=True)[0] for text in special}
    assert {tokenizer.control_text(token) for token in found.ends} <= set(special)
    if "<|fim_pad|>" in special:
        assert found.ends == ends


def _parts(form: str) -> list[str]:
    return [part for part in form.replace("}", "{").split("{") if part]


def test_a_vocabulary_without_such_tokens_has_no_gaps() -> None:
    assert find_fill_in(byte_level(LLAMA3_SPECIAL)) is None
    assert find_fill_in(byte_level(("<|fim_prefix|>", "<|fim_suffix|>"))) is None


def test_code_llama_reads_what_follows_a_gap_without_a_space_before_it() -> None:
    tokenizer = build_tokenizer(code_llama())
    found = find_fill_in(tokenizer)
    assert found is not None
    for text in ("x", " x", "\nprint", "The dog", ""):
        prompt = found.prompt(tokenizer, text, text)
        cut = prompt.index(found.suffix)
        assert prompt[:2] == [*tokenizer.encode(""), found.prefix]
        assert prompt[2:cut] == tokenizer.encode(text, add_bos=False)
        assert prompt[-1] == found.middle
        after = b"".join(map(tokenizer.token_bytes, prompt[cut + 1 : -1]))
        assert after.decode() == text
    assert tokenizer.control_text(max(found.ends)) == "\u2581<EOT>"


def test_every_text_comes_whole() -> None:
    for tokenizer in (build_tokenizer(code_llama()), byte_level(("[PREFIX]", "[SUFFIX]"))):
        found = find_fill_in(tokenizer)
        assert found is not None
        for text in HARD_TEXTS:
            tokens = found.prompt(tokenizer, "a", text)
            begin = tokens.index(found.suffix) + 1
            end = tokens.index(found.prefix) if found.is_suffix_first else len(tokens) - 1
            data = b"".join(map(tokenizer.token_bytes, tokens[begin:end]))
            expected = text.replace("\u2581", " ") if tokenizer.strips_prefix_space else text
            assert data.decode() == expected


def test_tokens_that_a_file_names() -> None:
    tokenizer = byte_level(("<|endoftext|>", "<a>", "<b>", "<c>"))
    size = tokenizer.vocab_size
    for keys in (
        ("fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id"),
        ("prefix_token_id", "suffix_token_id", "middle_token_id"),
    ):
        metadata = byte_level_metadata(train_byte_level(GPT2), "gpt-2", ("<|endoftext|>",))
        metadata["tokenizer.ggml.tokens"] = [f"t{number}" for number in range(size)]
        metadata |= {f"tokenizer.ggml.{key}": size - 3 + number for number, key in enumerate(keys)}
        named = read_fill_in_tokens(metadata)
        assert named == {"prefix": size - 3, "suffix": size - 2, "middle": size - 1}
    assert find_fill_in(tokenizer, named) == FillIn(
        prefix=size - 3,
        suffix=size - 2,
        middle=size - 1,
        ends=frozenset({size - 3, size - 2, size - 1}),
    )
    assert find_fill_in(tokenizer, {"prefix": 1, "suffix": 2}) is None
    assert read_fill_in_tokens(byte_level_metadata(train_byte_level(GPT2), "gpt-2", ("<e>",))) == {}


def test_what_is_too_long_is_refused() -> None:
    for tokenizer in (build_tokenizer(code_llama()), byte_level(("[PREFIX]", "[SUFFIX]"))):
        found = find_fill_in(tokenizer)
        assert found is not None
        length = len(found.prompt(tokenizer, "abc", "def"))
        assert len(found.prompt(tokenizer, "abc", "def", max_tokens=length)) == length
        with pytest.raises(PromptTooLongError):
            found.prompt(tokenizer, "abc", "def", max_tokens=length - 1)
