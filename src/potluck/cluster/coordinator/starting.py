"""Load and connect the stages of a plan, up to two edges behind which all of them are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from itertools import pairwise

from potluck.cluster.background import cancel_all, on_thread
from potluck.cluster.coordinator.excluded_units import StageError, StageStalledError
from potluck.cluster.coordinator.ways import ANY_WAY, Reachability
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.connect import connect_end
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Hello, Scope
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import ConnectStage, Stalled
from potluck.cluster.wire.methods import CONNECT_STAGE, START_STAGE
from potluck.cluster.wire.worker_messages import (
    Connect,
    Loaded,
    Peer,
    Progress,
    StageFiles,
    StageSpec,
)
from potluck.errors import CallError, EdgeError, EngineError, SilentNodeError
from potluck.scheduling.frame_limits import EdgeLimits, sequences_in_step
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.stage import StageSize

_EDGE_SECONDS = 35.0

_Ends = dict[Hello, IncomingEdge | OutgoingEdge]


async def load_stages(
    membership: Membership,
    record: DeploymentRecord,
    size: StageSize,
    on_progress: Callable[[str, int, int], None],
    on_loaded: Callable[[int, Loaded], None],
    on_stage: Callable[[int, Progress], None],
) -> list[Peer]:
    """Start the worker of every stage of ``record`` and load it; all at the same time.

    ``on_progress`` is called with what is in progress, the bytes loaded (or, while a stage is
    fetched, fetched) so far and the total, as far as known, ``on_loaded`` with the index of a stage
    that is loaded, and ``on_stage`` with the progress of each stage. If one fails, or this is
    cancelled, all stop loading. Raise ``StageStalledError`` for a stage that makes no progress, and
    ``StageError`` for one that fails.
    """
    latest = [Progress(done_bytes=0, total_bytes=0) for _ in record.stages]

    async def load(index: int) -> Peer:
        def progressed(progress: Progress) -> None:
            latest[index] = progress
            on_stage(index, progress)
            on_progress(*_together(latest, [stage.node_id for stage in record.stages]))

        loaded = await load_stage(membership, record, size, index, progressed)
        on_loaded(index, loaded)
        return Peer.at(record.stages[index].node_id, loaded.address)

    tasks = [asyncio.create_task(load(index)) for index in range(len(record.stages))]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        await cancel_all(tasks)
        raise


def stage_spec(record: DeploymentRecord, size: StageSize, index: int) -> StageSpec:
    """Return what the worker of one stage of ``record`` has to load."""
    stage = record.stages[index]
    manifest = record.status.files.manifest_for(stage.node_id)
    return StageSpec(
        deployment=record.deployment,
        epoch=record.epoch,
        index=index,
        num_stages=len(record.stages),
        unit_id=stage.unit_id,
        model=record.spec.model,
        shard=record.shard(index),
        context_tokens=size.context_tokens,
        num_blocks=size.num_blocks,
        num_states=size.num_states,
        max_step_tokens=size.max_step_tokens,
        max_step_sequences=sequences_in_step(size.max_step_tokens),
        quantization=size.quantization,
        is_mapped=bool(stage.memory.mapped),
        arithmetic=size.arithmetic,
        cache_disk_bytes=record.spec.cache_disk_bytes,
        num_bytes=stage.memory.host_bytes,
        device_bytes=stage.memory.device_bytes,
        files=None
        if manifest is None
        else StageFiles(manifest=manifest, job=record.deployment, keep=record.spec.keep_weights),
    )


async def load_stage(
    membership: Membership,
    record: DeploymentRecord,
    size: StageSize,
    index: int,
    on_progress: Callable[[Progress], None],
) -> Loaded:
    """Start the worker of one stage of ``record``, if it is not held, and load it.

    Raises the same errors as ``load_stages``.
    """
    stage, spec = record.stages[index], stage_spec(record, size, index)
    try:
        async with aclosing(START_STAGE.call(membership, stage.node_id, spec)) as events:
            async for event in events:
                if isinstance(event, Loaded):
                    return event
                if isinstance(event, Stalled):
                    raise StageStalledError(index, stage.node_id, stage.unit_id, event.message)
                on_progress(event)
    except SilentNodeError as error:
        raise StageStalledError(index, stage.node_id, stage.unit_id, error.message) from error
    except CallError as error:
        raise StageError(
            index, stage.node_id, stage.unit_id, error.message, hint=error.hint
        ) from error
    raise StageError(index, stage.node_id, stage.unit_id, "it was not loaded")


async def connect_stages(
    membership: Membership,
    endpoint: EdgeEndpoint,
    record: DeploymentRecord,
    limits: EdgeLimits,
    stages: Sequence[Peer],
    *,
    ways: Reachability = ANY_WAY,
) -> tuple[OutgoingEdge, IncomingEdge]:
    """Open the edges of the loaded stages, and the coordinator's two: to the first, from the last.

    An edge is opened from its receiver's side if ``ways`` allows nothing else. Raise ``EdgeError``
    for neighbours that cannot connect in either direction.
    """
    own = membership.node_id
    groups = record.groups
    row = [own, *(stages[group[0]].node_id for group in groups), own]
    is_reversed = [ways.is_reversed(a, b) for a, b in pairwise(row)]

    async def connect(request: Connect) -> None:
        index, node_id = request.index, stages[request.index].node_id
        connecting = ConnectStage(deployment=record.deployment, connect=request)
        try:
            await CONNECT_STAGE.call(membership, node_id, connecting)
        except CallError as error:
            raise EngineError(
                f"stage {index} on node {node_id}: {error.message}", hint=error.hint
            ) from error

    def connect_all(result: EdgeAddress) -> list[Coroutine[object, object, None]]:
        around = [
            Peer.at(own, result) if is_reversed[0] else Peer(node_id=own),
            *(stages[group[0]] for group in groups),
            Peer.at(own, result),
        ]
        return [
            connect(
                Connect(
                    epoch=record.epoch,
                    index=index,
                    preceding=around[number],
                    following=around[number + 2],
                    dials_preceding=is_reversed[number],
                    awaits_following=is_reversed[number + 1],
                    members=tuple(stages[each] for each in group) if len(group) > 1 else (),
                    member=member,
                )
            )
            for number, group in enumerate(groups)
            for member, index in enumerate(group)
        ]

    return await open_edges(
        endpoint,
        first=stages[0],
        last=stages[groups[-1][0]],
        num_stages=len(stages),
        scope=Scope(deployment=record.deployment, epoch=record.epoch),
        limits=limits,
        awaits_first=is_reversed[0],
        dials_last=is_reversed[-1],
        tell_stages=connect_all,
    )


async def open_edges(
    endpoint: EdgeEndpoint,
    *,
    first: Peer,
    last: Peer,
    num_stages: int,
    scope: Scope,
    limits: EdgeLimits,
    dials_last: bool = False,
    awaits_first: bool = False,
    tell_stages: Callable[[EdgeAddress], Sequence[Coroutine[object, object, None]]],
) -> tuple[OutgoingEdge, IncomingEdge]:
    """Open the coordinator's two edges, while the stages open theirs.

    ``tell_stages`` gets the address at which stages will find the coordinator, and returns the
    calls that tell them to connect, which are made meanwhile. With ``awaits_first``, the first
    stage connects to the coordinator; with ``dials_last``, the coordinator connects to the last
    one. If anything fails, nothing stays open.
    """
    try:
        listener = endpoint.listen()
    except OSError as error:
        raise EdgeError(last.node_id, f"cannot listen for an edge: {error.strerror}") from error
    to_first = Hello(scope=scope, index=0, is_reversed=awaits_first)
    from_last = Hello(scope=scope, index=num_stages, is_reversed=dials_last)
    awaited = {
        hello: stage.node_id
        for hello, stage, is_awaited in (
            (to_first, first, awaits_first),
            (from_last, last, not dials_last),
        )
        if is_awaited
    }

    def dial(hello: Hello, stage: Peer) -> _Ends:
        end = connect_end(
            stage.address,
            endpoint.credentials,
            hello,
            peer=stage.node_id,
            limits=limits,
            timeout_seconds=_EDGE_SECONDS,
        )
        return {hello: end}

    opening = [
        on_thread(partial(dial, hello, stage), name="open-edge", unwanted=_close_all)
        for hello, stage in ((to_first, first), (from_last, last))
        if hello not in awaited
    ]
    if awaited:
        accept = partial(
            listener.accept_ends, awaited, limits=limits, timeout_seconds=_EDGE_SECONDS
        )
        opening.append(on_thread(accept, name="open-edge", unwanted=_close_all))
    telling = [asyncio.ensure_future(each) for each in tell_stages(listener.address)]
    try:
        await asyncio.gather(*opening, *telling)
        ends = {hello: end for each in opening for hello, end in each.result().items()}
        outgoing, incoming = ends[to_first], ends[from_last]
        if not isinstance(outgoing, OutgoingEdge) or not isinstance(incoming, IncomingEdge):
            raise EdgeError(first.node_id, "an edge was opened in the wrong direction")
        return outgoing, incoming
    except BaseException:
        await cancel_all(telling)
        for each in opening:
            _close_when_open(each)
        raise
    finally:
        listener.close()  # ends accept


def _close_when_open(opening: asyncio.Future[_Ends]) -> None:
    """Close edges that are no longer needed, once they are open."""
    if not opening.done():
        opening.cancel()
    elif not opening.cancelled() and opening.exception() is None:
        _close_all(opening.result())


def _close_all(ends: _Ends) -> None:
    for end in ends.values():
        end.close()


def _together(stages: Sequence[Progress], nodes: Sequence[NodeId]) -> tuple[str, int, int]:
    """Return the overall progress.

    Fetching is over when no stage is fetching; bytes fetched and bytes loaded are not added up. It
    is called warming up when no stage loads any more. What a node fetches by content is reported
    for all of its stages together.
    """
    transfers = {
        node: stage.transfer
        for node, stage in zip(nodes, stages, strict=True)
        if stage.transfer is not None
    }
    if any(each.done_bytes < each.total_bytes for each in transfers.values()):
        return (
            "fetching",
            sum(each.done_bytes for each in transfers.values()),
            sum(each.total_bytes for each in transfers.values()),
        )
    fetching = [stage for stage in stages if stage.is_fetching]
    counted = fetching or stages
    done_bytes = sum(stage.done_bytes for stage in counted)
    total_bytes = sum(stage.total_bytes for stage in counted)
    if fetching:
        doing = "fetching"
    elif all(stage.is_warming_up for stage in stages):
        doing = "warming up"
    else:
        doing = "loading"
    return doing, done_bytes, total_bytes


def doing_of(progress: Progress) -> str:
    """Return the current activity of a stage that is not loaded yet, as text."""
    if progress.is_fetching:
        return "fetching"
    return "warming up" if progress.is_warming_up else "loading"
