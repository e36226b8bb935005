"""Diagnoses why this node could not join: Zenoh does not report refused or failed connections.

It makes one connection to each address that the user gave, and closes it without sending data.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Collection

from potluck.cluster.network.membership.address import Address
from potluck.cluster.network.trust.credentials import REMOVED_NOTICE
from potluck.cluster.network.trust.pem_files import PemPaths

_CONNECT_SECONDS = 1.0
_VERDICT_SECONDS = 0.5
"""How long to wait for a listener to reject our certificate, which in TLS 1.3 it does after the
client's handshake is complete."""

_NO_ANSWER = "no answer"
_NOTHING = "nothing is listening there"
_NO_HOST = "there is no host with that name"
_NO_MEMBER = "something answers there, but it is not a member of this cluster"
REMOVED = "this node was removed from the cluster"
_OTHER_SECRET = "the agent there has a different secret"
_NO_TLS = "a server without TLS answers there, such as the one for clients, not a node"


def explain(address: Address, pem: PemPaths | None) -> str:
    """Return what is wrong at ``address``, in a few words. Blocks for a few seconds at most."""
    try:
        with _connect(address) as connection:
            return _NO_MEMBER if pem is None else _explain_tls(connection, pem)
    except OSError as error:
        return _words(error)


def hint_for(reasons: Collection[str]) -> str:
    """Return what to check, given the answers of ``explain`` for all addresses."""
    if _NO_TLS in reasons:
        return "nodes listen at another port than that for clients: 7333 unless set otherwise"
    if any(reason in (_NO_ANSWER, _NOTHING, _NO_HOST) for reason in reasons):
        return "check the address, and that potluck up --lan runs there and its port is open"
    return "check the address, and that every node was given the same secret"


def unreachable(address: Address) -> str:
    """Return why no TCP connection to ``address`` can be made, in a few words; empty if it can.

    Blocks for at most a second.
    """
    try:
        _connect(address).close()
    except OSError as error:
        return _words(error)
    return ""


def _connect(address: Address) -> socket.socket:
    try:
        return socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
    except UnicodeError as error:  # a label that is empty, or longer than 63 characters
        raise socket.gaierror(str(error)) from error


def _words(error: OSError) -> str:
    match error:
        case TimeoutError():
            return _NO_ANSWER
        case ConnectionRefusedError():
            return _NOTHING
        case socket.gaierror():
            return _NO_HOST
    return (error.strerror or str(error)).lower()


def _explain_tls(connection: socket.socket, pem: PemPaths) -> str:
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.load_verify_locations(pem.authority)
        context.load_cert_chain(pem.certificate, pem.key)
    except OSError as error:  # ssl.SSLError is one
        return f"cannot read this node's certificates ({error.strerror or error})"
    try:
        with context.wrap_socket(connection) as secured:
            secured.settimeout(_VERDICT_SECONDS)
            if secured.recv(len(REMOVED_NOTICE)) == REMOVED_NOTICE:
                return REMOVED
    except ssl.SSLCertVerificationError as error:
        if "expired" in error.verify_message or "not yet valid" in error.verify_message:
            return f"this node rejects its certificate: {error.verify_message}"
        return _OTHER_SECRET
    except TimeoutError:
        return "something answers there, but does not accept this node"
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT_CERTIFICATE_EXPIRED" in reason:
            return "it rejects this node's certificate as expired; its clock may be wrong"
        if reason == "WRONG_VERSION_NUMBER":  # what it sent, such as HTTP/1.1 400, is no TLS
            return _NO_TLS
        is_alert = "ALERT" in reason
        return _OTHER_SECRET if is_alert else f"{_NO_MEMBER}, or has a different secret"
    except OSError:
        return f"{_NO_MEMBER}, or has a different secret"
    return _NO_MEMBER
