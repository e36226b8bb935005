"""Vocabularies in tiktoken's format: ``tiktoken.model``.

Every line has the bytes of a token in base64 and its rank, which is its id. The pattern that splits
a text into words is in code that comes with the model, so only known tokenizers are supported:
Kimi's (``tokenization_kimi.py``), which defines its special tokens in ``tokenizer_config.json``.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.errors import ModelFileError
from potluck.text.bpe import build_byte_level, merges_from_scores
from potluck.text.pieces import BYTE_ALPHABET
from potluck.text.pre_tokenizers import BYTE_PRE_TOKENIZERS

if TYPE_CHECKING:
    import tokenizers

TIKTOKEN_FILE = "tiktoken.model"
KNOWN_CLASSES = {"TikTokenTokenizer": "kimi-k2"}
"""Maps ``tokenizer_class`` to the pre-tokenizer."""
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Maximum file size. Kimi K2's has 2.8 MB."""


def read_tiktoken(path: Path) -> dict[str, int]:
    """Return the pieces, in the byte-level encoding, and their ids.

    Raises ``ModelFileError`` if the file is damaged.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ModelFileError(str(path), f"{size} bytes exceed the size limit of a tokenizer file")
    pieces: dict[str, int] = {}
    try:
        for number, line in enumerate(path.read_bytes().splitlines()):
            encoded, rank = line.split()
            if int(rank) != number:
                raise ValueError(f"the token at {number} has the rank {int(rank)}")
            data = base64.b64decode(encoded, validate=True)
            pieces["".join([BYTE_ALPHABET[byte] for byte in data])] = number
            if len(pieces) <= number:
                raise ValueError(f"the token at {number} is a duplicate")
    except ValueError as error:
        raise ModelFileError(str(path), f"is not a valid tokenizer file: {error}") from error
    return pieces


def build_model(pieces: dict[str, int], pre_tokenizer: str) -> tokenizers.Tokenizer:
    """Return the library's tokenizer, without special tokens.

    A word that is a token becomes that token; in other words, the neighbours whose joined bytes
    have the lowest rank are merged first.
    """
    scores = {piece: -float(rank) for piece, rank in pieces.items()}
    return build_byte_level(pieces, merges_from_scores(scores), BYTE_PRE_TOKENIZERS[pre_tokenizer])
