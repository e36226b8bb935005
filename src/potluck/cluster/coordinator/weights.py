"""The files of a deployment that nodes get by content: who gets which parts from whom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.cluster.calls import (
    AskHoldings,
    CheckModel,
    DeploymentReference,
    ModelCheck,
    NodeHoldings,
    PrepareWeights,
    decode,
    encode,
)
from potluck.cluster.coordinator.ways import OPEN_PORT_HINT, known_reachability
from potluck.cluster.membership import Membership
from potluck.errors import CallError, EngineError, PotluckError
from potluck.placement.links import LinkTable
from potluck.placement.sources import Needs, SourcePlan, assign_sources
from potluck.quantities import format_bytes
from potluck.types.cluster import NodeId
from potluck.types.content import (
    CHUNK_BYTES,
    FileContent,
    HubOrigin,
    Manifest,
    ManifestFile,
    ReadingOrder,
    Transfer,
    joined,
    num_chunks,
)
from potluck.types.deployment import DeploymentRecord, TransferRecord
from potluck.types.program import Shard

_log = logging.getLogger(__name__)

_HOLDINGS_SECONDS = 10.0
"""A node may have to find out whether it can reach the hub, which takes some seconds if the hub
does not answer."""

_CHECK_SECONDS = 30.0
"""A node may have to sample its own files."""

_PREPARE_SECONDS = 60.0
"""The digests of large files are sent along: a megabyte for 32 GB."""

OnHashed = Callable[[int, int], None]
"""Called with the bytes of a model's files that were read for hashing, and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """The chunks that a stage reads when it is loaded, and those that its node may read later."""

    loaded: ReadingOrder
    later: ReadingOrder = ()


class ModelWeights(Protocol):
    """What a coordinator knows about the files of its model."""

    is_known_by_content: bool
    """Whether the coordinator itself reads them by content."""

    async def manifest(self, on_progress: OnHashed | None = None) -> Manifest:
        """Return the model's files, hashed unless a hub did that. Raise ``PotluckError``."""
        ...

    async def needs(self, manifest: Manifest, shards: Sequence[Shard]) -> tuple[StageNeeds, ...]:
        """Return the chunks that a stage of each of ``shards`` reads. Raise ``PotluckError``."""
        ...


async def gather_holdings(
    membership: Membership,
    nodes: Collection[NodeId],
    contents: Sequence[FileContent],
    *,
    hub: HubOrigin | None = None,
    hub_file: str = "",
) -> dict[NodeId, NodeHoldings]:
    """Ask nodes which parts of some files they have; those that do not answer have nothing.

    With ``hub``, they are also asked whether they may fetch ``hub_file`` from there.
    """
    request = encode(AskHoldings(contents=tuple(contents), hub=hub, hub_file=hub_file))
    found: dict[NodeId, NodeHoldings] = {}

    async def ask(node: NodeId) -> None:
        try:
            answer = await membership.call(
                node, "weights.holdings", request, timeout_seconds=_HOLDINGS_SECONDS
            )
            found[node] = decode(answer, NodeHoldings)
        except CallError as error:
            _log.debug("node %s does not report which files it has: %s", node, error.message)

    await asyncio.gather(*map(ask, nodes))
    return {node: found[node] for node in sorted(found)}


async def find_sources(
    membership: Membership,
    nodes: Collection[NodeId],
    manifest: Manifest,
    needs: Mapping[NodeId, Needs],
    links: LinkTable,
) -> tuple[dict[NodeId, NodeHoldings], SourcePlan]:
    """Return what ``nodes`` have, and the source of every chunk that is needed.

    Nodes are only asked about the hub if some chunk is on none of them, or cannot be passed on.
    """
    contents = {file.content.sha256: file.content for file in manifest.files}
    largest = max(manifest.files, key=lambda file: file.content.num_bytes)
    everything = tuple(contents.values())

    ways, found = await asyncio.gather(
        known_reachability(membership, nodes), gather_holdings(membership, nodes, everything)
    )

    def assigned(*, is_on_hub: bool) -> SourcePlan:
        return assign_sources(
            contents,
            needs,
            [each.of(node) for node, each in found.items()],
            links,
            is_on_hub=is_on_hub,
            silent_pairs=ways.silent_pairs,
        )

    plan = assigned(is_on_hub=False)
    if plan.missing and (hub := manifest.hub) is not None:
        found = await gather_holdings(membership, nodes, everything, hub=hub, hub_file=largest.name)
        plan = assigned(is_on_hub=True)
    return found, plan


async def prepare_weights(
    membership: Membership,
    record: DeploymentRecord,
    weights: ModelWeights,
    stages: Sequence[tuple[NodeId, Shard]],
    links: LinkTable,
) -> None:
    """Tell nodes the sources of what ``stages`` read of the deployment's files.

    ``stages`` are those that have to be loaded by nodes without files of their own, in the order of
    the plan. Raise ``EngineError`` for bytes that neither a node nor a hub provides, and the errors
    of the nodes concerned.
    """
    manifest = record.status.files.manifest
    if manifest is None or not stages:
        return
    needs: dict[NodeId, dict[str, tuple[tuple[int, int], ...]]] = {}
    ahead: dict[NodeId, ReadingOrder] = {}
    read = await weights.needs(manifest, [shard for _, shard in stages])
    for (node, _), stage in zip(stages, read, strict=True):
        of_node = needs.setdefault(node, {})
        for sha256, runs in (*stage.loaded, *stage.later):
            of_node[sha256] = joined(of_node.get(sha256, ()), runs)
        if record.spec.keep_weights:
            ahead[node] = (*ahead.get(node, ()), *stage.loaded)
    nodes = membership.nodes() | {membership.node_id}
    found, plan = await find_sources(membership, nodes, manifest, needs, links)
    for node in needs:
        if node not in found:
            raise EngineError(
                f"node {node} does not report which files of {record.model_id} it has",
                hint="see the log of its agent",
            )
    if plan.missing:
        raise EngineError(
            f"{record.model_id}: {missing_text(plan, manifest.files)}",
            hint=OPEN_PORT_HINT
            if plan.out_of_reach
            else "start a node that has the files"
            + ("" if manifest.hub is None else ", or connect one to the hub"),
        )
    verified_at = {
        sha256: node for node, each in reversed(found.items()) for sha256 in each.verified
    }
    addresses = {node: (each.host, each.port) for node, each in found.items()}

    async def tell(node: NodeId) -> None:
        sources = plan.of(node)
        partners = {each.node for each in sources if each.node is not None}
        request = PrepareWeights(
            deployment=record.deployment,
            manifest=manifest,
            sources=sources,
            peers={each: addresses[each] for each in sorted(partners)},
            verified_at=verified_at,
            ahead=ahead.get(node, ()),
        )
        try:
            await membership.call(
                node, "weights.prepare", encode(request), timeout_seconds=_PREPARE_SECONDS
            )
        except CallError as error:
            raise EngineError(
                f"node {node} cannot get the files of {record.model_id}: {error.message}",
                hint=error.hint,
            ) from error

    # Seeds first: the others ask them, and a seed that has not been told to fetch has nothing to
    # give.
    seeds = {node for (source, node) in plan.num_bytes if source is None}
    await asyncio.gather(*map(tell, sorted(seeds)))
    await asyncio.gather(*map(tell, sorted({*plan.sources, *needs} - seeds)))


async def gather_transfers(
    membership: Membership, record: DeploymentRecord
) -> tuple[TransferRecord, ...]:
    """Return what the nodes of the stages, which are loaded, got of files by content in total.

    A node whose transfer process has not reported its final figures yet is left out.
    """
    request = encode(DeploymentReference(deployment=record.deployment))
    found: list[TransferRecord] = []

    async def ask(node: NodeId) -> None:
        try:
            answer = await membership.call(
                node, "weights.transfer", request, timeout_seconds=_HOLDINGS_SECONDS
            )
            transfer = decode(answer, Transfer | None)
        except CallError as error:
            _log.debug("node %s does not report what it fetched: %s", node, error.message)
            return
        if transfer is not None and transfer.done_bytes >= transfer.total_bytes:
            found.append(TransferRecord(node_id=node, transfer=transfer))

    nodes = {stage.node_id for stage in record.stages} - {*record.status.files.own_files}
    await asyncio.gather(*map(ask, nodes))
    return tuple(sorted(found, key=lambda each: each.node_id))


async def check_model(
    membership: Membership, node: NodeId, model: str, *, timeout_seconds: float
) -> ModelCheck:
    """Ask a node whether it has a model. Raises the errors of ``Membership.call``."""
    answer = await membership.call(
        node, "model.check", encode(CheckModel(model=model)), timeout_seconds=timeout_seconds
    )
    return decode(answer, ModelCheck)


async def is_lacked(membership: Membership, record: DeploymentRecord) -> bool:
    """Return whether a member has no files of the model, but can get them by content.

    To answer clients it needs those of the tokenizer, even if it has no stage.
    """

    async def lacks(node: NodeId) -> bool:
        try:
            check = await check_model(
                membership, node, record.spec.model, timeout_seconds=_CHECK_SECONDS
            )
        except PotluckError as error:
            _log.debug("node %s does not say whether it has files: %s", node, error.message)
            return False
        return check.fingerprint is None and not check.cannot_get

    nodes = membership.nodes() - {*record.status.files.own_files}
    return any(await asyncio.gather(*map(lacks, nodes)))


async def end_weights(membership: Membership, record: DeploymentRecord) -> None:
    """Tell every node that nobody reads files of the deployment any more."""
    if record.status.files.manifest is None:
        return
    request = encode(DeploymentReference(deployment=record.deployment))

    async def tell(node: NodeId) -> None:
        try:
            await membership.call(node, "weights.end", request, timeout_seconds=_HOLDINGS_SECONDS)
        except PotluckError as error:
            _log.debug(
                "node %s could not be told of the end of a transfer: %s", node, error.message
            )

    await asyncio.gather(*map(tell, membership.nodes() | {membership.node_id}))


def missing_text(plan: SourcePlan, files: Sequence[ManifestFile]) -> str:
    """Return which bytes are missing and why, as one line."""
    if plan.out_of_reach:
        node, others = min(plan.out_of_reach.items())
        return (
            f"node {node} needs {_sizes_text([plan.missing[node]], files)} from node "
            f"{' or '.join(others)}, but neither side can connect to the other"
        )
    missing = _sizes_text(plan.missing.values(), files)
    return f"{missing} are on no reachable node, and no node reaches a hub that has them"


def _sizes_text(several: Iterable[Needs], files: Sequence[ManifestFile]) -> str:
    by_file: dict[str, tuple[tuple[int, int], ...]] = {}
    for needs in several:
        for sha256, runs in needs.items():
            by_file[sha256] = joined(by_file.get(sha256, ()), runs)
    names = {file.content.sha256: file.name for file in files}
    return ", ".join(
        f"{format_bytes(num_chunks(runs) * CHUNK_BYTES)} of {names[sha256]}"
        for sha256, runs in sorted(by_file.items(), key=lambda each: names[each[0]])
    )
