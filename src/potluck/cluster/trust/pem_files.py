"""Credentials in a directory: for Zenoh, which reads files, and for handing them to workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from potluck.cluster.trust.credentials import Credentials
from potluck.private_files import make_private_folder, replace_file
from potluck.types.cluster import NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class PemPaths:
    """Where the three files of a node's credentials stand."""

    authority: Path
    certificate: Path
    private_key: Path


def pem_paths(directory: Path) -> PemPaths:
    """The names that credentials have in ``directory``."""
    return PemPaths(
        authority=directory / "authority.pem",
        certificate=directory / "node.pem",
        private_key=directory / "node-key.pem",
    )


def write_pem_files(credentials: Credentials, directory: Path) -> PemPaths:
    """Write the files, each at once, for their owner alone: directory 0700, files 0600.

    A directory that exists is closed to others first. Raises ``OSError``.
    """
    make_private_folder(directory)
    paths = pem_paths(directory)
    replace_file(paths.authority, credentials.authority_pem)
    replace_file(paths.private_key, credentials.private_key_pem)
    replace_file(paths.certificate, credentials.certificate_pem)
    return paths


def read_pem_files(directory: Path, node_id: NodeId) -> Credentials:
    """The credentials that ``write_pem_files`` left for ``node_id``. Raises ``OSError``."""
    paths = pem_paths(directory)
    return Credentials(
        node_id=node_id,
        certificate_pem=paths.certificate.read_bytes(),
        private_key_pem=paths.private_key.read_bytes(),
        authority_pem=paths.authority.read_bytes(),
    )
