"""Vocabularies in the formats of vendors' own libraries: ``tekken.json``, ``tiktoken.model`` and
``tokenizer.model``.

They are converted to the form of a ``tokenizer.json``.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text import tekken
from potluck.text.bpe import build_ranked
from potluck.text.model_directory import ModelDirectory, read_vocabulary
from potluck.text.pieces import SPACE_MARK, Notation, PieceType, byte_level
from potluck.text.pre_tokenizers import BYTE_PRE_TOKENIZERS, BytePreTokenizer
from potluck.text.sentence_piece import (
    SentencePieceModel,
    build_model,
    build_normalizer,
    read_sentence_piece,
)
from potluck.text.tokenizer import PrefixSpace
from potluck.text.tokenizer_json import PieceList, VocabularyParts

SENTENCE_PIECE_FILE = "tokenizer.model"
TIKTOKEN_FILE = "tiktoken.model"
_TIKTOKEN_CLASSES = {"TikTokenTokenizer": "kimi-k2"}
"""Maps ``tokenizer_class`` to the pre-tokenizer."""

_PLAIN_CLASSES = frozenset({"Ernie4_5Tokenizer", "Ernie4_5_Tokenizer"})
"""``tokenizer_class`` of SentencePiece models that prepend neither a space nor bos to a text."""


def read_tekken_vocabulary(files: ModelDirectory) -> VocabularyParts:
    """Return the vocabulary in tekken.json."""
    file = tekken.read_tekken(files.path / tekken.TEKKEN_FILE)
    special = dict(enumerate(file.special))

    def ids_of(wanted: str) -> tuple[int, ...]:
        return tuple(token for token, text in special.items() if text == wanted)

    return VocabularyParts(
        model=PieceList(file.pieces),
        build=partial(tekken.build_model, file),
        added={token: {"content": text, "special": True} for token, text in special.items()},
        leading=ids_of(tekken.BOS),
        notation=Notation.BYTE_LEVEL,
        eos=next(iter(ids_of(tekken.EOS)), None),
    )


def read_tiktoken_vocabulary(files: ModelDirectory) -> VocabularyParts:
    """Return the vocabulary in tiktoken.model.

    Every line has the bytes of a token in base64 and its rank, which is its id. The pattern that
    splits a text into words is in code that comes with the model, so only known tokenizers are
    supported: Kimi's (``tokenization_kimi.py``), which defines its special tokens in
    ``tokenizer_config.json``.
    """
    pre_tokenizer = pre_tokenizer_of(files, _TIKTOKEN_CLASSES, f"a {TIKTOKEN_FILE}")
    pieces = _read_tiktoken(files.path / TIKTOKEN_FILE)
    return VocabularyParts(
        model=PieceList(pieces),
        build=partial(build_ranked, pieces, pre_tokenizer),
        added={},
        notation=Notation.BYTE_LEVEL,
    )


def _read_tiktoken(path: Path) -> dict[str, int]:
    """Return the pieces, in the byte-level encoding, and their ids.

    Raises ``ModelFileError`` if the file is damaged.
    """
    lines = read_vocabulary(path).splitlines()
    pieces: dict[str, int] = {}
    try:
        for number, line in enumerate(lines):
            encoded, rank = line.split()
            if int(rank) != number:
                raise ValueError(f"the token at {number} has the rank {int(rank)}")
            data = base64.b64decode(encoded, validate=True)
            pieces[byte_level(data)] = number
            if len(pieces) <= number:
                raise ValueError(f"the token at {number} is a duplicate")
    except ValueError as error:
        raise ModelFileError(str(path), f"is not a valid tokenizer file: {error}") from error
    return pieces


def pre_tokenizer_of(
    files: ModelDirectory, classes: Mapping[str, str], vocabulary: str
) -> BytePreTokenizer:
    """Return the pre-tokenizer that ``classes`` name for the class of a tokenizer.

    Raises ``UnsupportedModelError``, in which ``vocabulary`` describes the files, for any other
    class.
    """
    tokenizer_class = files.config.get("tokenizer_class")
    name = classes.get(str(tokenizer_class))
    if name is None:
        raise UnsupportedModelError(
            f"{files.path} has {vocabulary} for the unsupported class {tokenizer_class}",
            missing=("tokenizer.json",),
            hint="create tokenizer.json by loading and saving the tokenizer with a recent "
            "version of transformers",
        )
    return BYTE_PRE_TOKENIZERS[name]


def read_sentence_piece_vocabulary(files: ModelDirectory) -> VocabularyParts:
    """Return the vocabulary in tokenizer.model, with the properties that other files define.

    The pieces that are matched in the text itself are added, with those of added_tokens.json.
    """
    model = read_sentence_piece(files.path / SENTENCE_PIECE_FILE)
    adds_space = files.config.get("add_prefix_space")
    if adds_space is None:
        adds_space = model.adds_prefix_space and not _is_plain(files)
    where = PrefixSpace.EACH_BUT_WORDS
    if files.config.get("legacy") is False:
        where = PrefixSpace.FIRST
    added: dict[int, dict[str, Any]] = {
        token: {"content": model.pieces[token], "special": True}
        for token in model.of_type(PieceType.CONTROL, PieceType.UNKNOWN)
    }
    for token in model.of_type(PieceType.USER_DEFINED):
        added[token] = {"content": model.pieces[token].replace(SPACE_MARK, " "), "special": False}
    for text, token in files.json("added_tokens.json").items():
        added.setdefault(int(token), {"content": text, "special": False})
    return VocabularyParts(
        model=PieceList({piece: token for token, piece in enumerate(model.pieces)}),
        build=partial(build_model, model),
        added=added,
        leading=() if model.bos is None or _is_plain(files) else (model.bos,),
        notation=Notation.SENTENCE_PIECE,
        eos=model.eos,
        prefix_space=where if adds_space else PrefixSpace.NEVER,
        strips_prefix_space=bool(adds_space),
        unknown=model.unknown,
        build_normalizer=partial(build_normalizer, model),
    )


def _is_plain(files: ModelDirectory) -> bool:
    return files.config.get("tokenizer_class") in _PLAIN_CLASSES


def piece_texts(model: SentencePieceModel) -> dict[str, str]:
    """Return the variables of chat templates, as a SentencePiece model defines them."""
    named = {"bos_token": model.bos, "eos_token": model.eos, "unk_token": model.unknown}
    return {name: model.pieces[token] for name, token in named.items() if token is not None}
