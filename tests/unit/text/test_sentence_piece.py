"""Directories that have only a tokenizer.model; the sentencepiece library says what is right."""

from __future__ import annotations

import json
import random
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import sentencepiece
from support.models.text_models import HARD_TEXTS, SENTENCES, train_sentence_piece
from support.text.token_lists import list_tokens

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text import model_directory, sentence_piece
from potluck.text.hugging_face import load_chat_template, load_token_list, load_tokenizer
from potluck.text.sentence_piece import message_fields, read_sentence_piece
from potluck.text.tokenizer import TextTokenizer

WORDS = ["▁▁", "▁▁▁", "\n\n", "<table>", "</table>", "<h1>"]
UNIGRAM: dict[str, object] = {
    "model_type": "unigram",
    "hard_vocab_limit": False,
    "required_chars": "<>|/",
}
KINDS: dict[str, dict[str, object]] = {
    "bpe": {},
    "bpe-without-bytes": {"byte_fallback": False, "vocab_size": 440},
    "bpe-nfkc": {"normalization_rule_name": "nmt_nfkc"},
    "bpe-trimmed": {"remove_extra_whitespaces": True, "normalization_rule_name": "nmt_nfkc"},
    "gemma": {
        "add_dummy_prefix": False,
        "user_defined_symbols": WORDS,
        "control_symbols": ["<start_of_turn>", "<end_of_turn>"],
        "bos_id": 2,
        "eos_id": 1,
        "unk_id": 3,
        "pad_id": 0,
        "bos_piece": "<bos>",
        "eos_piece": "<eos>",
    },
    "words-with-a-prefix": {"user_defined_symbols": WORDS[2:]},
    "unigram": UNIGRAM,
    "unigram-without-bytes": {**UNIGRAM, "byte_fallback": False},
    "unigram-trimmed": {
        **UNIGRAM,
        "remove_extra_whitespaces": True,
        "normalization_rule_name": "nmt_nfkc",
    },
    "unigram-words": {**UNIGRAM, "user_defined_symbols": WORDS[3:], "add_dummy_prefix": False},
}


@cache
def trained(kind: str) -> bytes:
    return train_sentence_piece(**KINDS[kind])


def directory_with(
    tmp_path: Path, model: bytes, files: dict[str, object] | None = None
) -> tuple[Path, sentencepiece.SentencePieceProcessor]:
    (tmp_path / "tokenizer.model").write_bytes(model)
    for name, content in (files or {}).items():
        (tmp_path / name).write_text(json.dumps(content))
    return tmp_path, sentencepiece.SentencePieceProcessor(model_proto=model)


def random_texts() -> list[str]:
    rng = random.Random(3)
    parts = [*"aeot .,\n\t▁<>/é中Ж😀0129", "  ", "the", "<table>", "</s>", "<0x41>", "\n\n"]
    return ["".join(rng.choices(parts, k=rng.randrange(1, 30))) for _ in range(200)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    directory, library = directory_with(tmp_path, trained(kind))
    tokenizer = load_tokenizer(directory)
    assert tokenizer.vocab_size == library.get_piece_size()
    assert tokenizer.eos_token_ids == (library.eos_id(),)
    for text in (*HARD_TEXTS, *SENTENCES, *random_texts()):
        if kind == "gemma" and "▁" in text:
            continue  # the library takes marks of users for words of spaces; here they are marks
        expected = library.encode(text)
        assert tokenizer.encode(text, add_bos=False) == expected, text
        assert tokenizer.encode(text) == [library.bos_id(), *expected]
        if library.unk_id() not in expected:
            assert tokenizer.decode(expected) == library.decode(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_listed_as_the_tokenizer_has_them(kind: str, tmp_path: Path) -> None:
    directory, _ = directory_with(tmp_path, trained(kind))
    tokens, expected = load_token_list(directory), list_tokens(load_tokenizer(directory))
    assert list(tokens.data) == list(expected.data)
    assert dict(tokens.control) == dict(expected.control)
    assert tokens.end_tokens == expected.end_tokens


@pytest.mark.parametrize("kind", ["bpe", "gemma", "unigram"])
def test_long_texts_are_encoded_in_slices(kind: str, tmp_path: Path) -> None:
    directory, library = directory_with(tmp_path, trained(kind))
    tokenizer = load_tokenizer(directory)
    text = " ".join(SENTENCES) * 80
    assert len(text) > 40_000
    assert tokenizer.encode(text, add_bos=False) == library.encode(text)


def test_control_tokens_are_parsed_on_request(tmp_path: Path) -> None:
    directory, library = directory_with(tmp_path, trained("gemma"))
    tokenizer = load_tokenizer(directory)
    turn = library.piece_to_id("<start_of_turn>")
    assert turn not in tokenizer.encode("<start_of_turn>the")
    tokens = tokenizer.encode("<start_of_turn>the", add_bos=False, parse_special=True)
    assert tokens == [turn, *library.encode("the")]
    assert tokenizer.decode(tokens) == "the"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # As Llama's and Mistral's own code, which encodes each stretch of text by itself.
        ({}, "▁the</s>▁the"),
        ({"legacy": True}, "▁the</s>▁the"),
        ({"legacy": False}, "▁the</s>the"),
        ({"add_prefix_space": False}, "the</s>the"),
        ({"tokenizer_class": "Ernie4_5_Tokenizer"}, "the</s>the"),
    ],
)
def test_where_spaces_are_put(config: dict[str, object], expected: str, tmp_path: Path) -> None:
    directory, library = directory_with(tmp_path, trained("bpe"), {"tokenizer_config.json": config})
    tokens = load_tokenizer(directory).encode("the</s>the", add_bos=False, parse_special=True)
    assert "".join(map(library.id_to_piece, tokens)) == expected


def test_other_files_add_tokens_and_ends(tmp_path: Path) -> None:
    size = 700
    files: dict[str, object] = {
        "added_tokens.json": {"<|assistant|>": size, "<word>": size + 1},
        "tokenizer_config.json": {
            "added_tokens_decoder": {str(size + 2): {"content": "<|end|>", "special": True}},
            "eos_token": "<|end|>",
            "add_bos_token": False,
        },
        "generation_config.json": {"eos_token_id": [2, size]},
    }
    directory, library = directory_with(tmp_path, trained("bpe"), files)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.vocab_size == size + 3
    assert tokenizer.eos_token_ids == (2, size, size + 2)
    assert tokenizer.encode("the") == library.encode("the")
    assert tokenizer.encode("<|end|>", parse_special=True) == [size + 2]
    assert tokenizer.token_bytes(size + 1) == b"<word>"
    assert tokenizer.token_bytes(size) == b""


def test_templates_see_the_tokens_of_the_model(tmp_path: Path) -> None:
    directory, _ = directory_with(tmp_path, trained("gemma"))
    (directory / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}{{ unk_token }}")
    template = load_chat_template(directory)
    assert template is not None
    assert template.render([]) == "<bos><eos><unk>"
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    stated = load_chat_template(directory)
    assert stated is not None
    assert stated.render([]) == "<s>"


def test_a_tokenizer_json_comes_first(tmp_path: Path) -> None:
    directory, _ = directory_with(tmp_path, trained("bpe"))
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        load_tokenizer(directory)


# The file format


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value % 2**64)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*data, value))


def piece(text: str, score: float = 0.0, kind: int = 1) -> bytes:
    message = field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + field(3, kind)
    return field(1, message)


PIECES = piece("<unk>", kind=2) + piece("<s>", kind=3) + piece("</s>", kind=3) + piece("▁", -1)


def read(tmp_path: Path, model: bytes) -> sentence_piece.SentencePieceModel:
    (tmp_path / "tokenizer.model").write_bytes(model)
    return read_sentence_piece(tmp_path / "tokenizer.model")


def tokenizer_of(tmp_path: Path, model: bytes) -> TextTokenizer:
    (tmp_path / "tokenizer.model").write_bytes(model)
    return load_tokenizer(tmp_path)


def test_what_the_file_leaves_out_has_defaults(tmp_path: Path) -> None:
    model = read(tmp_path, PIECES)
    assert model.pieces == ("<unk>", "<s>", "</s>", "▁")
    assert model.scores == (0, 0, 0, -1)
    assert (model.unknown, model.bos, model.eos) == (0, 1, 2)
    assert model.is_unigram
    assert model.adds_prefix_space
    assert model.removes_extra_spaces
    assert model.charsmap == b""


def test_a_model_may_have_no_bos(tmp_path: Path) -> None:
    model = read(tmp_path, PIECES + field(2, field(41, -1) + field(42, 3)))
    assert (model.bos, model.eos) == (None, None)  # 3 is no control token
    tokenizer = tokenizer_of(tmp_path, PIECES + field(2, field(3, 2) + field(41, -1)))
    assert tokenizer.encode("") == []


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        (field(2, field(3, 3)), "segmentation into words"),
        (field(2, field(3, 4)), "segmentation into characters"),
        (field(2, field(3, 9)), "segmentation into pieces of the kind 9"),
        (field(2, field(24, 1)), "spaces as suffixes"),
        (field(3, field(5, 0)), "unescaped spaces"),
    ],
)
def test_what_is_not_known_is_refused_by_name(extra: bytes, name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        read(tmp_path, PIECES + extra)
    assert error.value.missing == (name,)


def test_unused_pieces_that_merges_make_are_refused(tmp_path: Path) -> None:
    unreachable = PIECES + piece("[unused]", kind=5) + field(2, field(3, 2))
    assert tokenizer_of(tmp_path, unreachable).vocab_size == 5
    reachable = PIECES + piece("a", -2) + piece("▁a", -3, 5) + field(2, field(3, 2))
    with pytest.raises(UnsupportedModelError, match="unused pieces"):
        tokenizer_of(tmp_path, reachable)


def test_a_tiktoken_file_is_told_apart(tmp_path: Path) -> None:
    """Llama 3's own files and older ones of GLM have this name for another format."""
    with pytest.raises(UnsupportedModelError, match="tiktoken"):
        read(tmp_path, b"IQ== 0\nIg== 1\n")


@pytest.mark.parametrize(
    "model",
    [
        b"",
        b"\x0a",
        b"\x0a\x05ab",
        b"\x0b\x00",
        b"\xff" * 11,
        field(1, 7),
        field(1, field(1, b"\xff\xfe")),
        field(1, field(1, b"a") + field(2, b"abc")),
        PIECES + piece("▁"),
        PIECES + field(2, 3),
        PIECES + field(2, field(3, b"2")),
        PIECES + field(3, field(2, 3)),
        PIECES + field(3, field(2, b"not a table")),
        piece("a") + field(2, field(3, 1)),
        PIECES[:-3],
    ],
)
def test_damaged_files_are_told(model: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        tokenizer_of(tmp_path, model)


def test_a_file_of_any_bytes_raises_nothing_else(tmp_path: Path) -> None:
    whole = trained("unigram-without-bytes")
    rng = random.Random(11)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        with suppress(ModelFileError, UnsupportedModelError):
            tokenizer_of(tmp_path, bytes(damaged)).encode("the quick")


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_directory, "MAX_VOCABULARY_BYTES", 10)
    with pytest.raises(ModelFileError, match="exceed the size limit"):
        read(tmp_path, PIECES)


def test_fields_of_every_wire_type() -> None:
    message = field(1, 300) + field(2, b"ab") + b"\x1d" + b"1234" + b"\x21" + b"12345678"
    fields = [
        (n, v if isinstance(v, int) else bytes(v)) for n, v in message_fields(memoryview(message))
    ]
    assert fields == [(1, 300), (2, b"ab"), (3, b"1234"), (4, b"12345678")]
