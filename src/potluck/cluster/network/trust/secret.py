"""The cluster's secret: anyone who has it is a member.

All of a cluster's trust is derived from the secret, and anyone who connects to a node sees a
certificate against which guesses can be tested offline, without limit. So the secret must be
unguessable, which passwords that people make up are not. Potluck generates one of 160 random bits:
``potluck-`` and nine groups of four characters of Crockford's base 32
(https://www.crockford.com/base32.html), the last group a checksum against typos. Random tokens from
elsewhere (``openssl rand -hex 32``) are accepted, too, if a conservative estimate finds enough
entropy in them.

This module does not decide where a secret is stored, except for a node that is not in a cluster.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from potluck.errors import ParameterError
from potluck.host.child_environment import SECRET_VARIABLE
from potluck.host.private_files import create_file, make_private_folder
from potluck.host.system import read_regular_file

_PREFIX = "potluck-"
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32, also used for invitation tokens."""

_LOOKALIKES = str.maketrans({"O": "0", "I": "1", "L": "1", "-": None, " ": None})
_RANDOM_CHARACTERS = 32
_CHECK_CHARACTERS = 4
_GROUP_CHARACTERS = 4

_LEAST_DISTINCT_CHARACTERS = 10
"""32 random characters from an alphabet of 32 contain 20 different ones on average, and fewer than
10 in one of 10**9 secrets."""

_LEAST_FOREIGN_CHARACTERS = 32
_MOST_CHARACTERS = 256
_MAX_FILE_BYTES = 4 * _MOST_CHARACTERS
_LEAST_BITS = 112
"""By the estimate below, which finds 190 bits (at least 115 in 3000 tries) in 32 bytes as base64.
"""
_WORD_BITS = 1.5
"""Bits per letter of text that looks like a word. English has 0.6 to 1.3 (Shannon 1951)."""
_WORD_LETTERS = 3
"""Shorter runs of letters occur in any random text."""
_VOWELS = frozenset("aeiouAEIOU")
_LETTERS = re.compile("[A-Z]?[a-z]+|[A-Z]+")

_HINT = "omit it and `potluck up --lan` generates one, or use: openssl rand -hex 32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret that passed the strength check. ``text`` is its canonical spelling; never log it."""

    text: str = field(repr=False)


def generate_secret() -> str:
    """Return a new secret of 160 random bits, in the form that users type or paste."""
    return _spell("".join(secrets.choice(ALPHABET) for _ in range(_RANDOM_CHARACTERS)))


def parse_secret(text: str) -> Secret:
    """Return the secret that was typed or pasted, without surrounding whitespace.

    For Potluck's own secrets, case and the position of hyphens are ignored, O is read as 0, and I
    and L as 1. Raises ``ParameterError`` (which does not repeat the text) for a mistyped or weak
    one.
    """
    text = text.strip()
    if text.lower().startswith(_PREFIX):
        return _parse_own(text[len(_PREFIX) :])
    return _parse_foreign(text)


def load_secret(environ: Mapping[str, str], path: Path | None) -> Secret | None:
    """Return the secret in the file, else that in ``POTLUCK_SECRET``, else None.

    Raises ``ParameterError`` if the file cannot be read or the secret is invalid.
    """
    if path is not None:
        return parse_secret(_read(path))
    text = environ.get(SECRET_VARIABLE)
    return None if text is None else parse_secret(text)


def own_secret(path: Path) -> Secret:
    """Return the secret of a node without a cluster, generated at the first call and stored at
    ``path``.

    The file is readable by its owner only (0600), as is the directory if it has to be created
    (0700). Concurrent calls from several processes all return the same secret. Raises ``OSError``,
    and ``ParameterError`` if the stored secret is invalid.
    """
    if not path.parent.exists():
        make_private_folder(path.parent)
    if not path.exists():
        create_file(path, f"{generate_secret()}\n".encode("ascii"))
    try:
        return parse_secret(_decoded(path, read_regular_file(path, _MAX_FILE_BYTES)))
    except ParameterError as error:
        raise ParameterError(
            "secret",
            f"{path} does not contain a valid secret: {error.message}",
            hint="restore the file, or delete it and give every node the new secret",
        ) from error


def _read(path: Path) -> str:
    """Return the contents of a file that the user named; it may be a pipe."""
    try:
        with path.open("rb") as file:
            return _decoded(path, file.read(_MAX_FILE_BYTES))
    except OSError as error:
        raise ParameterError(
            "secret",
            f"{path}: cannot read the secret: {error.strerror}",
            hint="name a text file that this user can read",
        ) from error


def _decoded(path: Path, data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise ParameterError(
            "secret",
            f"{path}: cannot read the secret: it is not ASCII text",
            hint="name a text file that contains only the secret",
        ) from error


def _parse_own(text: str) -> Secret:
    characters = text.upper().translate(_LOOKALIKES)
    random, check = characters[:_RANDOM_CHARACTERS], characters[_RANDOM_CHARACTERS:]
    if not set(characters) <= set(ALPHABET) or check != _check(random):
        raise ParameterError(
            "secret",
            "the secret has a typo: its last group does not match the others",
            hint="copy it again from the node that printed it",
        )
    if len(set(random)) < _LEAST_DISTINCT_CHARACTERS:
        raise _weak("it repeats a few characters")
    return Secret(text=_spell(random))


def _parse_foreign(text: str) -> Secret:
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ParameterError(
            "secret", "the secret has spaces or characters outside printable ASCII", hint=_HINT
        )
    if len(text) > _MOST_CHARACTERS:
        raise ParameterError(
            "secret", f"the secret is longer than {_MOST_CHARACTERS} characters", hint=_HINT
        )
    if len(text) < _LEAST_FOREIGN_CHARACTERS:
        raise _weak(f"it has {len(text)} characters, fewer than {_LEAST_FOREIGN_CHARACTERS}")
    if estimate_bits(text) < _LEAST_BITS:
        raise _weak("it does not look random")
    return Secret(text=text)


def estimate_bits(text: str) -> float:
    """Return a conservative estimate of the entropy of ``text``, in bits.

    A character counts as much as the number of distinct ones allows, almost nothing if it looks
    like part of a word, and nothing if it repeats earlier text or continues a sequence (abc, 135,
    aaa). Randomness cannot be measured from a text, so this rejects only what is evidently weak; 64
    random hexadecimal digits always pass.
    """
    if not text:
        return 0.0
    bits_per_character = math.log2(len(set(text)))
    in_word = _in_words(text)
    lowered = text.lower()
    seen: set[str] = set()
    bits = 0.0
    for index in range(len(text)):
        triple = lowered[max(0, index - 2) : index + 1]
        if len(triple) == 3:
            first, second, third = map(ord, triple)
            if triple in seen or third - second == second - first:
                continue
            seen.add(triple)
        bits += min(_WORD_BITS, bits_per_character) if in_word[index] else bits_per_character
    return bits


def _in_words(text: str) -> list[bool]:
    """Return for each character whether it is in a run of letters that could be a word.

    A word is in one case, or capitalized. It has a vowel and at least three letters, or nothing but
    punctuation around it.
    """
    flags = [False] * len(text)
    for match in _LETTERS.finditer(text):
        start, end = match.span()
        is_long = end - start >= _WORD_LETTERS and not _VOWELS.isdisjoint(match.group())
        is_alone = not text[start - 1 : start].isalnum() and not text[end : end + 1].isalnum()
        if is_long or is_alone:
            flags[start:end] = [True] * (end - start)
    return flags


def _spell(random: str) -> str:
    characters = random + _check(random)
    groups = range(0, len(characters), _GROUP_CHARACTERS)
    return _PREFIX + "-".join(characters[i : i + _GROUP_CHARACTERS] for i in groups)


def _check(random: str) -> str:
    digest = hashlib.sha256(b"potluck secret check" + random.encode("utf-8")).digest()
    return "".join(ALPHABET[byte % len(ALPHABET)] for byte in digest[:_CHECK_CHARACTERS])


def _weak(reason: str) -> ParameterError:
    return ParameterError("secret", f"the secret is too weak: {reason}", hint=_HINT)
