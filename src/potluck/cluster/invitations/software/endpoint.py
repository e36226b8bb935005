"""Where an invited machine finds the invitation server, and how it verifies the server's
identity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIELDS = {
    "host": re.compile(r"[0-9A-Za-z:.\-]{1,253}"),
    "token": re.compile(r"[0-9A-Za-z_\-]{1,128}"),
    "certificate_sha256": re.compile(r"[0-9a-f]{64}"),
    "public_key_sha256": re.compile(r"[0-9A-Za-z+/]{43}="),
    "invitation": re.compile(r"[^\s'\"\\`$]{1,1000}"),
}
"""The characters of the values, which are inserted into shell lines and programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address and the identity of the server, and the token of one invitation.

    ``certificate_sha256`` is the digest of the server certificate in DER, in hexadecimal digits;
    ``public_key_sha256`` that of its SubjectPublicKeyInfo, in base64. ``invitation`` is the
    argument of ``potluck up --join``. Raise ``ValueError`` for characters with a meaning to a
    shell.
    """

    host: str
    port: int
    token: str
    certificate_sha256: str
    public_key_sha256: str
    invitation: str

    def __post_init__(self) -> None:
        for name, pattern in _FIELDS.items():
            if pattern.fullmatch(getattr(self, name)) is None:
                raise ValueError(f"invalid {name} of an invitation: {getattr(self, name)!r}")
        if not 0 < self.port < 1 << 16:
            raise ValueError(f"invalid port of an invitation: {self.port}")

    def path(self, name: str) -> str:
        """Return the path of a resource of this invitation."""
        return f"/join/{self.token}/{name}"
