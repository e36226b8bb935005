"""Directories with a tiktoken.model alone; what tiktoken does is done here once more, slowly."""

from __future__ import annotations

import base64
import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from support.models.text_models import HARD_TEXTS, SENTENCES, train_byte_level
from support.text.token_lists import list_tokens

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text import model_directory
from potluck.text.hugging_face import load_token_list, load_tokenizer
from potluck.text.pieces import BYTE_ALPHABET
from potluck.text.pre_tokenizers import BYTE_PRE_TOKENIZERS

PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""``pat_str`` of ``tokenization_kimi.py``."""

CONFIG: dict[str, Any] = {
    "tokenizer_class": "TikTokenTokenizer",
    "bos_token": "[BOS]",
    "eos_token": "[EOS]",
    "additional_special_tokens": ["<|im_end|>", "<|im_user|>"],
}
_BYTES = {character: byte for byte, character in enumerate(BYTE_ALPHABET)}


@cache
def ranks() -> tuple[bytes, ...]:
    """Tokens by rank: bytes first, as tiktoken has them."""
    vocabulary = train_byte_level(BYTE_PRE_TOKENIZERS["kimi-k2"].build()).get_vocab()
    learnt = sorted(vocabulary, key=vocabulary.__getitem__)
    found = [bytes(_BYTES[character] for character in piece) for piece in learnt]
    return (*(bytes([byte]) for byte in range(256)), *(token for token in found if len(token) > 1))


def write(directory: Path, *, lines: list[str] | None = None, **config: Any) -> Path:
    tokens = ranks()
    if lines is None:
        lines = [f"{base64.b64encode(each).decode()} {rank}" for rank, each in enumerate(tokens)]
    (directory / "tiktoken.model").write_text("\n".join(lines) + "\n")
    added = {
        str(len(tokens) + index): {"content": text, "special": True}
        for index, text in enumerate(("[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>"))
    }
    whole = {**CONFIG, "added_tokens_decoder": added, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(whole))
    return directory


def slow_encode(text: str) -> list[int]:
    """As tiktoken: within a word, the neighbours whose joined bytes have the lowest rank first."""
    by_bytes = {token: rank for rank, token in enumerate(ranks())}
    ids = []
    for word in regex.findall(PATTERN, text, flags=regex.VERSION1):
        data = word.encode()
        parts = [data] if data in by_bytes else [bytes([byte]) for byte in data]
        while True:
            pairs = [
                (by_bytes[left + right], index)
                for index, (left, right) in enumerate(pairwise(parts))
                if left + right in by_bytes
            ]
            if not pairs:
                break
            _, index = min(pairs)
            parts[index : index + 2] = [parts[index] + parts[index + 1]]
        ids += [by_bytes[part] for part in parts]
    return ids


def test_ids_and_texts_are_those_of_tiktoken(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path))
    assert tokenizer.vocab_size == len(ranks()) + 4
    rng = random.Random(3)
    texts = ["".join(rng.choices("aaAhotes'  \n1é中文, の", k=40)) for _ in range(300)]
    for text in (*HARD_TEXTS, *SENTENCES, *texts):
        expected = slow_encode(text)
        assert tokenizer.encode(text) == expected, text
        assert tokenizer.decode(expected) == text


def test_special_tokens_come_after_the_others(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path))
    first = len(ranks())
    assert tokenizer.eos_token_ids == (first + 1,)
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [first + 2]
    assert first + 2 not in tokenizer.encode("<|im_end|>")
    assert tokenizer.token_bytes(first + 2) == b""


def test_tokens_are_listed_as_the_tokenizer_has_them(tmp_path: Path) -> None:
    directory = write(tmp_path)
    tokens, expected = load_token_list(directory), list_tokens(load_tokenizer(directory))
    assert list(tokens.data) == list(expected.data)
    assert dict(tokens.control) == dict(expected.control)
    assert tokens.end_tokens == expected.end_tokens


def test_other_classes_are_refused(tmp_path: Path) -> None:
    """Which pattern cuts their texts stands in code."""
    directory = write(tmp_path, tokenizer_class="OtherTokenizer")
    for load in (load_tokenizer, load_token_list):
        with pytest.raises(UnsupportedModelError, match="OtherTokenizer"):
            load(directory)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["YQ== 0", "Yg== 2"], "the token at 1 has the rank 2"),
        (["YQ== 0", "YQ== 1"], "the token at 1 is a duplicate"),
        (["YQ== 0", "YQ"], "not a valid tokenizer"),
        (["YQ== 0", "Y! 1"], "not a valid tokenizer"),
        (["YQ== 0", "Yg== one"], "not a valid tokenizer"),
    ],
)
def test_damaged_files_are_told(lines: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=problem):
        load_tokenizer(write(tmp_path, lines=lines))


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_directory, "MAX_VOCABULARY_BYTES", 1000)
    with pytest.raises(ModelFileError, match="exceed the size limit of a tokenizer file"):
        load_tokenizer(write(tmp_path))
