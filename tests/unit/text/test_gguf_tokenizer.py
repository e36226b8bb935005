"""Tokenizers and templates from GGUF metadata."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from support.models.text_models import (
    GEMMA4_SPECIAL,
    HARD_TEXTS,
    LLAMA3_SPECIAL,
    LLAMA3_SPLIT,
    QWEN2_SPECIAL,
    QWEN2_SPLIT,
    SENTENCES,
    byte_level_metadata,
    gemma4_metadata,
    gemma_json,
    regex_byte_level,
    sentence_piece,
    sentence_piece_metadata,
    train_byte_level,
)
from tokenizers import Tokenizer, normalizers
from tokenizers import pre_tokenizers as pre

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text.bpe import merges_from_scores
from potluck.text.gguf import build_tokenizer, list_gguf_tokens, read_chat_template
from potluck.text.pre_tokenizers import BYTE_PRE_TOKENIZERS

GPT2 = pre.ByteLevel(add_prefix_space=False)
SMOLLM = pre.Sequence([pre.Digits(individual_digits=True), GPT2])


@pytest.mark.parametrize(
    ("name", "pre_tokenizer", "special"),
    [
        ("llama-bpe", regex_byte_level(LLAMA3_SPLIT), LLAMA3_SPECIAL),
        ("qwen2", regex_byte_level(QWEN2_SPLIT), QWEN2_SPECIAL),
        ("gpt-2", GPT2, ("<|endoftext|>",)),
        ("smollm", SMOLLM, QWEN2_SPECIAL),
    ],
)
def test_byte_level_ids_are_those_of_the_library(
    name: str, pre_tokenizer: pre.PreTokenizer, special: tuple[str, ...]
) -> None:
    library = train_byte_level(pre_tokenizer)
    if name == "qwen2":
        library.normalizer = normalizers.NFC()
    tokenizer = build_tokenizer(byte_level_metadata(library, name, special))
    assert tokenizer.special_tokens == special
    for text in (*HARD_TEXTS, *SENTENCES):
        tokens = tokenizer.encode(text, add_bos=False)
        assert tokens == library.encode(text).ids, text
        assert tokenizer.decode(tokens) == library.decode(tokens)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tokenizer.ggml.add_bos_token": False},  # wrong in some files, and overruled in llama.cpp
        {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gemma4"},
    ],
)
def test_ids_of_gemma_4_are_those_of_the_library(changes: dict[str, object]) -> None:
    library = Tokenizer.from_str(gemma_json())
    metadata = {**gemma4_metadata(), **changes}
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.encode("") == [2]
    for text in (*HARD_TEXTS, *SENTENCES):
        tokens = tokenizer.encode(text, parse_special=True)
        assert tokens == library.encode(text).ids, text
        assert tokenizer.decode(tokens) == library.decode(tokens)


def test_tokens_without_a_text_are_left_alone() -> None:
    metadata = sentence_piece_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "", ""]  # type: ignore[misc]
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.scores"] += [0.0, 0.0]  # type: ignore[operator]
    metadata["tokenizer.ggml.token_type"] += [5, 5]  # type: ignore[operator]
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.vocab_size == len(tokens)
    assert tokenizer.encode("the", add_bos=False) == sentence_piece().encode("the")


def test_what_is_special_about_gemma_4() -> None:
    tokenizer = build_tokenizer(gemma4_metadata())
    # Tokens of tool calls are no words of users, though files have them as such.
    assert set(tokenizer.special_tokens) == set(GEMMA4_SPECIAL)
    response = GEMMA4_SPECIAL.index("<|tool_response>")
    assert tokenizer.token_bytes(response) == b""
    assert tokenizer.control_text(response) == "<|tool_response>"
    assert response not in tokenizer.encode("<|tool_response>")
    assert response in tokenizer.encode("<|tool_response>", parse_special=True)
    # It stops there and at the ends of texts and turns, but not at HTML's end of a strike-through.
    assert [tokenizer.control_text(token) for token in tokenizer.eos_token_ids] == [
        *("<eos>", "<turn|>", "<|tool_response>")
    ]
    assert tokenizer.decode(tokenizer.encode("<s>x</s>", parse_special=True)) == "<s>x</s>"


def test_merges_of_gemma_4_are_needed() -> None:
    metadata = gemma4_metadata()
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(UnsupportedModelError, match="merges"):
        build_tokenizer(metadata)


@pytest.mark.parametrize("name", BYTE_PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_the_text(name: str) -> None:
    metadata = byte_level_metadata(train_byte_level(GPT2), name, ("<|endoftext|>",))
    tokenizer = build_tokenizer(metadata)
    for text in (*HARD_TEXTS, *SENTENCES):
        composes = BYTE_PRE_TOKENIZERS[name].composes
        composed = text.replace("e\u0301", "é") if composes else text
        assert tokenizer.decode(tokenizer.encode(text)) == composed


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", ["Hi", " there", ",", " x", "123", "4", " ", "=", "5"]),
        ("tekken", ["Hi", " there", ",", " x", "1", "2", "3", "4", " =", "5"]),
        ("deepseek-llm", ["Hi", " there", ",", " x", "1234", " =", "5"]),
        ("deepseek-coder", ["Hi", " there", ",", " x", "1", "2", "3", "4", " =", "5"]),
        ("deepseek-v3", ["Hi", " there", ",", " x", "123", "4", " =", "5"]),
    ],
)
def test_how_the_other_pre_tokenizers_cut(name: str, expected: list[str]) -> None:
    words = BYTE_PRE_TOKENIZERS[name].build().pre_tokenize_str("Hi there, x1234 =5")
    assert [word.replace("Ġ", " ") for word, _ in words] == expected


def test_a_word_that_is_a_token_ignores_merges() -> None:
    library = train_byte_level(GPT2)
    metadata = byte_level_metadata(library, "llama-bpe", LLAMA3_SPECIAL)
    metadata["tokenizer.ggml.merges"] = []
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    word = next(text for text in tokens if re.fullmatch("[a-z]{3,}", text))
    with_words = build_tokenizer(metadata)
    without = build_tokenizer({**metadata, "tokenizer.ggml.pre": "smaug-bpe"})
    assert with_words.encode(word, add_bos=False) == [tokens.index(word)]
    assert len(without.encode(word, add_bos=False)) == len(word)


def test_sentence_piece_ids_are_its_own() -> None:
    processor = sentence_piece()
    tokenizer = build_tokenizer(sentence_piece_metadata())
    rng = random.Random(0)
    runs = ["a", "aa", " ", "  ", "=", "-", "ha", "ab", "the", "\n", "(", ".", "。"]
    texts = ["".join(rng.choices(runs, k=rng.randint(1, 40))) for _ in range(500)]
    everything = "".join(SENTENCES)
    texts += ["".join(rng.choices(everything, k=rng.randint(1, 30))) for _ in range(500)]
    for text in (*HARD_TEXTS, *SENTENCES, *texts):
        expected = processor.encode(text)
        assert tokenizer.encode(text, add_bos=False) == expected, text
        assert tokenizer.decode(expected) == processor.decode(expected)


def test_sentence_piece_around_control_tokens() -> None:
    tokenizer = build_tokenizer(sentence_piece_metadata())
    hello = tokenizer.encode("hello", add_bos=False)
    assert tokenizer.encode("hello</s>hello", parse_special=True) == [1, *hello, 2, *hello]
    assert tokenizer.strips_prefix_space
    assert tokenizer.decode(hello) == "hello"
    assert b"".join(map(tokenizer.token_bytes, hello)) == b" hello"


def test_without_prefix_space() -> None:
    metadata = {**sentence_piece_metadata(), "tokenizer.ggml.add_space_prefix": False}
    tokenizer = build_tokenizer(metadata)
    assert not tokenizer.strips_prefix_space
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_control_tokens_in_text_stay_text() -> None:
    tokenizer = build_tokenizer(sentence_piece_metadata())
    tokens = tokenizer.encode("</s><unk><0x41>")
    assert not {0, 2} & set(tokens)
    assert tokenizer.decode(tokens) == "</s><unk><0x41>"
    [byte] = [t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == b"\xff"]
    assert tokenizer.decode([byte]) == "\ufffd"


@pytest.mark.parametrize(
    ("changes", "adds_bos", "ends"),
    [
        ({}, True, ("<|eot_id|>", "<|end_of_text|>")),
        ({"eos_token_id": "<|eot_id|>"}, True, ("<|eot_id|>", "<|end_of_text|>")),
        (
            {"eos_token_id": "<|end_of_text|>", "eot_token_id": "<|end_header_id|>"},
            True,
            ("<|end_of_text|>", "<|end_header_id|>", "<|eot_id|>"),
        ),
        ({"eom_token_id": "<|eot_id|>"}, True, ("<|eot_id|>", "<|end_of_text|>")),
        ({"add_bos_token": False}, False, ("<|eot_id|>", "<|end_of_text|>")),
    ],
)
def test_how_texts_begin_and_end(
    changes: dict[str, object], adds_bos: bool, ends: tuple[str, ...]
) -> None:
    metadata = byte_level_metadata(train_byte_level(GPT2), "llama-bpe", LLAMA3_SPECIAL)
    ids = {text: token for token, text in enumerate(metadata["tokenizer.ggml.tokens"])}
    for key, value in changes.items():
        metadata[f"tokenizer.ggml.{key}"] = ids[value] if isinstance(value, str) else value
    tokenizer = build_tokenizer(metadata)
    bos = ids["<|begin_of_text|>"]
    assert tokenizer.control_text(bos) == "<|begin_of_text|>"
    assert tokenizer.encode("") == ([bos] if adds_bos else [])
    assert tokenizer.eos_token_ids == tuple(ids[text] for text in ends)
    assert all(tokenizer.token_bytes(token) == b"" for token in tokenizer.eos_token_ids)


def test_user_defined_tokens_are_matched_and_shown() -> None:
    metadata = byte_level_metadata(train_byte_level(GPT2), "qwen2", QWEN2_SPECIAL)
    metadata["tokenizer.ggml.tokens"] += ["<think>", "<|marker|>"]
    metadata["tokenizer.ggml.token_type"] += [4, 4]
    tokenizer = build_tokenizer(metadata)
    think = tokenizer.vocab_size - 2
    assert tokenizer.encode("<think>") == [think]
    assert tokenizer.decode([think]) == "<think>"
    assert tokenizer.decode([think + 1]) == ""
    assert think + 1 not in tokenizer.encode("<|marker|>")


def test_arrays_and_numbers_of_other_types() -> None:
    metadata: dict[str, Any] = dict(sentence_piece_metadata())
    plain = build_tokenizer(metadata)
    metadata["tokenizer.ggml.tokens"] = tuple(metadata["tokenizer.ggml.tokens"])
    metadata["tokenizer.ggml.scores"] = np.array(metadata["tokenizer.ggml.scores"], np.float32)
    metadata["tokenizer.ggml.token_type"] = np.array(
        metadata["tokenizer.ggml.token_type"], np.int32
    )
    metadata["tokenizer.ggml.bos_token_id"] = np.uint32(1)
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.encode(SENTENCES[0]) == plain.encode(SENTENCES[0])


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [("model", "rwkv", "rwkv"), ("model", None, "tokenizer.ggml.model"), ("pre", "new", "new")],
)
def test_unknown_kinds_are_refused_by_name(key: str, value: str | None, named: str) -> None:
    metadata = byte_level_metadata(train_byte_level(GPT2), "gpt-2", ("<|endoftext|>",))
    metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(UnsupportedModelError, match=named) as error:
        build_tokenizer(metadata)
    assert named in error.value.missing[0]
    assert error.value.hint


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokens", ["a", "a"], "duplicate"),
        ("tokens", "abc", "not an array"),
        ("tokens", [b"a"], "not an array of strings"),
        ("scores", [0.0], "1 scores"),
        ("scores", ["x"], "not an array of numbers"),
        ("token_type", [1], "1 token types"),
        ("token_type", [float("nan")] * 1000, "unknown type"),
        ("token_type", [1.5] * 1000, "unknown type"),
        ("bos_token_id", float("inf"), "not a number"),
        ("bos_token_id", 10_000, "is 10000"),
        ("eos_token_id", "x", "not a number"),
        ("eos_token_id", 2**40, "is 1099511627776"),
        ("eot_token_id", -2, "is -2"),
    ],
)
def test_metadata_that_contradicts_itself(key: str, value: object, message: str) -> None:
    metadata = {**sentence_piece_metadata(), f"tokenizer.ggml.{key}": value}
    with pytest.raises(ModelFileError, match=message) as error:
        build_tokenizer(metadata, path="x.gguf")
    assert "convert" in error.value.hint


@pytest.mark.parametrize("none", [-1, 2**32 - 1])
@pytest.mark.parametrize("key", ["bos_token_id", "eot_token_id", "padding_token_id"])
def test_an_id_of_minus_one_says_that_there_is_no_such_token(key: str, none: int) -> None:
    metadata = {**sentence_piece_metadata(), f"tokenizer.ggml.{key}": none}
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}{{ pad_token }}"
    tokenizer = build_tokenizer(metadata)
    assert (tokenizer.encode("") == []) == (key == "bos_token_id")
    assert none not in tokenizer.eos_token_ids
    template = read_chat_template(metadata)
    assert template is not None
    assert "pad_token" not in template.special_tokens


def with_token(metadata: dict[str, Any], text: str, kind: int) -> int:
    """Add a token to ``metadata``; its id."""
    tokens = [*metadata["tokenizer.ggml.tokens"], text]
    metadata["tokenizer.ggml.tokens"] = tokens
    types = metadata.get("tokenizer.ggml.token_type", [1] * (len(tokens) - 1))
    metadata["tokenizer.ggml.token_type"] = [*types, kind]
    if "tokenizer.ggml.scores" in metadata:
        metadata["tokenizer.ggml.scores"] = [*metadata["tokenizer.ggml.scores"], 0.0]
    return len(tokens) - 1


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("style", ["llama", "gpt2", "gemma4"])
def test_a_token_that_is_not_utf_8_has_its_bytes(style: str, kind: int) -> None:
    metadata: dict[str, Any] = {
        "llama": sentence_piece_metadata,
        "gpt2": lambda: byte_level_metadata(train_byte_level(GPT2), "gpt-2", ("<|endoftext|>",)),
        "gemma4": gemma4_metadata,
    }[style]()
    plain = build_tokenizer(metadata)
    metadata = dict(metadata)
    # As ``Metadata`` reads bytes that are not UTF-8: the second two of the three of an euro sign.
    token = with_token(metadata, b"ab\x82\xac".decode("utf-8", "surrogateescape"), kind)
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}"
    tokenizer = build_tokenizer(metadata)
    is_control = kind in (2, 3)
    assert tokenizer.token_bytes(token) == (b"" if is_control else b"ab\x82\xac")
    assert tokenizer.decode([token]) == ("" if is_control else "ab\ufffd\ufffd")
    assert tokenizer.control_text(token) == ""
    assert list_gguf_tokens(metadata).data[token] == tokenizer.token_bytes(token)
    assert tokenizer.special_tokens == plain.special_tokens
    for text in (*HARD_TEXTS, *SENTENCES):
        for parse_special in (True, False):
            expected = plain.encode(text, parse_special=parse_special)
            assert tokenizer.encode(text, parse_special=parse_special) == expected


def test_named_tokens_and_templates_that_are_not_utf_8() -> None:
    metadata: dict[str, Any] = dict(sentence_piece_metadata())
    token = with_token(metadata, "\udcff", 3)
    metadata["tokenizer.ggml.bos_token_id"] = metadata["tokenizer.ggml.eos_token_id"] = token
    metadata["tokenizer.chat_template"] = "\udcff{{ messages[0].content }}"
    metadata["tokenizer.chat_template.tool_use"] = "tools \udcff"
    tokenizer = build_tokenizer(metadata)
    assert (tokenizer.encode("the")[0], tokenizer.eos_token_ids[0]) == (token, token)
    template = read_chat_template(metadata)
    assert template is not None
    assert template.source == "\ufffd{{ messages[0].content }}"
    assert template.tool_source == "tools \ufffd"
    assert not {"bos_token", "eos_token"} & template.special_tokens.keys()


def test_a_merge_that_is_not_two_pieces() -> None:
    metadata = byte_level_metadata(train_byte_level(GPT2), "gpt-2", ("<|endoftext|>",))
    metadata["tokenizer.ggml.merges"] = ["ab"]
    with pytest.raises(ModelFileError, match="'ab'"):
        build_tokenizer(metadata)


def test_merges_that_are_not_strings() -> None:
    with pytest.raises(ModelFileError, match="merges is not an array of strings"):
        build_tokenizer({**gemma4_metadata(), "tokenizer.ggml.merges": [1, 2]})


def test_byte_tokens_are_no_result_of_merging() -> None:
    metadata: dict[str, Any] = dict(sentence_piece_metadata())
    text = "<0x41>"
    parts = [text[:length] for length in range(2, len(text))] + list(text)
    new = [part for part in parts if part not in metadata["tokenizer.ggml.tokens"]]
    metadata["tokenizer.ggml.tokens"] += new
    metadata["tokenizer.ggml.scores"] += [0.0] * len(new)
    metadata["tokenizer.ggml.token_type"] += [1] * len(new)
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_are_ordered_by_score_and_then_by_the_longer_left_part() -> None:
    scores = {"b": -9.0, "a": -9.0, "aa": -2.0, "aaa": -3.0, "ab": -1.0, "xy": 0.0}
    assert merges_from_scores(scores) == [("a", "b"), ("a", "a"), ("aa", "a"), ("a", "aa")]


def test_an_endless_piece_is_refused() -> None:
    metadata: dict[str, Any] = dict(sentence_piece_metadata())
    metadata["tokenizer.ggml.tokens"][-1] = "x" * 5000
    with pytest.raises(UnsupportedModelError, match="5000"):
        build_tokenizer(metadata)


def test_chat_template() -> None:
    metadata = sentence_piece_metadata()
    assert read_chat_template(metadata) is None
    template = read_chat_template({**metadata, "tokenizer.chat_template": "{{ bos_token }}"})
    assert template is not None
    assert template.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert template.render([]) == "<s>"
    assert template.tool_source is None
    both = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"}
    template = read_chat_template({**metadata, **both})
    assert template is not None
    assert (template.source, template.tool_source) == ("D", "T")
    with pytest.raises(ModelFileError, match="not a string"):
        read_chat_template({**metadata, **both, "tokenizer.chat_template.tool_use": 3})
    with pytest.raises(ModelFileError, match="not a string"):
        read_chat_template({**metadata, "tokenizer.chat_template": 3})


def test_closing_tokens() -> None:
    metadata = byte_level_metadata(train_byte_level(GPT2), "gpt-2", ("<|endoftext|>",))
    assert build_tokenizer(metadata).closing_tokens == ()
    closing = build_tokenizer({**metadata, "tokenizer.ggml.add_eos_token": True})
    assert closing.closing_tokens == (metadata["tokenizer.ggml.eos_token_id"],)
