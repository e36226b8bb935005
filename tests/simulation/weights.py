"""Files that nodes get by their content: one file, of which each layer reads one chunk.

What production code asks of a node (``weights.*``) is answered as the agent and its transfer
process do: what is held outlives the agent, as a disk does, a seed fetches from the hub what it was
told to, and hands it on while others wait.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from simulation.stages import NUM_LAYERS
from support.cluster.played_network import Process

from potluck.cluster.coordinator.weights import StageNeeds
from potluck.cluster.wire.calls import AskHoldings, NodeHoldings, PrepareWeights, decode, encode
from potluck.errors import CallError
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.content import (
    CHUNK_BYTES,
    ChunkSource,
    FileContent,
    HubOrigin,
    Manifest,
    ManifestFile,
    SourceKind,
    runs_of,
)
from potluck.types.program import Shard

CONTENT = FileContent(sha256="0" * 64, num_bytes=NUM_LAYERS * CHUNK_BYTES)
MANIFEST = Manifest(
    kind="gguf",
    files=(ManifestFile(name="toy.gguf", content=CONTENT),),
    main="toy.gguf",
    hub=HubOrigin(repo_id="toy/toy", commit="0" * 40),
)

HUB_SECONDS = 0.3
"""For one chunk. Peers take as long as the network does."""


class AskChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a node for a chunk that it has, or gets."""

    deployment: DeploymentId
    chunk: int


@dataclass(slots=True)
class Hub:
    """How often each chunk was fetched; ``is_there`` says whether nodes reach it."""

    fetches: Counter[int] = field(default_factory=Counter)
    is_there: bool = True


class ToyWeights:
    """What a coordinator knows of the file; ``ModelWeights``."""

    async def manifest(self, _: object) -> Manifest:
        """Return the one file."""
        return MANIFEST

    async def needs(self, _: Manifest, shards: Sequence[Shard]) -> tuple[StageNeeds, ...]:
        """Return a chunk for each layer."""
        return tuple(
            StageNeeds(loaded=((CONTENT.sha256, ((each.start_layer, each.end_layer),)),))
            for each in shards
        )


class ToyFiles:
    """A node's part in passing the file on. ``disk`` outlives it."""

    def __init__(self, process: Process, disk: set[int], hub: Hub) -> None:
        self._process = process
        self._disk = disk
        self._hub = hub
        self._sources: dict[DeploymentId, PrepareWeights] = {}
        self._fetching: dict[int, asyncio.Task[None]] = {}
        process.methods.register("weights.holdings", self._on_holdings)
        process.methods.register("weights.prepare", self._on_prepare)
        process.methods.register("weights.end", self._on_end)
        process.methods.register("weights.transfer", self._on_transfer)
        process.methods.register("toy.chunk", self._on_chunk)

    async def get(self, deployment: DeploymentId, chunk: int) -> None:
        """Return when a chunk is here. Raises ``CallError`` where its source fails."""
        while chunk not in self._disk:
            fetching = self._fetching.get(chunk)
            if fetching is None:
                fetching = asyncio.ensure_future(self._fetch(deployment, chunk))
                self._fetching[chunk] = fetching
                fetching.add_done_callback(lambda _: self._fetching.pop(chunk))
            await asyncio.shield(fetching)

    async def _fetch(self, deployment: DeploymentId, chunk: int) -> None:
        source = self._source(deployment, chunk)
        if source is None:
            raise CallError(f"no source of chunk {chunk} at {self._process.node_id}")
        if source.kind is SourceKind.HUB:
            await asyncio.sleep(HUB_SECONDS)
            if not self._hub.is_there:
                raise CallError("the hub is out of reach")
            self._hub.fetches[chunk] += 1
        else:
            request = encode(AskChunk(deployment=deployment, chunk=chunk))
            assert source.node is not None
            await self._process.call(source.node, "toy.chunk", request, timeout_seconds=20.0)
        self._disk.add(chunk)

    def _source(self, deployment: DeploymentId, chunk: int) -> ChunkSource | None:
        prepared = self._sources.get(deployment)
        if prepared is None:
            return None
        found = [each for each in prepared.sources if each.first <= chunk < each.end]
        assert len(found) <= 1, "a chunk has two sources"
        assert all(each.node in prepared.peers for each in found if each.node is not None)
        return found[0] if found else None

    async def _on_holdings(self, payload: bytes) -> bytes:
        request = decode(payload, AskHoldings)
        assert request.contents == (CONTENT,)
        return encode(
            NodeHoldings(
                held={CONTENT.sha256: runs_of(self._disk)} if self._disk else {},
                verified=frozenset(),
                reaches_hub=request.hub is not None and self._hub.is_there,
                host=self._process.node_id,
                port=1,
            )
        )

    async def _on_prepare(self, payload: bytes) -> bytes:
        request = decode(payload, PrepareWeights)
        assert request.manifest == MANIFEST
        self._sources[request.deployment] = request
        return b""

    async def _on_end(self, _: bytes) -> bytes:
        return b""

    async def _on_transfer(self, _: bytes) -> bytes:
        return encode(None)

    async def _on_chunk(self, payload: bytes) -> bytes:
        request = decode(payload, AskChunk)
        await self.get(request.deployment, request.chunk)
        return b""


Disks = dict[NodeId, set[int]]
"""What nodes hold, over all agents that they run one after the other."""
