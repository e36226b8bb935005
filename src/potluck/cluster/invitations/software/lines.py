"""The lines to type on an invited machine: each of them downloads the installer and runs it.

Both verify the server by its certificate before they send the token. The Python line compares the
digest of the certificate; curl and GNU wget compare that of its public key, as they can do nothing
else.
"""

from __future__ import annotations

from potluck.cluster.invitations.software.endpoint import Endpoint

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
