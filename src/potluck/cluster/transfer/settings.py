"""The settings that the agent passes to the transfer process at start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings:
    """Where peers reach the node (``host`` is a numeric address), its PEM files, and the store.

    ``port`` is the node's single port, from which connections are handed over; without it, the
    process listens on a free one. With ``limit_bytes`` of 0, nothing is stored.
    """

    host: str
    port: int = 0
    node_id: str
    authority: str
    certificate: str
    key: str
    store_folder: str
    limit_bytes: int
    removed: str | None = None
    """The file of nodes that were removed from the cluster (``trust.removed``)."""

    hub_folder: str | None = None
    """huggingface_hub's cache, in which files in large-file storage are found; None for none."""
