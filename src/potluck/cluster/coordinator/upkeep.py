"""The work for a plan in force that no request waits for: spares, files, and unused stages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from potluck.cluster.background import Spawn
from potluck.cluster.coordinator.attempt import Attempt
from potluck.cluster.coordinator.published_record import PublishedRecord
from potluck.cluster.coordinator.releasing import release_others
from potluck.cluster.coordinator.spares import load_spares
from potluck.cluster.coordinator.weights import ModelWeights, gather_holdings, gather_transfers
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import (
    ChunkDigests,
    DiscardFile,
    HashRange,
    NodeHoldings,
)
from potluck.cluster.wire.methods import DISCARD, HASH, VERIFIED
from potluck.errors import CallError, ModelFileError, PotluckError
from potluck.types.cluster import NodeId
from potluck.types.content import ChunkRuns, FileContent, ManifestFile
from potluck.types.deployment import DeploymentRecord, Verification

_log = logging.getLogger(__name__)

_TRANSFERS_SECONDS = 1.0
"""The time for transfer processes to report their final figures; they report twice a second."""


_RANGE_CHUNKS = 256
"""How many chunks one node hashes per call: a second or less, so that calls stay short."""


def holders_in_order(
    content: FileContent, held: Mapping[NodeId, ChunkRuns]
) -> tuple[tuple[NodeId, int, int], ...] | None:
    """Return who hashes which chunks, in the order of the file; None if some are missing.

    Every range is as long as possible, so that the state changes hands as seldom as possible. Pure.
    """
    ranges: list[tuple[NodeId, int, int]] = []
    at = 0
    while at < content.num_chunks:
        ends = {
            node: end for node, runs in held.items() for first, end in runs if first <= at < end
        }
        if not ends:
            return None
        node = max(ends, key=lambda each: (ends[each], each))
        end = min(ends[node], content.num_chunks)
        ranges.append((node, at, end))
        at = end
    return tuple(ranges)


async def verify_files(membership: Membership, record: DeploymentRecord) -> Verification:
    """Return whether all files of a deployment match their SHA-256, as far as known.

    No node needs to have all of a file. The state of its SHA-256 is passed from holder to holder in
    the order of the file, some 48 bytes each time, and each continues it with the chunks that it
    has. The result is the SHA-256 of the bytes that the nodes compute with. It takes as long as
    hashing the file, in the background of serving. Until then, chunks are compared with the digests
    of the first holder, so that all copies are the same: one wrong chunk is found wherever it is.
    The digests of all chunks, which are then verified, are sent to the holders, for nodes that
    fetch chunks from them later.

    Raise ``ModelFileError`` for a file that does not match; every node then removes its chunks of
    it.
    """
    manifest = record.status.files.manifest
    if manifest is None:
        return Verification.VERIFIED
    nodes = membership.reachable_nodes()
    contents = {file.content.sha256: file.content for file in manifest.files}
    found = await gather_holdings(membership, nodes, tuple(contents.values()))
    is_whole = True
    for file in manifest.files:
        is_verified = await _verify(membership, file, found)
        if is_verified is False:
            request = DiscardFile(sha256=file.content.sha256, reason=f"{file.name} is damaged")
            told = dict.fromkeys(nodes, request)
            await DISCARD.call_all(membership, told, level=logging.WARNING)
            origin = "" if manifest.hub is None else f" of {manifest.hub.repo_id}"
            raise ModelFileError(
                f"{file.name}{origin}",
                f"what was fetched of it does not match its SHA-256 {file.content.sha256}",
                hint="it was removed from every node's store; deploy the model again, and if that "
                "does not help, the file is damaged at its source",
            )
        is_whole = is_whole and is_verified is True
    return Verification.VERIFIED if is_whole else Verification.PARTLY


async def _verify(
    membership: Membership, file: ManifestFile, found: Mapping[NodeId, NodeHoldings]
) -> bool | None:
    """Return whether a file matches its SHA-256; None if no nodes have all of it, or one fails."""
    content = file.content
    if any(content.sha256 in each.verified for each in found.values()):
        return True  # and the others were sent the digests of its chunks
    held = {node: each.held.get(content.sha256, ()) for node, each in found.items()}
    ranges = holders_in_order(content, held)
    if ranges is None:
        return None
    state, digests = b"", bytearray()
    try:
        for node, first, end in _in_pieces(ranges):
            request = HashRange(sha256=content.sha256, first=first, end=end, state=state)
            hashed = await HASH.call(membership, node, request)
            state = hashed.state
            digests += hashed.digests
        is_right = await asyncio.to_thread(_digest, state) == content.sha256
    except (CallError, ValueError) as error:  # a node has left, or removed chunks
        _log.warning("cannot verify %s: %s", file.name, error)
        return None
    verified = ChunkDigests(content=content, digests=bytes(digests))
    if is_right and verified.are_whole:
        holders = [node for node, runs in held.items() if runs]
        told = dict.fromkeys(holders, verified)
        await VERIFIED.call_all(membership, told, level=logging.WARNING)
    return is_right


def _in_pieces(ranges: Sequence[tuple[NodeId, int, int]]) -> list[tuple[NodeId, int, int]]:
    return [
        (node, start, min(end, start + _RANGE_CHUNKS))
        for node, first, end in ranges
        for start in range(first, end, _RANGE_CHUNKS)
    ]


def _digest(state: bytes) -> str:
    from potluck.kernels import Sha256State  # which needs NumPy

    finished = Sha256State() if not state else Sha256State.restored(state)
    return finished.digest().hex()


class Upkeep:
    """Does this work after an epoch begins to serve, and when a node joins. For the agent's loop.

    ``in_force`` returns the attempt whose plan serves; None between two plans. ``discard`` removes
    the deployment, with a reason, if its files are damaged.
    """

    def __init__(
        self,
        membership: Membership,
        published: PublishedRecord,
        weights: ModelWeights | None,
        *,
        in_force: Callable[[], Attempt | None],
        discard: Callable[[str], None],
        spawn: Spawn,
    ) -> None:
        self.num_spares = 0
        self._membership = membership
        self._published = published
        self._weights = weights
        self._in_force = in_force
        self._discard = discard
        self._spawn = spawn

    def served(self, attempt: Attempt) -> None:
        """Handle that the plan of an attempt serves now."""
        self._spawn(self._settle(attempt))

    def node_joined(self) -> None:
        """Handle a node that may hold spares and answer clients."""
        if self._published.record.spec.num_spares:
            self._spawn(self._load_spares())
        self._spawn(self._identify_files())

    async def release_unused(self) -> None:
        """End the workers, on all nodes, that hold none of the stages of the plan in force."""
        if (attempt := self._in_force()) is not None:
            await release_others(self._membership, attempt.record, attempt.stages)

    async def _settle(self, attempt: Attempt) -> None:
        """Release what the plan does not use, and load its spares."""
        await self.release_unused()
        await self._load_spares()
        if attempt.record.status.files.manifest is not None:
            await self._publish_files(attempt)
        await self._identify_files()

    async def _identify_files(self) -> None:
        """Let nodes that have none of the model's files read its texts, to answer clients."""
        attempt = self._in_force()
        if attempt is None:
            return  # the next epoch does it
        try:
            if await attempt.identify_files():
                self._published.update()
        except PotluckError as error:
            _log.warning(
                "%s: nodes without its files cannot answer for it: %s",
                self._published.record.model_id,
                error.message,
            )

    async def _publish_files(self, attempt: Attempt) -> None:
        """Publish what nodes fetched of the model's files, and whether the files are intact."""
        await asyncio.sleep(_TRANSFERS_SECONDS)
        attempt.note_transfers(await gather_transfers(self._membership, attempt.record))
        self._published.update()
        if attempt.record.status.files.verification is not Verification.PENDING:
            return
        try:
            attempt.note_verification(await verify_files(self._membership, attempt.record))
        except ModelFileError as error:
            _log.error("%s was undeployed: %s", self._published.record.model_id, error.message)
            self._discard(error.message)
        else:
            self._published.update()

    async def _load_spares(self) -> None:
        if self._published.record.spec.num_spares and (attempt := self._in_force()) is not None:
            sparings = await attempt.sparings()
            self.num_spares = await load_spares(
                self._membership,
                attempt.record,
                attempt.size,
                sparings,
                self._weights,
                attempt.links,
            )
