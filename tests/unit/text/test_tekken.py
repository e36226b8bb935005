"""Directories that have only a tekken.json; what tiktoken does is done here once more, slowly."""

from __future__ import annotations

import base64
import json
import random
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.models.text_models import HARD_TEXTS, SENTENCES, train_byte_level
from support.text.token_lists import list_tokens
from tokenizers import Regex
from tokenizers import pre_tokenizers as pre

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text import model_directory
from potluck.text.chat import prompt_chat
from potluck.text.hugging_face import load_chat_template, load_token_list, load_tokenizer
from potluck.text.pieces import BYTE_ALPHABET
from potluck.types.text import ChatMessage, ToolCall

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NUM_SPECIAL = 30
_BYTES = {character: byte for byte, character in enumerate(BYTE_ALPHABET)}


@cache
def ranks() -> tuple[bytes, ...]:
    """Tokens by rank: bytes first, as tiktoken has them."""
    words = pre.Sequence(
        [pre.Split(Regex(PATTERN), "isolated"), pre.ByteLevel(False, use_regex=False)]
    )
    vocabulary = train_byte_level(words).get_vocab()
    learnt = sorted(vocabulary, key=vocabulary.__getitem__)
    found = [bytes(_BYTES[character] for character in piece) for piece in learnt]
    return (*(bytes([byte]) for byte in range(256)), *(token for token in found if len(token) > 1))


def document(**changes: Any) -> dict[str, Any]:
    tokens = ranks()
    whole: dict[str, Any] = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": len(tokens) - 20 + NUM_SPECIAL,
            "default_num_special_tokens": NUM_SPECIAL,
            "version": "v3",
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate(tokens)
        ],
    }
    return {**whole, **changes}


def write(directory: Path, content: dict[str, Any]) -> Path:
    (directory / "tekken.json").write_text(json.dumps(content))
    return directory


def slow_encode(text: str, tokens: tuple[bytes, ...]) -> list[int]:
    """As tiktoken: within a word, the neighbours whose joined bytes have the lowest rank first."""
    by_bytes = {token: rank for rank, token in enumerate(tokens)}
    ids = []
    for word, _ in pre.Split(Regex(PATTERN), "isolated").pre_tokenize_str(text):
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
        ids += [by_bytes[part] + NUM_SPECIAL for part in parts]
    return ids


@pytest.mark.slow
def test_ids_and_texts_are_those_of_tiktoken(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, document()))
    tokens = ranks()[:-20]
    assert tokenizer.vocab_size == len(tokens) + NUM_SPECIAL
    rng = random.Random(3)
    texts = ["".join(rng.choices("aaahotes  \n1é中", k=40)) for _ in range(300)]
    for text in (*HARD_TEXTS, *SENTENCES, *texts):
        expected = slow_encode(text, tokens)
        assert tokenizer.encode(text, add_bos=False) == expected, text
        assert tokenizer.decode(expected) == text
        assert tokenizer.encode(text) == [1, *expected]


def test_special_tokens_come_first(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, document()))
    assert tokenizer.eos_token_ids == (2,)
    assert tokenizer.special_tokens[:4] == ("<unk>", "<s>", "</s>", "[INST]")
    assert len(tokenizer.special_tokens) == 20  # the others have no use and no text
    assert tokenizer.decode(range(20, 30)) == ""
    assert tokenizer.encode("[INST]", add_bos=False, parse_special=True) == [3]
    assert 3 not in tokenizer.encode("[INST]")
    assert tokenizer.token_bytes(3) == b""


def test_newer_files_list_their_special_tokens(tmp_path: Path) -> None:
    listed = [
        {"rank": rank, "token_str": text, "is_control": True}
        for rank, text in enumerate(("<unk>", "<s>", "</s>", "[THINK]", "[/THINK]"))
    ]
    tokenizer = load_tokenizer(write(tmp_path, document(special_tokens=listed)))
    assert tokenizer.special_tokens[3:] == ("[THINK]", "[/THINK]")


def test_tokens_are_listed_as_the_tokenizer_has_them(tmp_path: Path) -> None:
    directory = write(tmp_path, document())
    tokens, expected = load_token_list(directory), list_tokens(load_tokenizer(directory))
    assert list(tokens.data) == list(expected.data)
    assert dict(tokens.control) == dict(expected.control)
    assert tokens.end_tokens == expected.end_tokens


def test_templates_see_the_tokens_around_a_text(tmp_path: Path) -> None:
    (write(tmp_path, document()) / "chat_template.jinja").write_text("{{ bos_token }}")
    template = load_chat_template(tmp_path)
    assert template is not None
    assert template.special_tokens["bos_token"] == "<s>"
    assert template.special_tokens["eos_token"] == "</s>"


def test_there_is_a_template_where_there_is_no_other_file(tmp_path: Path) -> None:
    template = load_chat_template(write(tmp_path, document()))
    assert template is not None
    assert template.render([ChatMessage(role="user", content="Hi")]) == "<s>[INST]Hi[/INST]"
    write(tmp_path, document(config={**document()["config"], "version": "v99"}))
    assert load_chat_template(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{}")  # of a model that is not for chats
    assert load_chat_template(write(tmp_path, document())) is None


def test_results_of_tools_are_numbers_in_old_versions(tmp_path: Path) -> None:
    """Also numbers of special tokens, which others write as ``<SPECIAL_20>``."""
    directory = write(tmp_path, document())
    tokenizer, template = load_tokenizer(directory), load_chat_template(directory)
    call = ToolCall(call_id="call00001", name="now", arguments="{}")
    messages = [
        ChatMessage(role="user", content="a"),
        ChatMessage(role="assistant", content="", tool_calls=(call,)),
        ChatMessage(role="tool", content="20", tool_call_id="call00001"),
    ]
    prompt = tokenizer.decode(prompt_chat(tokenizer, template, messages).tokens)
    assert prompt.endswith('{"content": 20, "call_id": "call00001"}')


def test_it_comes_before_a_sentence_piece_model(tmp_path: Path) -> None:
    (write(tmp_path, document()) / "tokenizer.model").write_bytes(b"not read")
    assert load_tokenizer(tmp_path).encode("", add_bos=True) == [1]


VOCAB = document()["vocab"]
CONFIG = document()["config"]


@pytest.mark.parametrize(
    "changes",
    [
        {"config": None},
        {"vocab": VOCAB[:100]},
        {"vocab": [VOCAB[1], VOCAB[0], *VOCAB[2:]]},
        {"vocab": [VOCAB[0], {**VOCAB[0], "rank": 1}, *VOCAB[2:]]},
        {"vocab": [{**VOCAB[0], "token_bytes": "?"}, *VOCAB[1:]]},
        {"config": {**CONFIG, "default_num_special_tokens": -1}},
        {"config": {**CONFIG, "default_vocab_size": 10**9}},
        {"config": {**CONFIG, "pattern": "(unclosed"}},
        {"special_tokens": [{"rank": 0, "token_str": "x"}, {"rank": 1, "token_str": "x"}]},
    ],
)
def test_damaged_files_are_told(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        load_tokenizer(write(tmp_path, document(**changes)))


def test_values_that_are_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text('{"unknown": ' + "[" * 10_000)
    for load in (load_tokenizer, load_chat_template):
        with pytest.raises(ModelFileError, match="not a valid tokenizer file"):
            load(tmp_path)


def test_a_piece_that_is_too_long_is_not_supported(tmp_path: Path) -> None:
    tokens = document()["vocab"]
    tokens[300]["token_bytes"] = base64.b64encode(b"a" * 1025).decode()
    with pytest.raises(UnsupportedModelError, match="a piece of 1025 characters"):
        load_tokenizer(write(tmp_path, document(vocab=tokens)))


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_directory, "MAX_VOCABULARY_BYTES", 10)
    with pytest.raises(ModelFileError, match="exceed the size limit"):
        load_tokenizer(write(tmp_path, document()))
