"""The workers of a group over several epochs, in this process, with engines that the test plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cluster.edges import LIMITS, SENDER, accept, connect_edge, credentials
from support.engines.group_edges import node

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import FrameKind, Hello, Scope
from potluck.cluster.network.edges.listener import EdgeListener
from potluck.cluster.wire.steps import (
    RestoreRequest,
    StepEncoder,
    decode_failure,
    decode_restore_result,
    decode_sampled,
    encode_failure,
    encode_restore_request,
)
from potluck.cluster.wire.worker_messages import Connect, Disconnected, Peer, Ready
from potluck.cluster.worker.serving import ServedStage, Serving, ServingCallbacks
from potluck.errors import EdgeError, EngineError
from potluck.grammars.step_masks import StepMasks
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.engine import Exchange, StepResult
from potluck.types.groups import GroupPart
from potluck.types.program import Shard
from potluck.types.step import (
    HashedBlock,
    SampledToken,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
)

D = DeploymentId("demo")
SHARES = (2, 1, 1)


def at(number: int) -> Epoch:
    return Epoch(number=number, coordinator=SENDER)


class SummingEngine:
    """The leader samples the sum of what the members add to a step's first token."""

    def __init__(self, member: int) -> None:
        self.member = member
        self.exchange: Exchange | None = None
        self.steps: list[Step] = []
        self.problem: Exception | None = None
        self.num_resets = 0

    def join_group(self, exchange: Exchange | None) -> None:
        self.exchange = exchange

    def step(self, step: Step, hidden: None, masks: object) -> StepResult:
        assert self.exchange is not None
        if self.problem is not None:
            problem, self.problem = self.problem, None
            raise problem
        own = step.slices[0].tokens[0] * 10**self.member
        sent = [
            b"" if each == self.member else own.to_bytes(8, "little") for each in range(len(SHARES))
        ]
        received = [bytearray(0 if each == self.member else 8) for each in range(len(SHARES))]
        for _ in range(3):
            self.exchange.exchange(
                [memoryview(each) for each in sent], [memoryview(each) for each in received]
            )
        self.steps.append(step)
        if self.member:
            return StepResult(hidden=None, sampled=())
        total = own + sum(int.from_bytes(each, "little") for each in received)
        sampled = SampledToken(
            sequence_id=step.slices[0].sequence_id,
            position=step.slices[0].start_position + 1,
            token=total,
        )
        return StepResult(hidden=None, sampled=(sampled,))

    def reset(self) -> None:
        self.num_resets += 1


class CountingKeeper:
    """Has the first ``count`` of any blocks."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.problem: EngineError | None = None

    def restore(self, blocks: tuple[HashedBlock, ...]) -> int:
        if self.problem is not None:
            raise self.problem
        return min(self.count, len(blocks))

    def close(self) -> None:
        """There is nothing to be done."""


class Members:
    """The workers of all members, whose stage is the whole model."""

    def __init__(self) -> None:
        self.engines = [SummingEngine(member) for member in range(len(SHARES))]
        self.keepers = [CountingKeeper(9) for _ in SHARES]
        self.events: list[Queue[Any]] = [Queue() for _ in SHARES]
        self.servings = [self._serving(member) for member in range(len(SHARES))]

    def _serving(self, member: int) -> Serving:
        shard = Shard(
            start_layer=0,
            end_layer=1,
            num_layers=1,
            has_embedding=True,
            has_head=True,
            part=GroupPart(member=member, shares=SHARES),
        )
        program = SimpleNamespace(shard=shard, hidden_size=4)
        stage = ServedStage(
            deployment=D,
            loaded=cast(Any, SimpleNamespace(engine=self.engines[member], program=program)),
            masks=StepMasks(None),
            limits=LIMITS,
            credentials=credentials(node(member)),
            listen_host="127.0.0.1",
            keeper=cast(Any, self.keepers[member]),
        )
        queue = self.events[member]
        callbacks = ServingCallbacks(
            edges=queue.put, failed=queue.put, ended=lambda: queue.put("ended"), stuck=queue.put
        )
        return Serving(stage, callbacks)

    @contextmanager
    def connected(self, number: int) -> Iterator[tuple[OutgoingEdge, IncomingEdge]]:
        """The coordinator's edges of an epoch, in which the group is stages 0, 1 and 2."""
        scope = Scope(deployment=D, epoch=at(number))
        addresses = [each.listen() for each in self.servings]
        listening = EdgeListener.at("127.0.0.1", credentials(SENDER))
        own = Peer.at(SENDER, listening.address)
        members = tuple(Peer.at(node(member), address) for member, address in enumerate(addresses))
        for member, serving in enumerate(self.servings):
            serving.connect(
                Connect(
                    epoch=at(number),
                    index=member,
                    preceding=own,
                    following=own,
                    members=members,
                    member=member,
                )
            )
        with ExitStack() as stack:
            stack.callback(listening.close)
            outgoing = connect_edge(
                addresses[0],
                credentials(SENDER),
                Hello(scope=scope, index=0),
                peer=node(0),
                limits=LIMITS,
                timeout_seconds=10,
            )
            stack.callback(outgoing.close)
            incoming = accept(listening, Hello(scope=scope, index=3), peer=node(0), limits=LIMITS)
            stack.callback(incoming.close)
            yield outgoing, incoming

    def await_events(self) -> list[Any]:
        """What each worker says next."""
        return [each.get(timeout=20) for each in self.events]


@pytest.fixture
def members() -> Iterator[Members]:
    played = Members()
    yield played
    for serving in played.servings:
        assert serving.close()


class Steps:
    """The coordinator's side of the frames."""

    def __init__(self, outgoing: OutgoingEdge, incoming: IncomingEdge, first: int = 0) -> None:
        self.outgoing, self.incoming = outgoing, incoming
        self.encoder = StepEncoder()
        self.next = first

    def submit(self, token: int, *, opens: bool = False) -> None:
        opening = SequenceOpening(
            sequence_id=SequenceId(1),
            sampling=SamplingParams(),
            prompt_tokens=(token,),
            output_tokens=(),
        )
        step = Step(
            step_id=StepId(self.next),
            slices=(
                SequenceSlice(
                    sequence_id=SequenceId(1),
                    tokens=(token,),
                    start_position=self.next,
                    block_table=(0,),
                    sample=True,
                ),
            ),
            opened=(opening,) if opens else (),
        )
        self.outgoing.send(FrameKind.STEP, step.step_id, self.encoder.encode(step))
        self.next += 1

    def sampled(self, token: int, *, opens: bool = False) -> int:
        self.submit(token, opens=opens)
        frame = self.incoming.receive(20)
        assert frame.kind is FrameKind.RESULT
        return decode_sampled(frame.header)[0].token


def test_members_compute_together_over_several_epochs(members: Members) -> None:
    for number in (1, 2):
        with members.connected(number) as ends:
            assert members.await_events() == [Ready(epoch=at(number))] * 3
            steps = Steps(*ends)
            assert [steps.sampled(token, opens=token == 1) for token in (1, 2, 3)] == [
                111,
                222,
                333,
            ]
        for event in members.await_events():
            assert (event.epoch, type(event)) == (at(number), Disconnected)
        assert [each.exchange for each in members.engines] == [None] * 3
        assert [each.num_resets for each in members.engines] == [number] * 3
    for engine in members.engines:
        assert [step.slices[0].tokens for step in engine.steps] == [(1,), (2,), (3,)] * 2
        assert len(engine.steps[0].opened) == 1  # all members know how a sequence is sampled
    totals = members.servings[1].totals
    assert (totals.num_steps, totals.exchange.num_exchanges) == (6, 18)
    assert totals.exchange.num_sent_bytes == 18 * 16


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_member_that_cannot_compute_a_step_fails_that_step_alone(
    members: Members, culprit: int
) -> None:
    with members.connected(1) as ends:
        members.await_events()
        steps = Steps(*ends)
        assert steps.sampled(1) == 111
        members.engines[culprit].problem = EngineError("out of scratch", hint="a smaller step")
        steps.submit(2)
        frame = ends[1].receive(20)
        assert frame.kind is FrameKind.FAILURE
        error = decode_failure(frame.header)
        assert (error.message, error.hint) == ("out of scratch", "a smaller step")
        assert steps.sampled(3) == 333


def test_a_failure_of_a_stage_before_reaches_all_members(members: Members) -> None:
    with members.connected(1) as ends:
        members.await_events()
        steps = Steps(*ends)
        assert steps.sampled(1) == 111
        ends[0].send(FrameKind.FAILURE, StepId(1), encode_failure(EngineError("before")))
        assert ends[1].receive(20).kind is FrameKind.FAILURE
        steps.next = 2
        assert steps.sampled(3) == 333


BLOCKS = tuple(
    HashedBlock(block=index, hash=bytes([index]) * 32, parent=bytes(32)) for index in range(4)
)


def test_blocks_are_restored_as_far_as_all_members_have_them(members: Members) -> None:
    with members.connected(1) as ends:
        members.await_events()
        steps = Steps(*ends)
        for counts, wanted in (((4, 4, 4), 4), ((4, 1, 3), 1), ((2, 4, 4), 2)):
            for keeper, count in zip(members.keepers, counts, strict=True):
                keeper.count = count
            ends[0].send(
                FrameKind.RESTORE,
                StepId(steps.next),
                encode_restore_request(RestoreRequest(BLOCKS)),
            )
            frame = ends[1].receive(20)
            assert frame.kind is FrameKind.RESULT
            assert decode_restore_result(frame.header).num_blocks == wanted
            steps.next += 1
        for keeper in members.keepers:
            keeper.problem = EngineError("the disk is gone")
            ends[0].send(
                FrameKind.RESTORE,
                StepId(steps.next),
                encode_restore_request(RestoreRequest(BLOCKS)),
            )
            frame = ends[1].receive(20)
            assert frame.kind is FrameKind.FAILURE
            assert decode_failure(frame.header).message == "the disk is gone"
            keeper.problem = None
            steps.next += 1
        assert steps.sampled(1) == 111


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_member_that_is_lost_ends_the_epoch_for_all(members: Members, lost: int) -> None:
    with members.connected(1) as ends:
        members.await_events()
        steps = Steps(*ends)
        assert steps.sampled(1) == 111
        members.servings[lost].disconnect(at(1))
        if lost:
            steps.submit(2)
        with pytest.raises(EdgeError):
            ends[1].receive(20)
        for event in members.await_events():
            assert (event.epoch, type(event)) == (at(1), Disconnected)
    with members.connected(2) as ends:
        assert members.await_events() == [Ready(epoch=at(2))] * 3
        assert Steps(*ends).sampled(5) == 555


def test_a_stage_that_is_connected_as_another_member_says_so(members: Members) -> None:
    serving = members.servings[1]
    address = serving.listen()
    with listening_at(SENDER) as other:
        serving.connect(
            Connect(
                epoch=at(1),
                index=0,
                preceding=Peer(node_id=SENDER),
                following=Peer.at(SENDER, other.address),
            )
        )
        scope = Scope(deployment=D, epoch=at(1))
        edge = connect_edge(
            address,
            credentials(SENDER),
            Hello(scope=scope, index=0),
            peer=node(1),
            limits=LIMITS,
            timeout_seconds=10,
        )
        back = accept(other, Hello(scope=scope, index=1), peer=node(1), limits=LIMITS)
        error = members.events[1].get(timeout=20)
        assert "was loaded as GroupPart(member=1" in error.message
        edge.close()
        back.close()


@contextmanager
def listening_at(node_id: NodeId) -> Iterator[EdgeListener]:
    listening = EdgeListener.at("127.0.0.1", credentials(node_id))
    try:
        yield listening
    finally:
        listening.close()
