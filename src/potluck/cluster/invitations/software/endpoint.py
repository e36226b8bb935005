"""The address at which an invited machine finds the invitation server, how it verifies the server,
and the lines to type there: each of them downloads the installer and runs it.

Both lines verify the server by its certificate before they send the token. The Python line compares
the digest of the certificate; curl and GNU wget compare that of its public key, as they can do
nothing else.
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

_TIMEOUT_SECONDS = 60

_PYTHON = """\
import hashlib as a,http.client as b,ssl;\
c=ssl._create_unverified_context();\
c.set_alpn_protocols(["http/1.1"]);\
d=b.HTTPSConnection("{host}",{port},timeout={timeout},context=c);\
d.connect();\
a.sha256(d.sock.getpeercert(True)).hexdigest()=="{certificate}" or \
exit("another machine answers than the one that sent the invitation");\
d.request("GET","{path}");\
e=d.getresponse();\
f=e.read().decode();\
exec(f if e.status==200 else exit(f))"""

_SHELL = """\
k=sha256//{key};u=https://{host}:{port}{path};\
{{ curl -fsSk --pinnedpubkey $k $u||wget -qO- --no-check-certificate --pinnedpubkey=$k $u;}}|sh"""


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


def python_line(endpoint: Endpoint, *, python: str = "python3") -> str:
    """Return the line for a machine with Python.

    It ends with the program's text, so that options for the installer can follow.
    """
    return f"{python} -c '{python_program(endpoint)}'"


def python_program(endpoint: Endpoint) -> str:
    """Return the program of that line, which has no single quotes and runs on Python 3.6."""
    return _PYTHON.format(
        host=endpoint.host,
        port=endpoint.port,
        timeout=_TIMEOUT_SECONDS,
        certificate=endpoint.certificate_sha256,
        path=endpoint.path("install.py"),
    )


def shell_line(endpoint: Endpoint) -> str:
    """Return the line for a machine with a POSIX shell, and curl or GNU wget.

    Options for the installer follow as ``-s -- OPTIONS``.
    """
    return _SHELL.format(
        key=endpoint.public_key_sha256,
        host=f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host,
        port=endpoint.port,
        path=endpoint.path("install.sh"),
    )
