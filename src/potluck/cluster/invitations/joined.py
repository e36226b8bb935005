"""The membership of an invited node: its certificate, its key, and addresses of other members."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from potluck.cluster.network.trust.credentials import check_node_id
from potluck.errors import ParameterError, PotluckError
from potluck.host.private_files import replace_file
from potluck.host.system import read_regular_file

_MAX_FILE_BYTES = 1 << 20
_MOST_ADDRESSES = 64


class JoinedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The membership of an invited node. PEM documents are text.

    ``client_chain_pem`` is a certificate for serving clients, with its key. ``addresses`` are where
    members were last seen, ``multicast`` whether this cluster discovers members by multicast, and
    ``token_sha256`` the digest of the token with which it joined.
    """

    cluster_id: str
    node_id: str
    certificate_pem: str
    private_key_pem: str
    authority_pem: str
    client_chain_pem: str
    addresses: tuple[str, ...] = ()
    multicast: bool = False
    token_sha256: bytes = b""

    def __repr__(self) -> str:
        """Return a representation without the keys."""
        return f"JoinedCluster(cluster_id={self.cluster_id!r}, node_id={self.node_id!r})"

    def check(self) -> None:
        """Raise ``ParameterError`` unless the certificate is the node's and signed by its
        authority.
        """
        from potluck.cluster.network.trust.requests import (
            check_issued,  # loads a library of certificates
        )

        name = check_issued(
            self.certificate_pem.encode(),
            self.authority_pem.encode(),
            self.private_key_pem.encode(),
        )
        if name != check_node_id(self.node_id):
            raise ParameterError("certificate", f"the certificate is for the node {name[:40]!r}")


def read_joined(path: Path) -> JoinedCluster | None:
    """Return what an invited node keeps at ``path``; None if it was not invited.

    Raise ``OSError``, and ``PotluckError`` for a malformed file.
    """
    try:
        data = read_regular_file(path, _MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    try:
        joined = msgspec.json.decode(data, type=JoinedCluster)
        joined.check()
    except (ValueError, ParameterError) as error:
        raise PotluckError(
            f"{path} does not hold this node's membership",
            hint="remove it, and join again with a new invitation",
        ) from error
    return joined


def write_joined(path: Path, joined: JoinedCluster) -> None:
    """Write the membership durably, also with respect to power failures. Raise ``OSError``."""
    replace_file(path, msgspec.json.encode(joined) + b"\n")


def with_addresses(joined: JoinedCluster, addresses: Iterable[str]) -> JoinedCluster:
    """Return the same with ``addresses`` in front of those already known, without duplicates."""
    merged = tuple(dict.fromkeys((*addresses, *joined.addresses)))[:_MOST_ADDRESSES]
    return msgspec.structs.replace(joined, addresses=merged)
