"""What a node proves its membership with, and the TLS contexts made of it.

TLS 1.3 only, both sides show a certificate of the cluster's authority, nothing else is trusted.
Host names are not checked: nodes are known by the node id in the certificate, which
``peer_node_id`` reads.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from typing import cast

from potluck.errors import ParameterError
from potluck.types.cluster import NodeId

_NODE_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A node's certificate and key, and the certificate of the authority that issued it (PEM)."""

    node_id: NodeId
    certificate_pem: bytes
    private_key_pem: bytes = field(repr=False)
    authority_pem: bytes

    def server_context(self) -> ssl.SSLContext:
        """For the side that accepts connections. May be used for any number of them."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        # Tickets would resume a session without a certificate being shown again, and put
        # traffic on the wire behind the handshake that nobody reads.
        context.num_tickets = 0
        return context

    def client_context(self) -> ssl.SSLContext:
        """For the side that connects. May be used for any number of connections."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=self.authority_pem.decode("ascii"))
        load_pem_chain(context, self.certificate_pem + self.private_key_pem)
        return context


def load_pem_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate and its key into ``context``, which takes paths only."""
    with os.fdopen(os.memfd_create("potluck-credentials"), "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def check_node_id(text: str) -> NodeId:
    """``text`` as a node id; raises ``ParameterError`` unless it is 16 hexadecimal digits."""
    if not _NODE_ID.fullmatch(text):
        raise ParameterError("node id", f"{text[:40]!r} is no node id (16 hexadecimal digits)")
    return NodeId(text)


def peer_node_id(connection: ssl.SSLSocket) -> NodeId:
    """The node id that the peer's certificate says, after the handshake.

    Raises ``ParameterError`` if it says none: the certificate was not made by Potluck.
    """
    certificate = connection.getpeercert() or {}
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    names = [value for part in subject for key, value in part if key == "commonName"]
    return check_node_id(names[0] if len(names) == 1 else "")
