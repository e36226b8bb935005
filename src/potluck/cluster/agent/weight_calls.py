"""Calls of other nodes about the files of models here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator

from potluck.catalog import (
    check_manifest,
    describe_model,
)
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.weights import NodeWeights
from potluck.cluster.background import cancel_all, is_done_within
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.network.membership.address import ip_of
from potluck.cluster.wire.calls import (
    AskHoldings,
    CheckModel,
    ChunkDigests,
    DeploymentReference,
    DialBack,
    DiscardFile,
    Hashing,
    HashRange,
    HashState,
    ManifestEvent,
    ModelFound,
    NamedFile,
    NodeHoldings,
    PrepareWeights,
)
from potluck.cluster.wire.methods import (
    CHECK_MODEL,
    DIAL,
    DIGESTS,
    DISCARD,
    END_WEIGHTS,
    HASH,
    HOLDINGS,
    MANIFEST,
    PREPARE,
    TRANSFER,
    VERIFIED,
)
from potluck.errors import CallError, TransferError
from potluck.types.cluster import NodeId
from potluck.types.content import (
    FileContent,
    SourceKind,
    Transfer,
)

_log = logging.getLogger(__name__)

_TELL_SECONDS = 1.0
"""The interval at which callers that wait for files to be hashed receive the progress."""
_HUB_SECONDS = 4.0
"""The time limit for the hub: a slower one would not be of much use as a source."""


class WeightCalls:
    """Answers these calls. For use in the agent's event loop."""

    def __init__(
        self, membership: Membership, fingerprints: Fingerprints, weights: NodeWeights
    ) -> None:
        self._membership = membership
        self._fingerprints = fingerprints
        self._weights = weights

    def register(self, methods: MethodTable) -> None:
        """Register the calls."""
        CHECK_MODEL.serve(methods, self._weights.check)
        MANIFEST.serve(methods, self._on_manifest)
        HOLDINGS.serve(methods, self._on_holdings)
        PREPARE.serve(methods, self._on_prepare)
        END_WEIGHTS.serve(methods, self._on_end)
        TRANSFER.serve(methods, self._on_transfer)
        DIGESTS.serve(methods, self._on_digests)
        HASH.serve(methods, self._on_hash)
        VERIFIED.serve(methods, self._on_verified)
        DISCARD.serve(methods, self._on_discard)
        DIAL.serve_for_caller(methods, self._on_dial)

    async def _on_manifest(self, request: CheckModel) -> AsyncGenerator[ManifestEvent, None]:
        description = await asyncio.to_thread(describe_model, request.model)
        fingerprint = await asyncio.to_thread(self._fingerprints.of, description)
        latest = Hashing(done_bytes=0, total_bytes=0)

        def progressed(done_bytes: int, total_bytes: int) -> None:
            nonlocal latest
            latest = Hashing(done_bytes=done_bytes, total_bytes=total_bytes)

        making = asyncio.ensure_future(self._weights.manifest_of(description.files, progressed))
        try:
            while not await is_done_within(making, _TELL_SECONDS):
                yield latest
            yield ModelFound(manifest=await making, fingerprint=fingerprint)
        finally:
            await cancel_all([making])

    async def _on_holdings(self, request: AskHoldings) -> NodeHoldings:
        process = self._weights.process()
        found = await process.holdings(request.contents)
        reaches_hub = False
        if (hub := request.hub) is not None:
            from potluck.catalog.hub_client import may_fetch

            reaches_hub = await asyncio.to_thread(
                may_fetch, hub.repo_id, hub.commit, request.hub_file, _HUB_SECONDS
            )
        host, port = process.address
        return NodeHoldings(
            held=found.held,
            verified=found.verified,
            reaches_hub=reaches_hub,
            host=host,
            port=port,
        )

    async def _on_prepare(self, request: PrepareWeights) -> None:
        check_manifest(request.manifest, f"deployment {request.deployment}")
        process = self._weights.process()
        contents = [file.content for file in request.manifest.files]
        known = await process.holdings(contents)
        own = self._membership.node_id
        for content in contents:
            holder = request.verified_at.get(content.sha256)
            if holder is None or holder == own or content.sha256 in known.verified:
                continue
            await self._learn_digests(content, holder)
        sources = [each for each in request.sources if each.kind is not SourceKind.DISK]
        process.set_sources(
            request.deployment, request.manifest, sources, request.peers, ahead=request.ahead
        )

    async def _learn_digests(self, content: FileContent, holder: NodeId) -> None:
        try:
            digests = await DIGESTS.call(self._membership, holder, NamedFile(sha256=content.sha256))
        except CallError as error:  # chunks are then checked against the digests of their sender
            _log.warning("node %s did not report what it verified: %s", holder, error.message)
            return
        found = ChunkDigests(content=content, digests=digests)
        if found.are_whole:
            await self._weights.process().add_digests(content, digests, verified=True)

    async def _on_end(self, request: DeploymentReference) -> None:
        self._weights.end_reading(request.deployment)
        self._weights.transfers.pop(request.deployment, None)

    async def _on_transfer(self, request: DeploymentReference) -> Transfer | None:
        return self._weights.transfers.get(request.deployment)

    async def _on_digests(self, request: NamedFile) -> bytes:
        return await self._weights.process().digests(request.sha256) or b""

    async def _on_hash(self, request: HashRange) -> HashState:
        state, digests = await self._weights.process().hash_chunks(
            request.sha256, request.first, request.end, request.state
        )
        return HashState(state=state, digests=digests)

    async def _on_verified(self, request: ChunkDigests) -> None:
        if request.are_whole:
            process = self._weights.process()
            await process.add_digests(request.content, request.digests, verified=True)

    async def _on_dial(self, caller: NodeId, request: DialBack) -> None:
        if ip_of(request.host) is None:
            raise TransferError(f"{request.host[:60]!r} is not an IP address")
        await self._weights.process().serve_peer(caller, (request.host, request.port))

    async def _on_discard(self, request: DiscardFile) -> None:
        _log.error("removing what was fetched of %s: %s", request.sha256, request.reason)
        await self._weights.process().remove(request.sha256)
