"""Credentials in a directory, for Zenoh and child processes of the agent, which read files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.network.trust.removed import REMOVED_FILE
from potluck.host.private_files import make_private_folder, replace_file


class PemPathTexts(TypedDict):
    """The fields of ``PemPaths`` as text."""

    authority: str
    certificate: str
    key: str
    removed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PemPaths:
    """The PEM files of the cluster's authority and of this node's certificate and key.

    ``removed`` is the file of removed nodes (``trust.removed``).
    """

    authority: Path
    certificate: Path
    key: Path
    removed: Path

    def texts(self) -> PemPathTexts:
        """Return the paths as text, for the ``CredentialFiles`` of a child process."""
        return {
            "authority": str(self.authority),
            "certificate": str(self.certificate),
            "key": str(self.key),
            "removed": str(self.removed),
        }


def pem_paths(directory: Path) -> PemPaths:
    """Return the paths of credentials in ``directory``."""
    return PemPaths(
        authority=directory / "authority.pem",
        certificate=directory / "node.pem",
        key=directory / "node-key.pem",
        removed=directory / REMOVED_FILE,
    )


def write_pem_files(credentials: Credentials, directory: Path) -> PemPaths:
    """Write the files atomically, readable by their owner only: directory 0700, files 0600.

    The mode of an existing directory is changed first. Raises ``OSError``.
    """
    make_private_folder(directory)
    paths = pem_paths(directory)
    replace_file(paths.authority, credentials.authority_pem)
    replace_file(paths.key, credentials.private_key_pem)
    replace_file(paths.certificate, credentials.certificate_pem)
    return paths
