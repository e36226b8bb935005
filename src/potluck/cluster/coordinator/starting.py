"""From a plan to two edges behind which all of its stages are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing

from potluck.cluster.calls import (
    ConnectStage,
    DeploymentRecord,
    Stalled,
    StartEvent,
    decode,
    encode,
)
from potluck.cluster.coordinator.edges import StageAddress, open_edges
from potluck.cluster.coordinator.left_out import StageStalledError
from potluck.cluster.coordinator.planning import DeploymentSize
from potluck.cluster.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.membership import Membership
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import Connect, Loaded, Peer, Progress, StageSpec
from potluck.errors import CallError, EngineError, SilentNodeError
from potluck.types.cluster import NodeId, UnitId

_CONNECT_SECONDS = 40.0

_SILENCE_SECONDS = 30.0
"""For an agent to say how far its stage is. It does so every few seconds even if nothing moves
(``agent.worker_process``), so this is an agent that itself stands still."""


async def load_stages(
    membership: Membership,
    record: DeploymentRecord,
    size: DeploymentSize,
    on_progress: Callable[[str, int, int], None],
    on_loaded: Callable[[int, Loaded], None],
) -> list[StageAddress]:
    """Start the worker of every stage of ``record`` and load it; all at the same time.

    ``on_progress`` is given what goes on, the bytes loaded (or, as long as a stage is fetched,
    fetched) so far and those in all, as far as they are known, ``on_loaded`` a stage that is
    loaded, by its index. If one fails, or this is cancelled, none goes on loading. Raises
    ``StageStalledError`` for one that gets no further.
    """
    latest = [Progress(done_bytes=0, total_bytes=0) for _ in record.stages]

    async def load(index: int) -> StageAddress:
        def progressed(progress: Progress) -> None:
            latest[index] = progress
            on_progress(*_together(latest))

        loaded = await load_stage(membership, record, size, index, progressed)
        on_loaded(index, loaded)
        node_id = record.stages[index].node_id
        return StageAddress(node_id=node_id, host=loaded.host, port=loaded.port)

    tasks = [asyncio.create_task(load(index)) for index in range(len(record.stages))]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def stage_spec(record: DeploymentRecord, size: DeploymentSize, index: int) -> StageSpec:
    """Return what the worker of one stage of ``record`` has to load."""
    stage = record.stages[index]
    return StageSpec(
        deployment=record.deployment,
        epoch=record.epoch,
        index=index,
        num_stages=len(record.stages),
        unit_id=stage.unit_id,
        model=record.model,
        start_layer=stage.start_layer,
        end_layer=stage.end_layer,
        context_tokens=size.context_tokens,
        num_blocks=size.num_blocks,
        num_states=size.num_states,
        max_step_tokens=size.max_step_tokens,
        max_step_sequences=size.max_step_sequences,
        quantization=size.quantization,
        is_mapped=bool(stage.memory.mapped),
        arithmetic=size.arithmetic,
        cache_disk_bytes=record.cache_disk_bytes,
        num_bytes=stage.memory.host_bytes,
        device_bytes=stage.memory.device_bytes,
    )


async def load_stage(
    membership: Membership,
    record: DeploymentRecord,
    size: DeploymentSize,
    index: int,
    on_progress: Callable[[Progress], None],
) -> Loaded:
    """Start the worker of one stage of ``record``, if it is not held, and load it.

    Raises as ``load_stages``.
    """
    stage, spec = record.stages[index], stage_spec(record, size, index)
    try:
        stream = membership.call_stream(
            stage.node_id, "stage.start", encode(spec), silence_seconds=_SILENCE_SECONDS
        )
        async with aclosing(stream):
            async for part in stream:
                event: StartEvent = decode(part, StartEvent)
                if isinstance(event, Loaded):
                    return event
                if isinstance(event, Stalled):
                    raise stalled(index, stage.node_id, stage.unit_id, event.message)
                on_progress(event)
    except SilentNodeError as error:
        raise stalled(index, stage.node_id, stage.unit_id, error.message) from error
    except CallError as error:
        raise _of_stage(index, stage.node_id, error) from error
    raise EngineError(f"stage {index} on node {stage.node_id} was not loaded")


async def connect_stages(
    membership: Membership,
    credentials: Credentials,
    listen_host: str,
    record: DeploymentRecord,
    size: DeploymentSize,
    stages: Sequence[StageAddress],
) -> tuple[OutgoingEdge, IncomingEdge]:
    """Have the loaded stages open their edges, and open the coordinator's two."""
    own = membership.node_id

    async def connect(index: int, preceding: Peer, following: Peer) -> None:
        node_id = stages[index].node_id
        request = ConnectStage(
            deployment=record.deployment,
            connect=Connect(
                epoch=record.epoch, index=index, preceding=preceding, following=following
            ),
        )
        try:
            await membership.call(
                node_id, "stage.connect", encode(request), timeout_seconds=_CONNECT_SECONDS
            )
        except CallError as error:
            raise _of_stage(index, node_id, error) from error

    def connect_all(result: tuple[str, int]) -> list[Coroutine[object, object, None]]:
        peers = [
            Peer(node_id=own),
            *(Peer(node_id=each.node_id, host=each.host, port=each.port) for each in stages),
            Peer(node_id=own, host=result[0], port=result[1]),
        ]
        return [connect(index, peers[index], peers[index + 2]) for index in range(len(stages))]

    return await open_edges(
        credentials,
        listen_host,
        first=stages[0],
        last=stages[-1],
        num_stages=len(stages),
        deployment=record.deployment,
        epoch=record.epoch,
        limits=size.edge_limits,
        tell_stages=connect_all,
    )


def _together(stages: Sequence[Progress]) -> tuple[str, int, int]:
    """Fetching is over when no stage is at it; what is fetched and loaded is not added up.

    It is called warming up when no stage loads any more.
    """
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


def stalled(index: int, node_id: NodeId, unit_id: UnitId, message: str) -> StageStalledError:
    """A stage that got no further while it was loaded."""
    return StageStalledError(node_id, unit_id, f"stage {index} on node {node_id}: {message}")


def _of_stage(index: int, node_id: NodeId, error: CallError) -> EngineError:
    return EngineError(f"stage {index} on node {node_id}: {error.message}", hint=error.hint)
