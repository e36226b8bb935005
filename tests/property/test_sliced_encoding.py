"""Long texts have the tokens of whole texts, whatever the slices; and bounds on sizes hold."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models.text_models import (
    SENTENCES,
    byte_level_metadata,
    gemma4_metadata,
    gemma_json,
    llama2_json,
    llama3_json,
    qwen2_json,
    sentence_piece_metadata,
    train_byte_level,
    train_sentence_piece,
    write_model_directory,
)

from potluck.errors import ParameterError, PromptTooLongError
from potluck.text import slices
from potluck.text.gguf import build_tokenizer
from potluck.text.hugging_face import load_tokenizer
from potluck.text.pre_tokenizers import BYTE_PRE_TOKENIZERS
from potluck.text.slices import SlicedEncoder
from potluck.text.tokenizer import TextTokenizer


def from_json(document: str) -> TextTokenizer:
    with TemporaryDirectory() as directory:
        return load_tokenizer(write_model_directory(Path(directory), document))


def from_gguf(name: str) -> Callable[[], TextTokenizer]:
    def build() -> TextTokenizer:
        trained = train_byte_level(BYTE_PRE_TOKENIZERS[name].build())
        return build_tokenizer(byte_level_metadata(trained, name, ("<s>", "</s>")))

    return build


def from_sentence_piece(**options: object) -> TextTokenizer:
    with TemporaryDirectory() as directory:
        (Path(directory) / "tokenizer.model").write_bytes(train_sentence_piece(**options))
        return load_tokenizer(Path(directory))


DIFFERENT = {pre_tokenizer.splits: name for name, pre_tokenizer in BYTE_PRE_TOKENIZERS.items()}
STYLES: dict[str, Callable[[], TextTokenizer]] = {
    "llama3": lambda: from_json(llama3_json()),
    "qwen2": lambda: from_json(qwen2_json()),
    "llama2": lambda: from_json(llama2_json()),
    "llama2-legacy": lambda: from_json(llama2_json(legacy=True)),
    "gemma": lambda: from_json(gemma_json()),
    "gemma-gguf": lambda: build_tokenizer(gemma4_metadata()),
    "unigram": lambda: from_sentence_piece(model_type="unigram", hard_vocab_limit=False),
    "bpe-nfkc": lambda: from_sentence_piece(normalization_rule_name="nmt_nfkc"),
    "llama2-gguf": lambda: build_tokenizer(sentence_piece_metadata()),
    **{f"gguf-{name}": from_gguf(name) for name in DIFFERENT.values()},
}


@cache
def tokenizer_of(style: str) -> TextTokenizer:
    return STYLES[style]()


FRAGMENTS = (
    *SENTENCES,
    "a",
    " the",
    "The ",
    "it's ",
    "I'LL",
    "123",
    " 7",
    "1,000.5",
    "   ",
    "\n",
    "\n\n ",
    "\r\n",
    "\t",
    ", ",
    "...",
    "—",
    "_x_",
    "▁",
    "e\u0301",
    "ﬁ",
    "字，",
    "字",
    "日本語のテキスト",
    "한국어 ",
    "😀",
    "\u00a0",
    "\u2028",
    "½",
)
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), min_size=1, max_size=150).map(
    "".join
)


def long_text(seed: int, count: int) -> str:
    return "".join(random.Random(seed).choices(FRAGMENTS, k=count))


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=25)
@given(text=texts)
def test_slices_have_the_tokens_of_the_whole(style: str, text: str) -> None:
    tokenizer = tokenizer_of(style)
    whole = tokenizer._model.encode(text, add_special_tokens=False).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE_CHARACTERS", 24)
        patch.setattr(slices, "_LOOKAHEAD_CHARACTERS", 8)
        assert list(chain(*tokenizer._encoder.encode(text))) == whole


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_CHARACTERS", 2048)
    monkeypatch.setattr(slices, "MAX_UNDIVIDED_CHARACTERS", 32 * 1024)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_long_texts_are_really_sliced(style: str, short_slices: None) -> None:
    tokenizer = tokenizer_of(style)
    text = long_text(1, 1600)
    assert len(text) > 4 * slices.SLICE_CHARACTERS
    parts = list(tokenizer._encoder.encode(text))
    assert len(parts) > len(text) // slices.SLICE_CHARACTERS
    assert list(chain(*parts)) == tokenizer._model.encode(text, add_special_tokens=False).ids


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@settings(max_examples=25)
@given(text=texts)
def test_no_text_has_fewer_tokens_than_its_size_says(style: str, text: str) -> None:
    tokenizer = tokenizer_of(style)
    num_tokens = len(tokenizer.encode(text, add_bos=False, parse_special=True))
    assert tokenizer._least_tokens(text, 10**9) <= num_tokens


@pytest.mark.slow
def test_what_is_said_of_normalization_form_c() -> None:
    import sys
    import unicodedata

    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            character = chr(code)
            composed = unicodedata.normalize("NFC", character)
            for other in (character, unicodedata.normalize("NFD", character)):
                assert len(other.encode()) <= 3 * len(composed.encode())


@pytest.mark.slow
@pytest.mark.parametrize("style", ["llama3", "qwen2", "llama2-gguf"])
def test_a_text_that_cannot_fit_is_given_up_early(style: str, short_slices: None) -> None:
    tokenizer = tokenizer_of(style)
    encoded: list[int] = []
    encoder = tokenizer._encoder

    class Counted(SlicedEncoder):
        def __init__(self) -> None:
            pass

        def encode(self, text: str) -> Any:
            for ids in encoder.encode(text):
                encoded.append(len(ids))
                yield ids

    text = long_text(2, 8000)
    num_tokens = len(tokenizer.encode(text))
    tokenizer._encoder = Counted()
    try:
        assert len(tokenizer.encode(text, max_tokens=num_tokens)) == num_tokens
        for max_tokens in (num_tokens - 1, num_tokens // 2, 100, 0):
            encoded.clear()
            with pytest.raises(PromptTooLongError) as error:
                tokenizer.encode(text, max_tokens=max_tokens)
            assert error.value.context_tokens == max_tokens + 1
            assert max_tokens < error.value.num_tokens <= num_tokens
            assert "at least" in error.value.message
            assert sum(encoded[:-1]) <= max_tokens
        assert not encoded, "this many bytes could not have been so few tokens"
    finally:
        tokenizer._encoder = encoder


def test_a_word_without_an_end_is_refused(short_slices: None) -> None:
    tokenizer = tokenizer_of("llama3")
    fits = "a" * (slices.MAX_UNDIVIDED_CHARACTERS - 1)
    assert tokenizer.decode(tokenizer.encode(fits, add_bos=False)) == fits
    with pytest.raises(ParameterError, match="without a word boundary"):
        tokenizer.encode(fits + "aa")


def test_unknown_steps_are_given_the_whole_text() -> None:
    document = json.loads(llama3_json())
    document["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    tokenizer = from_json(json.dumps(document))
    text = " a b" * 9000
    assert [len(part) for part in tokenizer._encoder.encode(text)] == [
        len(tokenizer._model.encode(text, add_special_tokens=False).ids)
    ]
    assert tokenizer._least_tokens(text, 10**9) == 0
