"""Origins of chunks, and the order in which they are asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.types.cluster import NodeId
from potluck.types.content import ChunkSource, Manifest, SourceKind


@dataclass(frozen=True, slots=True)
class Origin:
    """The hub, or the peer ``node``."""

    node: NodeId | None = None

    @property
    def label(self) -> str:
        """Return the name used in progress reports."""
        return SourceKind.HUB.value if self.node is None else self.node


HUB = Origin()


class Routes:
    """The origins of one job's chunks."""

    def __init__(
        self,
        manifest: Manifest,
        sources: Sequence[ChunkSource],
        peers: Mapping[NodeId, tuple[str, int]],
    ) -> None:
        self.manifest = manifest
        self.peers = dict(peers)
        self._names = {each.content.sha256: each.name for each in manifest.files}
        self._by_chunk: dict[str, list[tuple[Origin, ...]]] = {}
        self._others: dict[str, dict[Origin, None]] = {}
        sizes = {each.content.sha256: each.content.num_chunks for each in manifest.files}
        for source in sources:
            num_chunks = sizes.get(source.sha256)
            if num_chunks is None or source.kind is SourceKind.DISK:
                continue
            origin = HUB if source.kind is SourceKind.HUB else Origin(source.node)
            if origin is not HUB:
                self._others.setdefault(source.sha256, {})[origin] = None
            by_chunk = self._by_chunk.setdefault(source.sha256, [()] * num_chunks)
            for chunk in range(max(0, source.first), min(source.end, num_chunks)):
                if origin not in by_chunk[chunk]:
                    by_chunk[chunk] = (*by_chunk[chunk], origin)

    def name(self, sha256: str) -> str | None:
        """Return the name of a file in the manifest; None if it is not in it."""
        return self._names.get(sha256)

    def origins(self, sha256: str, chunk: int) -> tuple[Origin, ...]:
        """Return those that were named for a chunk, best first."""
        by_chunk = self._by_chunk.get(sha256)
        return () if by_chunk is None else by_chunk[chunk]

    def other_peers(self, sha256: str) -> tuple[Origin, ...]:
        """Return all peers that were named for any chunk of a file."""
        return tuple(self._others.get(sha256, ()))

    def is_on_hub(self, sha256: str) -> bool:
        """Return whether the hub has a file according to the manifest."""
        return self.manifest.hub is not None and sha256 in self._names
