"""API keys, kept as salted hashes.

The file has one key per line, and lines that are empty or begin with ``#``:

    NAME sha256:SALT:DIGEST [admin]

A key allows its holder to use the API; one whose line ends with ``admin`` can also administer the
cluster. NAME identifies the key to people. SALT and DIGEST are hexadecimal, 16 and 32 bytes; DIGEST
is the SHA-256 of the salt's bytes followed by the key's. Potluck generates keys with 256 random
bits, so a fast hash is sufficient: dictionary attacks are impossible. To revoke a key, delete its
line and restart the agent.
"""

from __future__ import annotations

import enum
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
_LINE = re.compile(rf"({_NAME.pattern}) sha256:([0-9a-f]{{32}}):([0-9a-f]{{64}})(?: +(admin))?")


class Role(enum.Enum):
    """The permissions of a key."""

    USE = "use"
    """Use models, and view the cluster."""
    ADMIN = "admin"
    """In addition to that, plan, deploy and undeploy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedKey:
    """A key of which only the digest is known."""

    name: str
    role: Role = Role.USE
    salt: bytes
    digest: bytes = field(repr=False)


class ApiKeys:
    """The valid keys. Immutable."""

    def __init__(self, keys: tuple[HashedKey, ...]) -> None:
        """Use :meth:`load`."""
        self._keys = keys

    @classmethod
    def load(cls, path: Path) -> ApiKeys:
        """Load the file at ``path``. Raises ``UsageError`` if it is unreadable or has no keys."""
        keys = tuple(_parse(path, number, line) for number, line in _lines(path))
        if not keys:
            raise UsageError(
                f"{path}: the file has no API keys",
                hint=f"create one with potluck api-key {path} NAME; without one, nobody could use"
                " the HTTP API",
            )
        return cls(keys)

    def find(self, presented: str) -> HashedKey | None:
        """Return the presented key, or None if it is not valid.

        Takes the same time for every key.
        """
        found = None
        data = presented[:_MAX_KEY_CHARACTERS].encode("utf-8", "surrogateescape")
        for key in self._keys:
            if compare_digest(_digest(key.salt, data), key.digest):
                found = key
        return found


def create_api_key(path: Path, name: str, role: Role = Role.USE) -> str:
    """Create a key called ``name``, append its hash to the file at ``path``, and return the key.

    ``role`` is what the key allows. The key itself is not stored. The file is created (mode 0600)
    if it does not exist. Raises ``ParameterError`` for an invalid name or one in use, and
    ``UsageError`` for an invalid file.
    """
    if not _NAME.fullmatch(name):
        raise ParameterError(
            "name",
            f"{name!r} is not a valid key name",
            hint="use 1 to 64 letters, digits, dots, dashes and underscores",
        )
    names = [_parse(path, *line).name for line in _lines(path)] if path.exists() else []
    if name in names:
        raise ParameterError(
            "name", f"{path} already has a key named {name}", hint="choose another name"
        )
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    salt = secrets.token_bytes(_SALT_BYTES)
    suffix = " admin" if role is Role.ADMIN else ""
    _append(path, f"{name} sha256:{salt.hex()}:{_digest(salt, key.encode()).hex()}{suffix}\n")
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
            f"{path}: cannot write the key: {error.strerror}", hint="give another path"
        ) from error


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot read the API keys: {error.strerror}", hint="give another path"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file", hint="give another path") from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, line) for number, line in lines if line and not line.startswith("#")]


def _parse(path: Path, number: int, line: str) -> HashedKey:
    match = _LINE.fullmatch(line)
    if match is None:
        # The line itself is not shown, because it may contain a plain-text key.
        raise UsageError(
            f"{path}: line {number} is not a hashed key",
            hint="delete the line, and create a new key with potluck api-key",
        )
    return HashedKey(
        name=match[1],
        role=Role.USE if match[4] is None else Role.ADMIN,
        salt=bytes.fromhex(match[2]),
        digest=bytes.fromhex(match[3]),
    )


def _digest(salt: bytes, key: bytes) -> bytes:
    return hashlib.sha256(salt + key).digest()
