"""Vocabularies in tiktoken's format: ``tiktoken.model``.

Every line has the bytes of a token in base64 and its rank, which is its id. The pattern that splits
a text into words is in code that comes with the model, so only known tokenizers are supported:
Kimi's (``tokenization_kimi.py``), which defines its special tokens in ``tokenizer_config.json``.
"""

from __future__ import annotations

import base64
from pathlib import Path

from potluck.errors import ModelFileError
from potluck.text.model_directory import read_vocabulary
from potluck.text.pieces import byte_level

TIKTOKEN_FILE = "tiktoken.model"
KNOWN_CLASSES = {"TikTokenTokenizer": "kimi-k2"}
"""Maps ``tokenizer_class`` to the pre-tokenizer."""


def read_tiktoken(path: Path) -> dict[str, int]:
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
