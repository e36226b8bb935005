"""What tokens stand for, read without the tokenizer: as the tokenizer says it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models.text_models import (
    LLAMA3_SPECIAL,
    LLAMA3_SPLIT,
    byte_level_metadata,
    gemma4_metadata,
    gemma_json,
    llama2_json,
    llama3_json,
    qwen2_json,
    regex_byte_level,
    sentence_piece_metadata,
    train_byte_level,
    write_model_directory,
)
from support.text.token_lists import list_tokens

from potluck.catalog import describe_model, load_token_list, load_tokenizer
from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text import gguf, hugging_face
from potluck.types.text import Tokenizer, TokenList

STYLES: dict[str, Callable[[], str]] = {
    "llama3": llama3_json,
    "qwen2": qwen2_json,
    "llama2-legacy": lambda: llama2_json(legacy=True),
    "gemma": gemma_json,
    "llama2-always": lambda: llama2_json(scheme="always"),
}


def assert_same(tokens: TokenList, tokenizer: Tokenizer) -> None:
    expected = list_tokens(tokenizer)
    assert list(tokens.data) == list(expected.data)
    assert dict(tokens.control) == dict(expected.control)
    assert tokens.end_tokens == expected.end_tokens


@pytest.mark.parametrize("style", STYLES)
def test_a_directory_is_read_as_by_the_tokenizer(style: str, tmp_path: Path) -> None:
    directory = write_model_directory(tmp_path, STYLES[style]())
    assert_same(hugging_face.load_token_list(directory), hugging_face.load_tokenizer(directory))


def test_stated_tokens_count_too(tmp_path: Path) -> None:
    directory = write_model_directory(tmp_path, qwen2_json())
    size = len(hugging_face.load_token_list(directory).data)
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {
        str(size + 3): {"content": "<stated>", "special": True},
        str(size + 5): {"content": "<plain>", "special": False},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    tokens = hugging_face.load_token_list(directory)
    assert tokens.control[size + 3] == "<stated>"
    assert tokens.data[size : size + 6] == [b"", b"", b"", b"", b"", b"<plain>"]
    assert_same(tokens, hugging_face.load_tokenizer(directory))


def test_a_vocabulary_with_merges_is_read_as_by_the_tokenizer(tmp_path: Path) -> None:
    directory = write_model_directory(tmp_path, qwen2_json())
    document = json.loads((directory / "tokenizer.json").read_text())
    (directory / "tokenizer.json").unlink()
    merges = "\n".join(" ".join(pair) for pair in document["model"]["merges"])
    config = json.loads((directory / "tokenizer_config.json").read_text())
    added = {token["content"]: token["id"] for token in document["added_tokens"]}
    written: dict[str, Any] = {
        "vocab.json": document["model"]["vocab"],
        "added_tokens.json": added,
        "tokenizer_config.json": {**config, "tokenizer_class": "Qwen2Tokenizer"},
    }
    for name, value in written.items():
        (directory / name).write_text(json.dumps(value))
    (directory / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    assert_same(hugging_face.load_token_list(directory), hugging_face.load_tokenizer(directory))


def test_metadata_are_read_as_by_the_tokenizer() -> None:
    library = train_byte_level(regex_byte_level(LLAMA3_SPLIT))
    for metadata in (
        byte_level_metadata(library, "llama-bpe", LLAMA3_SPECIAL),
        sentence_piece_metadata(),
        gemma4_metadata(),
    ):
        assert_same(gguf.list_gguf_tokens(metadata), gguf.build_tokenizer(metadata))


def test_the_demo_model_is_read_as_by_the_tokenizer() -> None:
    files = describe_model("demo").files
    assert_same(load_token_list(files), load_tokenizer(files))


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="no tokenizer"):
        hugging_face.load_token_list(tmp_path)
    for text in ("", "[]", "{}", '{"model": {"vocab": 3}}', "{" * 10_000):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ModelFileError):
            hugging_face.load_token_list(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {}}, "decoder": {"type": "x"}}')
    with pytest.raises(UnsupportedModelError, match="decoder"):
        hugging_face.load_token_list(tmp_path)
