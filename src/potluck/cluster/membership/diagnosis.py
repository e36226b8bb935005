"""Why nobody let this node in: Zenoh itself says nothing about a refused or failed connection.

One connection is made to each address that the user gave, and ended before anything is said on it.
"""

from __future__ import annotations

import socket
import ssl

from potluck.cluster.membership.address import Address
from potluck.cluster.membership.config import PemPaths

_CONNECT_SECONDS = 1.0
_VERDICT_SECONDS = 0.5
"""How long a listener may take to reject our certificate: in TLS 1.3 it does so after the client
takes the handshake for complete."""

_NO_MEMBER = "something answers there, but it is no member of this cluster"
_OTHER_SECRET = "the agent there has another secret"


def explain(address: Address, pem: PemPaths | None) -> str:
    """What is wrong at ``address``, in a few words. Blocks for some seconds at most."""
    try:
        with _connect(address) as connection:
            return _NO_MEMBER if pem is None else _explain_tls(connection, pem)
    except OSError as error:
        return _words(error)


def unreachable(address: Address) -> str:
    """Why no TCP connection to ``address`` can be made, in a few words; empty if it can.

    Blocks for a second at most.
    """
    try:
        _connect(address).close()
    except OSError as error:
        return _words(error)
    return ""


def _connect(address: Address) -> socket.socket:
    return socket.create_connection((address.host, address.port), _CONNECT_SECONDS)


def _words(error: OSError) -> str:
    match error:
        case TimeoutError():
            return "nobody answers"
        case ConnectionRefusedError():
            return "nothing listens there"
        case socket.gaierror():
            return "there is no host of that name"
    return (error.strerror or str(error)).lower()


def _explain_tls(connection: socket.socket, pem: PemPaths) -> str:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.load_verify_locations(pem.authority)
        context.load_cert_chain(pem.certificate, pem.key)
    except OSError as error:  # ssl.SSLError is one
        return f"this node's certificates cannot be read ({error.strerror or error})"
    try:
        with context.wrap_socket(connection) as secured:
            secured.settimeout(_VERDICT_SECONDS)
            secured.recv(1)
    except ssl.SSLCertVerificationError as error:
        if "expired" in error.verify_message or "not yet valid" in error.verify_message:
            return f"its certificate is refused here: {error.verify_message}"
        return _OTHER_SECRET
    except TimeoutError:
        return "something answers there, but does not let this node in"
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT_CERTIFICATE_EXPIRED" in reason:
            return "it refuses this node's certificate as expired; the clock there may be wrong"
        is_alert = "ALERT" in reason
        return _OTHER_SECRET if is_alert else f"{_NO_MEMBER}, or has another secret"
    except OSError:
        return f"{_NO_MEMBER}, or has another secret"
    return _NO_MEMBER
