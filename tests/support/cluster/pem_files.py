"""Credentials that another process has written."""

from __future__ import annotations

from pathlib import Path

from potluck.cluster.network.trust.credentials import CredentialFiles, Credentials
from potluck.cluster.network.trust.pem_files import pem_paths
from potluck.types.cluster import NodeId


def read_pem_files(directory: Path, node_id: NodeId) -> Credentials:
    """What ``write_pem_files`` wrote for a node."""
    return CredentialFiles(node_id=node_id, **pem_paths(directory).texts()).read()
