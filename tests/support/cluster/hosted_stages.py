"""A model in worker processes of one node, driven by the test as its coordinator."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster.edges import credentials
from support.machines import hardware

from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.measured_speeds import MeasuredSpeeds
from potluck.cluster.agent.orphans import ORPHAN_SECONDS
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.threads import NodeThreads
from potluck.cluster.agent.unit_health import UnitFailure
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.agent.worker_notes import WorkerNotes
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.coordinator.starting import open_edges
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Frame, FrameKind, Scope
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.network.membership import Address
from potluck.cluster.wire.calls import ConnectStage, StageLost
from potluck.cluster.wire.steps import StepEncoder, decode_sampled
from potluck.cluster.wire.worker_messages import Connect, Loaded, Peer, StageSpec
from potluck.engines.backends import BACKENDS
from potluck.engines.native.engine import available_isas
from potluck.errors import PotluckError
from potluck.scheduling.frame_limits import edge_limits
from potluck.types.arithmetic import Arithmetic
from potluck.types.backend import BackendSpec
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.hardware import Trial
from potluck.types.node import CPU_UNIT
from potluck.types.program import Shard
from potluck.types.step import (
    KV_BLOCK_TOKENS,
    SampledToken,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)

NODE, COORDINATOR = NodeId("a" * 16), NodeId("b" * 16)
DEPLOYMENT = DeploymentId("kept")
NUM_LAYERS, HIDDEN_SIZE = 12, 256
"""Of the demo model."""

CONTEXT_TOKENS = 128
LIMITS = edge_limits(
    hidden_size=HIDDEN_SIZE,
    context_tokens=CONTEXT_TOKENS,
    max_step_tokens=64,
    max_step_sequences=8,
    num_blocks=32,
)


def epoch(number: int, coordinator: NodeId = COORDINATOR) -> Epoch:
    return Epoch(number=number, coordinator=coordinator)


def stage_specs(
    boundaries: Sequence[int], at: Epoch, *, unit_id: UnitId = CPU_UNIT, is_mapped: bool = False
) -> list[StageSpec]:
    """The stages that begin at layer 0 and at every boundary."""
    starts, ends = [0, *boundaries], [*boundaries, NUM_LAYERS]
    return [
        StageSpec(
            deployment=DEPLOYMENT,
            epoch=at,
            index=index,
            num_stages=len(starts),
            unit_id=unit_id,
            model="demo",
            shard=Shard(
                start_layer=start,
                end_layer=end,
                num_layers=NUM_LAYERS,
                has_embedding=start == 0,
                has_head=end == NUM_LAYERS,
            ),
            context_tokens=CONTEXT_TOKENS,
            num_blocks=32,
            max_step_tokens=64,
            max_step_sequences=8,
            quantization=Quantization.NONE,
            is_mapped=is_mapped,
            num_bytes=10_000_000,
            device_bytes=0,
            arithmetic=Arithmetic.EXACT,
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


@dataclass(slots=True)
class Node:
    """A node's stages. ``lost`` and ``failed`` are what it told, ``speeds`` what it measured."""

    host: StageHost
    speeds: MeasuredSpeeds
    lost: list[StageLost]
    failed: list[tuple[UnitId, UnitFailure]]

    @property
    def workers(self) -> list[WorkerProcess]:
        return [each.worker for each in self.host.hosted.here()]

    async def start(self, spec: StageSpec) -> Loaded:
        async for event in self.host.start(spec):
            if isinstance(event, Loaded):
                return event
        raise AssertionError("the last event is Loaded")

    async def connect(self, specs: Sequence[StageSpec], addresses: Sequence[Loaded]) -> Pipeline:
        """Connect stages that are started, and open the coordinator's edges."""
        at = specs[0].epoch

        def tell(result: EdgeAddress) -> list[Coroutine[object, object, None]]:
            peers = [
                Peer(node_id=at.coordinator),
                *(Peer.at(NODE, each.address) for each in addresses),
                Peer.at(at.coordinator, result),
            ]
            return [
                self.host.connect(
                    ConnectStage(
                        deployment=DEPLOYMENT,
                        connect=Connect(
                            epoch=at,
                            index=index,
                            preceding=peers[index],
                            following=peers[index + 2],
                        ),
                    )
                )
                for index in range(len(specs))
            ]

        first, last = addresses[0], addresses[-1]
        outgoing, incoming = await open_edges(
            EdgeEndpoint(credentials=credentials(at.coordinator), listen_host="127.0.0.1"),
            first=Peer.at(NODE, first.address),
            last=Peer.at(NODE, last.address),
            num_stages=len(specs),
            scope=Scope(deployment=DEPLOYMENT, epoch=at),
            limits=LIMITS,
            tell_stages=tell,
        )
        return Pipeline(outgoing, incoming)

    async def serve(self, specs: Sequence[StageSpec]) -> Pipeline:
        """Start and connect stages."""
        return await self.connect(specs, await asyncio.gather(*map(self.start, specs)))


class Pipeline:
    """The coordinator's two edges; blocking."""

    def __init__(self, outgoing: OutgoingEdge, incoming: IncomingEdge) -> None:
        self.outgoing = outgoing
        self.incoming = incoming
        self.next_step = 0

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.outgoing.close()
        self.incoming.close()

    def send(self, step: Step) -> None:
        self.outgoing.send(FrameKind.STEP, step.step_id, StepEncoder().encode(step))

    def receive(self) -> Frame:
        return self.incoming.receive(20.0)

    def sampled(self) -> tuple[SampledToken, ...]:
        frame = self.receive()
        assert frame.kind is FrameKind.RESULT, bytes(frame.header)
        return decode_sampled(frame.header)

    def step(
        self,
        tokens: Sequence[int],
        start: int,
        *,
        sequence: int = 0,
        opened: tuple[SequenceOpening, ...] = (),
    ) -> Step:
        """The next step, of one sequence, in blocks of its own."""
        first = sequence * (CONTEXT_TOKENS // KV_BLOCK_TOKENS)
        blocks = range(first, first + CONTEXT_TOKENS // KV_BLOCK_TOKENS)
        step = Step(
            step_id=StepId(self.next_step),
            slices=(
                SequenceSlice(
                    sequence_id=SequenceId(sequence),
                    tokens=tuple(tokens),
                    start_position=start,
                    block_table=tuple(blocks),
                    sample=True,
                ),
            ),
            opened=opened,
        )
        self.next_step += 1
        return step

    def generate(
        self, prompt: Sequence[int], num_new: int, params: SamplingParams, *, sequence: int = 0
    ) -> list[int]:
        """Tokens that follow a prompt; the sequence stays open."""
        opening = SequenceOpening(
            sequence_id=SequenceId(sequence), sampling=params, prompt_tokens=tuple(prompt)
        )
        tokens = list(prompt)
        new, start = tokens, 0
        opened: tuple[SequenceOpening, ...] = (opening,)
        for _ in range(num_new):
            self.send(self.step(new, start, sequence=sequence, opened=opened))
            (sampled,) = self.sampled()
            start, new, opened = len(tokens), [sampled.token], ()
            tokens.append(sampled.token)
        return tokens[len(prompt) :]


def stage_host(
    folder: Path,
    units: NodeUnits,
    *,
    unit_step_seconds: float = 30.0,
    stall_seconds: float = 60.0,
    orphan_seconds: float = ORPHAN_SECONDS,
    **changes: Any,
) -> StageHost:
    """Return the host of ``NODE``, with other settings where ``changes`` has them."""
    config = AgentConfig(
        secret=None,
        listen=Address(host="127.0.0.1", port=0),
        unit_step_seconds=unit_step_seconds,
        stall_seconds=stall_seconds,
        orphan_seconds=orphan_seconds,
    )
    endpoint = EdgeEndpoint(credentials=credentials(NODE), listen_host="127.0.0.1")

    async def nobody_asks(_: StageLost) -> None:
        return

    settings: dict[str, Any] = {
        "num_threads": 1,
        "unit_failed": lambda *_: None,
        "report_lost": nobody_asks,
        **changes,
    }
    return StageHost(config, endpoint, WorkerNotes(folder), units, **settings)


@asynccontextmanager
async def node(
    folder: Path,
    *,
    backends: tuple[BackendSpec, ...] = (),
    trials: tuple[Trial, ...] = (),
    step_seconds: float = 30.0,
    stall_seconds: float = 60.0,
    worker_socket: Callable[[], socket.socket] | None = None,
) -> AsyncGenerator[Node, None]:
    """A node whose CPU also has the ``backends``."""
    lost: list[StageLost] = []
    failed: list[tuple[UnitId, UnitFailure]] = []

    async def report_lost(stage: StageLost) -> None:
        lost.append(stage)

    native = Trial(device_id="cpu", backend="native", works=True, variants=available_isas())
    probed = hardware.report(trials=(native, *trials))
    folder.mkdir(exist_ok=True)
    units = NodeUnits(lambda: probed, backends=(*BACKENDS, *backends))
    speeds = MeasuredSpeeds(folder / "step-times.json", units, NodeThreads(1))
    host = stage_host(
        folder,
        units,
        unit_step_seconds=step_seconds,
        stall_seconds=stall_seconds,
        unit_failed=lambda unit_id, failure: failed.append((unit_id, failure)),
        report_lost=report_lost,
        measured=speeds.record,
        worker_socket=worker_socket,
    )
    try:
        yield Node(host, speeds, lost, failed)
    finally:
        workers = [each.worker for each in host.hosted.here()]
        await host.stop_all()
        for worker in workers:
            with suppress(PotluckError):
                await worker.wait()
