"""An invitation as it is typed: the address of the server, the token, and the pin of the server's
key.

    10.0.0.7:7333/K7QW2M9C4T8RZ0XB6DHN3VJ5PYFA1GES/Jm0b…43 characters…

``ADDRESS[,ADDRESS…]/TOKEN/PIN``. The token is 160 random bits in Crockford's base 32. The pin is
the SHA-256 of the server key's SubjectPublicKeyInfo, in base64 for URLs (RFC 4648, section 5)
without padding: what ``curl --pinnedpubkey`` and RFC 7469 pin, in another alphabet. The server's
certificate needs no other check, and a newcomer has no other way to check it. Needs only the
standard library.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
from dataclasses import dataclass, field

from potluck.cluster.network.membership.address import Address, parse_address
from potluck.cluster.network.trust.secret import ALPHABET
from potluck.errors import ParameterError

TOKEN_CHARACTERS = 32
_TOKEN = re.compile(f"[{ALPHABET}]{{{TOKEN_CHARACTERS}}}")
_PIN = re.compile("[A-Za-z0-9_-]{43}")
_MOST_ADDRESSES = 16
_MOST_CHARACTERS = 2048

_HINT = "copy the whole line that potluck invite printed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The content of an invitation. Anyone who has it can join while it is open, so never log it.

    ``addresses`` are those of one node, in the order in which to try them. ``key_sha256`` is the
    digest of its server key (32 bytes).
    """

    addresses: tuple[Address, ...]
    token: str = field(repr=False)
    key_sha256: bytes

    def __str__(self) -> str:
        addresses = ",".join(map(str, self.addresses))
        return f"{addresses}/{self.token}/{pin_text(self.key_sha256)}"


def generate_token() -> str:
    """Return a new token of 160 random bits."""
    return "".join(secrets.choice(ALPHABET) for _ in range(TOKEN_CHARACTERS))


def is_token(text: str) -> bool:
    """Return whether ``text`` has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


def token_digest(token: str) -> bytes:
    """Return the digest under which a token is stored; 160 random bits need no slow hash."""
    return hashlib.sha256(b"potluck invitation\0" + token.encode("ascii")).digest()


def pin_text(key_sha256: bytes) -> str:
    """Return a digest in the form in which it appears in an invitation."""
    return base64.urlsafe_b64encode(key_sha256).rstrip(b"=").decode("ascii")


def is_invitation(text: str) -> bool:
    """Return whether ``text``, given in place of an address, is meant as an invitation."""
    return "/" in text


def parse_invitation(text: str) -> Invitation:
    """Parse a typed or pasted invitation. Raise ``ParameterError``, which does not repeat it."""
    parts = text.strip().split("/")
    if len(text) > _MOST_CHARACTERS or len(parts) != 3:
        raise _malformed("it does not have the form ADDRESS/TOKEN/PIN")
    addresses, token, pin = parts[0].split(","), parts[1].upper(), parts[2]
    if len(addresses) > _MOST_ADDRESSES:
        raise _malformed(f"it has more than {_MOST_ADDRESSES} addresses")
    if not is_token(token):
        raise _malformed(f"its token is not {TOKEN_CHARACTERS} characters of base 32")
    if not _PIN.fullmatch(pin):
        raise _malformed("its last part is not the 43-character digest of a key")
    return Invitation(
        addresses=tuple(parse_address(each, name="invitation") for each in addresses),
        token=token,
        key_sha256=base64.urlsafe_b64decode(pin + "="),
    )


def _malformed(reason: str) -> ParameterError:
    return ParameterError("invitation", f"invalid invitation: {reason}", hint=_HINT)
