"""Signed statements of the cluster's authority that a node was removed.

Each is independent and permanent, so nodes may learn of them in any order and from any node. Needs
the ``cryptography`` package.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from potluck.cluster.network.trust.authority import Authority
from potluck.cluster.network.trust.credentials import check_node_id
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId

MOST_REMOVALS = 4096
"""About 120 bytes each, in a control message of at most 1 MiB."""


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """The statement that a node was removed at ``time`` (seconds since 1970, by the signer's
    clock).
    """

    node_id: str
    time: int
    signature: bytes


def sign_removal(authority: Authority, cluster_id: str, node_id: NodeId, time: int) -> Removal:
    """Sign the statement that a node is removed."""
    signature = authority.private_key.sign(
        _statement(cluster_id, node_id, time), ec.ECDSA(hashes.SHA256())
    )
    return Removal(node_id=node_id, time=time, signature=signature)


def is_genuine(removal: Removal, cluster_id: str, authority_pem: bytes) -> bool:
    """Return whether this cluster's authority signed the statement."""
    key = x509.load_pem_x509_certificate(authority_pem).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        node_id = check_node_id(removal.node_id)
        statement = _statement(cluster_id, node_id, removal.time)
        key.verify(removal.signature, statement, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ParameterError):
        return False
    return True


def encode_lines(removals: Iterable[Removal]) -> bytes:
    """Return the contents of the file that ``trust.removed`` reads."""
    lines = (
        f"{each.node_id} {each.time} {base64.b64encode(each.signature).decode('ascii')}\n"
        for each in removals
    )
    return "".join(lines).encode("ascii")


def decode_lines(data: bytes) -> tuple[Removal, ...]:
    """Return the statements in such a file, unverified; malformed lines are skipped."""
    found = []
    for line in data.decode("ascii", "replace").splitlines():
        match line.split(" "):
            case [node_id, time, signature] if time.isascii() and time.isdigit():
                try:
                    decoded = base64.b64decode(signature, validate=True)
                except (binascii.Error, ValueError):
                    continue
                found.append(Removal(node_id=node_id, time=int(time), signature=decoded))
    return tuple(found)


def _statement(cluster_id: str, node_id: NodeId, time: int) -> bytes:
    return f"potluck removal 1\0{cluster_id}\0{node_id}\0{time}".encode("ascii")
