"""API keys, kept as salted hashes.

The file has one key per line, and lines that are empty or begin with ``#``:

    NAME sha256:SALT:DIGEST

NAME tells keys apart for people. SALT and DIGEST are hexadecimal, 16 and 32 bytes; DIGEST is the
SHA-256 of the salt's bytes followed by the key's. Keys are made here with 256 random bits, so a
fast hash is enough: there is nothing to guess, and no dictionary to try. To withdraw a key, delete
its line and start the agent again.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass, field
from hmac import compare_digest
from pathlib import Path

from potluck.errors import ParameterError, UsageError

KEY_PREFIX = "pk-"
_KEY_BYTES = 32
_SALT_BYTES = 16
_MAX_KEY_CHARACTERS = 512
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LINE = re.compile(rf"({_NAME.pattern}) sha256:([0-9a-f]{{32}}):([0-9a-f]{{64}})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _HashedKey:
    name: str
    salt: bytes
    digest: bytes = field(repr=False)


class ApiKeys:
    """The keys that are in force. Immutable."""

    def __init__(self, keys: tuple[_HashedKey, ...]) -> None:
        """Use :meth:`load`."""
        self._keys = keys

    @classmethod
    def load(cls, path: Path) -> ApiKeys:
        """Read the file at ``path``. Raises ``UsageError`` for one without keys or unreadable."""
        keys = tuple(_parse(path, number, line) for number, line in _lines(path))
        if not keys:
            raise UsageError(
                f"{path}: there is no API key in this file",
                hint="make one; without any, nobody could use the address",
            )
        return cls(keys)

    def name_of(self, presented: str) -> str | None:
        """The name of the key that was presented, or None if it is none of ours.

        Takes the same time whichever key it is.
        """
        found = None
        data = presented[:_MAX_KEY_CHARACTERS].encode("utf-8", "surrogateescape")
        for key in self._keys:
            if compare_digest(_digest(key.salt, data), key.digest):
                found = key.name
        return found


def create_api_key(path: Path, name: str) -> str:
    """Make a key called ``name``, add its hash to the file at ``path``, and return the key.

    The key itself is kept nowhere. The file is made (mode 0600) if it is not there. Raises
    ``ParameterError`` for a name that is taken or not allowed, ``UsageError`` for a broken file.
    """
    if not _NAME.fullmatch(name):
        raise ParameterError(
            "name",
            f"a key cannot be called {name!r}",
            hint="use 1 to 64 letters, digits, dots, dashes and underscores",
        )
    names = [_parse(path, *line).name for line in _lines(path)] if path.exists() else []
    if name in names:
        raise ParameterError(
            "name", f"{path} has a key called {name} already", hint="choose another name"
        )
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    salt = secrets.token_bytes(_SALT_BYTES)
    _append(path, f"{name} sha256:{salt.hex()}:{_digest(salt, key.encode()).hex()}\n")
    return key


def _append(path: Path, line: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "rb+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            ends_in_line = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            file.write(("" if ends_in_line else "\n").encode() + line.encode())
            os.fsync(descriptor)
    except OSError as error:
        raise UsageError(
            f"{path}: the key cannot be written: {error.strerror}", hint="give another path"
        ) from error


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: the API keys cannot be read: {error.strerror}", hint="give another path"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file", hint="give another path") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def _parse(path: Path, number: int, line: str) -> _HashedKey:
    match = _LINE.fullmatch(line)
    if match is None:
        # The line itself is not shown: somebody may have written a key there.
        raise UsageError(
            f"{path}: line {number} is not a hashed key", hint="delete it, and make a new key"
        )
    return _HashedKey(name=match[1], salt=bytes.fromhex(match[2]), digest=bytes.fromhex(match[3]))


def _digest(salt: bytes, key: bytes) -> bytes:
    return hashlib.sha256(salt + key).digest()
