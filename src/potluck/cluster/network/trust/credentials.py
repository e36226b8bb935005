"""A node's credentials, and the TLS contexts made from them.

TLS 1.3 only; both sides present a certificate issued by the cluster's authority, and no other is
trusted. Host names are not checked: a node is identified by the node id in its certificate, which
``peer_node_id`` reads. A handshake with a node that was removed from the cluster fails on either
side, so that no user of these contexts can forget the check.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from potluck.cluster.network.trust.removed import RemovedNodes
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId

REMOVED_NOTICE = b"potluck: this node was removed from the cluster\n"
"""Sent to a removed node over TLS before its connection is closed."""

_NODE_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A node's certificate and key, and the certificate of the authority that issued it (PEM).

    ``removed_path`` is the file of removed nodes (``trust.removed``), which contexts read in each
    handshake; None if nodes cannot be removed. An agent sends all of it to its workers.
    """

    node_id: NodeId
    certificate_pem: bytes
    private_key_pem: bytes = field(repr=False)
    authority_pem: bytes
    removed_path: str | None = None

    def server_context(self) -> ssl.SSLContext:
        """Return a context for accepting connections. It may be used for any number of them."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        # Tickets would resume a session without presenting a certificate again, and would
        # add data after the handshake that nobody reads.
        context.num_tickets = 0
        return context

    def client_context(self) -> ssl.SSLContext:
        """Return a context for making connections. It may be used for any number of them."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = _MemberContext(protocol)
        context.sslsocket_class = _MemberSocket
        context.removed = RemovedNodes(self.removed_path)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.load_verify_locations(cadata=self.authority_pem.decode("ascii"))
        load_pem_chain(context, self.certificate_pem + self.private_key_pem)
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialFiles:
    """The files from which a child process of the agent reads the node's credentials.

    ``authority``, ``certificate`` and ``key`` are PEM files, ``removed`` is the file of removed
    nodes.
    """

    node_id: str
    authority: str
    certificate: str
    key: str
    removed: str | None = None

    def read(self) -> Credentials:
        """Return the credentials. Raises ``OSError``."""
        return Credentials(
            node_id=NodeId(self.node_id),
            certificate_pem=Path(self.certificate).read_bytes(),
            private_key_pem=Path(self.key).read_bytes(),
            authority_pem=Path(self.authority).read_bytes(),
            removed_path=self.removed,
        )


class RemovedNodeError(ConnectionRefusedError):
    """The peer of a handshake was removed from the cluster."""

    def __init__(self, node: NodeId) -> None:
        super().__init__(errno.ECONNREFUSED, f"node {node} was removed from the cluster")


class _MemberContext(ssl.SSLContext):
    removed: RemovedNodes


class _MemberSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        try:
            peer = peer_node_id(self)
        except ParameterError:  # not a member at all: the caller reports it
            return
        if peer in cast("_MemberContext", self.context).removed:
            if self.server_side:
                with contextlib.suppress(OSError):
                    self.send(REMOVED_NOTICE)
            raise RemovedNodeError(peer)


def load_pem_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a certificate and its key into ``context``, whose own method accepts only paths."""
    with os.fdopen(os.memfd_create("potluck-credentials"), "wb") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def is_node_id(text: str) -> bool:
    """Return whether ``text`` is 16 lower-case hexadecimal digits."""
    return _NODE_ID.fullmatch(text) is not None


def check_node_id(text: str) -> NodeId:
    """Return ``text`` as a node id: 16 hexadecimal digits. Raises ``ParameterError``."""
    if not is_node_id(text):
        raise ParameterError("node id", f"{text[:40]!r} is not a node id (16 hexadecimal digits)")
    return NodeId(text)


def peer_node_id(connection: ssl.SSLSocket) -> NodeId:
    """Return the node id in the peer's certificate. For use after the handshake.

    Raises ``ParameterError`` if the certificate has none, and so was not made by Potluck.
    """
    certificate = connection.getpeercert() or {}
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    names = [value for part in subject for key, value in part if key == "commonName"]
    return check_node_id(names[0] if len(names) == 1 else "")
