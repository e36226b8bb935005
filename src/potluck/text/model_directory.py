"""The small files of a model directory in Hugging Face layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from potluck.errors import ModelFileError

MAX_VOCABULARY_BYTES = 64 * 1024 * 1024
"""Maximum size of a file with a vocabulary. Mistral's have 15 to 20 MiB, Gemma's, with 262,144
pieces, has 4.5 MiB, and Kimi K2's 2.8 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDirectory:
    """The files of a model directory; absent files are empty.

    ``config`` is tokenizer_config.json.
    """

    path: Path
    config: dict[str, Any]

    @classmethod
    def open(cls, path: Path) -> ModelDirectory:
        """Read ``tokenizer_config.json``. Raises ``ModelFileError`` if it is damaged."""
        return cls(path=path, config=_read_json(path / "tokenizer_config.json"))

    def has(self, name: str) -> bool:
        """Return whether the directory has a file of this name."""
        return (self.path / name).is_file()

    def json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file. Raises ``ModelFileError`` if it is damaged."""
        return _read_json(self.path / name)


def read_vocabulary(path: Path, kind: str = "tokenizer file") -> bytes:
    """Return the contents of a file with a vocabulary.

    Raises ``ModelFileError``, whose message calls the file a ``kind``, if it is too large.
    """
    size = path.stat().st_size
    if size > MAX_VOCABULARY_BYTES:
        raise ModelFileError(str(path), f"{size} bytes exceed the size limit of a {kind}")
    return path.read_bytes()


def read_text(path: Path) -> str | None:
    """Return a file's text, or None if it is absent. Raises ``ModelFileError`` if it is damaged."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(str(path), f"cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    text = read_text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(str(path), f"is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(str(path), "is not a JSON object")
    return value
