"""A worker's stage over several epochs, in this process, with an engine that the test plays."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cluster.edges import LIMITS, RECEIVER, SENDER, accept, connect_edge, credentials
from support.processes.waiting import eventually

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import FrameKind, Hello, Scope
from potluck.cluster.network.edges.listener import EdgeListener
from potluck.cluster.wire.steps import StepEncoder
from potluck.cluster.wire.worker_messages import Connect, Disconnected, Peer, Ready
from potluck.cluster.worker import serving as module
from potluck.cluster.worker.serving import ServedStage, Serving, ServingCallbacks
from potluck.errors import DefectError, EdgeError, PotluckError, UnitFaultError
from potluck.grammars.step_masks import StepMasks
from potluck.types.cluster import DeploymentId, Epoch
from potluck.types.engine import StepResult
from potluck.types.program import Shard
from potluck.types.step import Step, StepId
from potluck.types.unit import Fault

D = DeploymentId("demo")


def at(number: int) -> Epoch:
    return Epoch(number=number, coordinator=SENDER)


class PlayedEngine:
    """Waits in a step while it is ``held``."""

    def __init__(self) -> None:
        self.num_resets = 0
        self.steps: list[int] = []
        self.is_let = threading.Event()
        self.is_let.set()
        self.is_in_step = threading.Event()
        self.problem: Exception | None = None
        self.reset_problem: Exception | None = None

    def step(self, step: Step, hidden: None, masks: object) -> StepResult:
        self.is_in_step.set()
        assert self.is_let.wait(60)
        if self.problem is not None:
            raise self.problem
        self.steps.append(step.step_id)
        return StepResult(hidden=None, sampled=())

    def reset(self) -> None:
        self.num_resets += 1
        if self.reset_problem is not None:
            raise self.reset_problem


class Worker:
    """``events`` are what the agent and the process would hear, in order."""

    def __init__(self) -> None:
        self.engine = PlayedEngine()
        self.events: Queue[Any] = Queue()
        shard = Shard(start_layer=0, end_layer=1, num_layers=1, has_embedding=True, has_head=True)
        loaded = SimpleNamespace(
            engine=self.engine, program=SimpleNamespace(shard=shard, hidden_size=4)
        )
        self.serving = Serving(
            ServedStage(
                deployment=D,
                loaded=cast(Any, loaded),
                masks=StepMasks(None),
                limits=LIMITS,
                credentials=credentials(RECEIVER),
                listen_host="127.0.0.1",
            ),
            ServingCallbacks(
                edges=self.events.put,
                failed=self.events.put,
                ended=lambda: self.events.put("ended"),
                stuck=self.is_stuck,
            ),
        )

    def is_stuck(self, error: PotluckError) -> None:
        self.events.put(error)
        self.engine.is_let.wait(60)

    def await_event(self, seconds: float = 20.0) -> Any:
        return self.events.get(timeout=seconds)


@pytest.fixture
def worker() -> Iterator[Worker]:
    played = Worker()
    yield played
    played.engine.is_let.set()
    assert played.serving.close()
    eventually(
        lambda: not {each.name for each in threading.enumerate()} & {"compute", "connect"},
        within=5,
    )


@contextmanager
def connected(worker: Worker, number: int) -> Iterator[tuple[OutgoingEdge, IncomingEdge]]:
    """The coordinator's edges of an epoch, as soon as both stand; it may not be ready yet."""
    scope = Scope(deployment=D, epoch=at(number))
    address = worker.serving.listen()
    listening = EdgeListener.at("127.0.0.1", credentials(SENDER))
    worker.serving.connect(
        Connect(
            epoch=at(number),
            index=0,
            preceding=Peer(node_id=SENDER),
            following=Peer.at(SENDER, listening.address),
        )
    )
    outgoing = connect_edge(
        address,
        credentials(SENDER),
        Hello(scope=scope, index=0),
        peer=RECEIVER,
        limits=LIMITS,
        timeout_seconds=10,
    )
    incoming = accept(listening, Hello(scope=scope, index=1), peer=RECEIVER, limits=LIMITS)
    listening.close()
    try:
        yield outgoing, incoming
    finally:
        outgoing.close()
        incoming.close()


def send(edge: OutgoingEdge, number: int) -> None:
    step = Step(step_id=StepId(number), slices=())
    edge.send(FrameKind.STEP, step.step_id, StepEncoder().encode(step))


def test_an_epoch_follows_another(worker: Worker) -> None:
    for number in (1, 2, 3):
        with connected(worker, number) as (outgoing, incoming):
            assert worker.await_event() == Ready(epoch=at(number))
            send(outgoing, 10 * number)
            assert incoming.receive(20).step_id == 10 * number
        event = worker.await_event()
        assert (event.epoch, type(event)) == (at(number), Disconnected)
        assert worker.engine.num_resets == number
    assert worker.serving.totals.num_steps == 3


def test_the_next_epoch_waits_for_a_step_of_the_one_before(worker: Worker) -> None:
    with connected(worker, 1) as (outgoing, incoming):
        assert worker.await_event() == Ready(epoch=at(1))
        worker.engine.is_let.clear()
        send(outgoing, 0)
        assert worker.engine.is_in_step.wait(20)
        with connected(worker, 2) as (later, results):
            with pytest.raises(EdgeError):
                incoming.receive(20)
            send(later, 7)
            time.sleep(0.1)
            assert worker.events.empty()
            worker.engine.is_let.set()
            event = worker.await_event()
            assert (event.epoch, event.message) == (at(1), "replaced by epoch 2")
            assert worker.await_event() == Ready(epoch=at(2))
            assert results.receive(20).step_id == 7
            assert worker.engine.steps == [0, 7]
    assert worker.await_event().epoch == at(2)


def test_a_step_that_does_not_end_ends_the_process(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEP_END_SECONDS", 0.2)
    with connected(worker, 1) as (outgoing, _):
        worker.await_event()
        worker.engine.is_let.clear()
        send(outgoing, 0)
        assert worker.engine.is_in_step.wait(20)
        with connected(worker, 2):
            error = worker.await_event()
            assert "a step of epoch 1 did not end within 200 ms" in error.message
            assert not isinstance(error, DefectError)  # no request is to blame
            worker.engine.is_let.set()


def test_several_epochs_at_once_leave_the_last(worker: Worker) -> None:
    for number in (1, 2, 3):
        worker.serving.listen()
        worker.serving.connect(
            Connect(
                epoch=at(number),
                index=0,
                preceding=Peer(node_id=SENDER),
                following=silent_peer(),
            )
        )
    with connected(worker, 4):
        ends = [worker.await_event() for _ in range(4)]
        assert [each.epoch.number for each in ends] == [1, 2, 3, 4]
        assert isinstance(ends[-1], Ready)
    assert worker.await_event().epoch == at(4)


def silent_peer() -> Peer:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
    return Peer(node_id=SENDER, host=host, port=port)


def test_an_edge_that_cannot_be_opened_is_told_at_once(worker: Worker) -> None:
    worker.serving.listen()
    worker.serving.connect(
        Connect(epoch=at(1), index=0, preceding=Peer(node_id=SENDER), following=silent_peer())
    )
    event = worker.await_event(2)
    assert event.epoch == at(1)
    assert "Connection refused" in event.message
    with connected(worker, 2):
        assert worker.await_event() == Ready(epoch=at(2))
    worker.await_event()


@pytest.mark.parametrize("number", [1, 2])
def test_disconnecting_ends_the_wait_for_an_edge(worker: Worker, number: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # and says nothing
        host, port = server.getsockname()
        worker.serving.listen()
        following = Peer(node_id=SENDER, host=host, port=port)
        worker.serving.connect(
            Connect(epoch=at(1), index=0, preceding=Peer(node_id=SENDER), following=following)
        )
        silent, _ = server.accept()
        with silent:
            assert silent.recv(1)  # its handshake has begun
            worker.serving.disconnect(at(number))
            assert worker.await_event(2) == Disconnected(epoch=at(1), message="its epoch is over")
    worker.serving.listen()
    worker.serving.connect(
        Connect(epoch=at(number), index=0, preceding=Peer(node_id=SENDER), following=silent_peer())
    )
    assert worker.await_event().message == f"epoch {number} is over: epoch {number} was seen"


def test_what_has_no_edges_says_so(worker: Worker) -> None:
    worker.serving.disconnect(at(3))
    assert worker.await_event() == Disconnected(epoch=at(3), message="there are no edges")
    worker.serving.connect(
        Connect(epoch=at(4), index=0, preceding=Peer(node_id=SENDER), following=silent_peer())
    )
    assert "is not listening" in worker.await_event().message


def test_a_lower_epoch_leaves_the_edges_alone(worker: Worker) -> None:
    with connected(worker, 5) as (outgoing, incoming):
        worker.await_event()
        worker.serving.disconnect(at(4))
        assert worker.await_event().epoch == at(4)
        worker.serving.connect(
            Connect(epoch=at(4), index=0, preceding=Peer(node_id=SENDER), following=silent_peer())
        )
        assert worker.await_event().message == "epoch 4 is over: epoch 5 was seen"
        send(outgoing, 1)
        assert incoming.receive(20).step_id == 1
    worker.await_event()


def unit_fault() -> Exception:
    return UnitFaultError(Fault.DRIVER.value, "the context is lost")


@pytest.mark.parametrize(
    ("problem", "kind"), [(unit_fault, UnitFaultError), (ZeroDivisionError, DefectError)]
)
def test_what_is_no_edge_ends_the_worker(
    worker: Worker, problem: Callable[[], Exception], kind: type[PotluckError]
) -> None:
    worker.engine.problem = problem()
    with connected(worker, 1) as (outgoing, incoming):
        worker.await_event()
        send(outgoing, 0)
        assert isinstance(worker.await_event(), kind)
        with pytest.raises(EdgeError):
            incoming.receive(20)
        assert worker.await_event() == "ended"
        assert worker.engine.num_resets == 0


def test_an_engine_that_cannot_be_reset_ends_the_worker(worker: Worker) -> None:
    worker.engine.reset_problem = ZeroDivisionError()
    with connected(worker, 1):
        worker.await_event()
    assert "the stage could not be reset: ZeroDivisionError" in worker.await_event().message
    assert worker.await_event() == "ended"


def test_a_frame_of_an_epoch_that_is_over_closes_the_edge(worker: Worker) -> None:
    """It can only come over an edge of that epoch, which a sender would have to have confused."""
    with connected(worker, 2) as (outgoing, incoming):
        worker.await_event()
        late = OutgoingEdge(
            outgoing._connection, RECEIVER, Scope(deployment=D, epoch=at(1)), LIMITS
        )
        send(late, 0)
        with pytest.raises(EdgeError):
            incoming.receive(20)
    assert "epoch 1 of" in worker.await_event().message
    assert worker.engine.steps == []
