"""Mistral's own tokenizer file: ``tekken.json``.

It lists the bytes of each token by rank, as tiktoken does, the pattern that splits a text into
words, and the special tokens, whose ids precede all others. The names of keys and the special
tokens of older files are those of ``mistral_common`` (``tokens/tokenizers/tekken.py``).
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.text.bpe import build_ranked
from potluck.text.model_directory import read_vocabulary
from potluck.text.pieces import byte_level
from potluck.text.pre_tokenizers import BytePreTokenizer

if TYPE_CHECKING:
    import tokenizers

TEKKEN_FILE = "tekken.json"

BOS, EOS, UNKNOWN, PADDING = "<s>", "</s>", "<unk>", "<pad>"
_OLD_SPECIAL_TOKENS = (
    *(UNKNOWN, BOS, EOS, "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", PADDING, "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
"""Special tokens of files that list none, up to version 7."""


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _SpecialToken(msgspec.Struct):
    rank: int
    token_str: str


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str = ""


class _Document(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_SpecialToken] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tekken:
    """The contents of a ``tekken.json``.

    ``special`` are the texts of the special tokens, whose ids are their indices; unused ones have
    none. ``pieces`` maps the other tokens, in the byte-level encoding, to their ids, which follow.
    """

    pattern: str
    version: str
    special: tuple[str, ...]
    pieces: dict[str, int]


def read_tekken(path: Path) -> Tekken:
    """Read a ``tekken.json``. Raises ``ModelFileError`` if it is damaged."""
    data = read_vocabulary(path)
    try:
        return _checked(msgspec.json.decode(data, type=_Document))
    except (ValueError, RecursionError) as error:  # includes DecodeError
        raise ModelFileError(str(path), f"is not a valid tokenizer file: {error}") from error


def build_model(tekken: Tekken) -> tokenizers.Tokenizer:
    """Return the library's tokenizer, without special tokens.

    Raises ``ValueError`` for an invalid pattern, and ``UnsupportedModelError``.
    """
    words = BytePreTokenizer(splits=(tekken.pattern,), ignores_merges=True)
    try:
        return build_ranked(tekken.pieces, words)
    except UnsupportedModelError:
        raise
    except Exception as error:  # the library raises no more specific exception
        raise ValueError(f"the library rejects it: {error}") from error


def _checked(document: _Document) -> Tekken:
    config = document.config
    num_special = config.default_num_special_tokens
    num_pieces = config.default_vocab_size - num_special
    if num_special < 0 or not 0 <= num_pieces <= len(document.vocab):
        raise ValueError(
            f"it has {len(document.vocab)} tokens for {config.default_vocab_size} ids, of which"
            f" {num_special} are special"
        )
    listed = dict(enumerate(_OLD_SPECIAL_TOKENS))
    if document.special_tokens is not None:
        listed = {token.rank: token.token_str for token in document.special_tokens}
    special = tuple(listed.get(token, "") for token in range(num_special))
    named = [text for text in special if text]
    pieces: dict[str, int] = {}
    for rank, token in enumerate(document.vocab[:num_pieces]):
        if token.rank != rank:
            raise ValueError(f"the token at {rank} has the rank {token.rank}")
        data = base64.b64decode(token.token_bytes, validate=True)
        pieces[byte_level(data)] = num_special + rank
    if len(pieces) < num_pieces or len({*named}) < len(named):
        raise ValueError("it contains a duplicate token")
    return Tekken(pattern=config.pattern, version=config.version, special=special, pieces=pieces)
