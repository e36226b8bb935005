"""The files of a deployment that nodes get by content: who gets which parts from whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.cluster.coordinator.ways import OPEN_PORT_HINT, known_reachability
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import (
    AskHoldings,
    CheckModel,
    DeploymentReference,
    NodeHoldings,
    PrepareWeights,
)
from potluck.cluster.wire.methods import CHECK_MODEL, END_WEIGHTS, HOLDINGS, PREPARE, TRANSFER
from potluck.errors import CallError, EngineError
from potluck.placement.links import LinkTable
from potluck.placement.sources import Needs, SourcePlan, assign_sources
from potluck.types.cluster import NodeId
from potluck.types.content import (
    CHUNK_BYTES,
    FileContent,
    HubOrigin,
    Manifest,
    ManifestFile,
    ReadingOrder,
    joined,
    num_chunks,
)
from potluck.types.deployment import DeploymentRecord, TransferRecord
from potluck.types.program import Shard
from potluck.types.quantities import format_bytes

OnHashed = Callable[[int, int], None]
"""Called with the bytes of a model's files that were read for hashing, and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNeeds:
    """The chunks that a stage reads when it is loaded, and those that its node may read later."""

    loaded: ReadingOrder
    later: ReadingOrder = ()


class ModelWeights(Protocol):
    """The files of a coordinator's model, as far as it knows them."""

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
    request = AskHoldings(contents=tuple(contents), hub=hub, hub_file=hub_file)
    return await HOLDINGS.call_all(membership, dict.fromkeys(sorted(nodes), request))


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
    nodes = membership.reachable_nodes()
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
            await PREPARE.call(membership, node, request)
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
    request = DeploymentReference(deployment=record.deployment)
    nodes = {stage.node_id for stage in record.stages} - {*record.status.files.own_files}
    answers = await TRANSFER.call_all(membership, dict.fromkeys(sorted(nodes), request))
    return tuple(
        TransferRecord(node_id=node, transfer=transfer)
        for node, transfer in answers.items()
        if transfer is not None and transfer.done_bytes >= transfer.total_bytes
    )


async def is_lacked(membership: Membership, record: DeploymentRecord) -> bool:
    """Return whether a member has no files of the model, but can get them by content.

    To answer clients it needs those of the tokenizer, even if it has no stage.
    """
    nodes = membership.nodes() - {*record.status.files.own_files}
    request = CheckModel(model=record.spec.model)
    checks = await CHECK_MODEL.call_all(membership, dict.fromkeys(nodes, request))
    return any(check.fingerprint is None and not check.cannot_get for check in checks.values())


async def end_weights(membership: Membership, record: DeploymentRecord) -> None:
    """Tell every node that nobody reads files of the deployment any more."""
    if record.status.files.manifest is None:
        return
    request = DeploymentReference(deployment=record.deployment)
    nodes = membership.reachable_nodes()
    await END_WEIGHTS.call_all(membership, dict.fromkeys(nodes, request))


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
