"""Slices of a group's exchanges on an edge: what comes in their place, late or not at all."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

import pytest
from support.cluster.edges import HELLO, LIMITS, RECEIVER, SENDER, bare_edge, edge, in_thread

from potluck.cluster.network.edges.edge import MAX_SLICE_BYTES, IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import FrameKind
from potluck.errors import EdgeClosedError, EdgeError
from potluck.types.step import StepId

STEP = StepId(7)


def sender(writing: socket.socket) -> OutgoingEdge:
    return OutgoingEdge(writing, RECEIVER, HELLO.scope, LIMITS)


def received(incoming: IncomingEdge, num_bytes: int, number: int = 0) -> bytes:
    room = bytearray(num_bytes)
    assert incoming.receive_slice(STEP, number, memoryview(room)) is None
    return bytes(room)


@pytest.mark.parametrize("num_bytes", [1, 3, 8192, 16_300, 16_384, MAX_SLICE_BYTES])
def test_a_slice_arrives_as_it_was_sent(num_bytes: int) -> None:
    with edge() as (outgoing, incoming):
        for number in range(3):
            data = os.urandom(num_bytes)
            call = threading.Thread(
                target=outgoing.send_slice, args=(STEP, number, memoryview(data))
            )
            with in_thread(call):
                assert received(incoming, num_bytes, number) == data


def test_slices_and_other_frames_take_turns_on_an_edge() -> None:
    with bare_edge() as (writing, incoming):
        outgoing = sender(writing)
        outgoing.send(FrameKind.STEP, STEP, b"header", b"payload")
        frame = incoming.receive()
        outgoing.send_slice(STEP, 0, memoryview(b"slice"))
        outgoing.send(FrameKind.STEP, StepId(8), b"next")
        assert received(incoming, 5) == b"slice"
        assert (bytes(frame.header), bytes(frame.payload)) == (b"header", b"payload")
        assert bytes(incoming.receive().header) == b"next"


def test_what_is_left_of_earlier_steps_is_dropped() -> None:
    with bare_edge() as (writing, incoming):
        outgoing = sender(writing)
        outgoing.send_slice(StepId(5), 3, memoryview(bytes(999)))
        outgoing.send(FrameKind.ABANDON, StepId(6), b"not this one")
        outgoing.send_slice(STEP, 0, memoryview(b"slice"))
        seen: list[StepId] = []
        room = bytearray(5)
        incoming.receive_slice(STEP, 0, memoryview(room), None, seen.append)
        assert (bytes(room), seen) == (b"slice", [6])


def test_a_frame_that_is_being_computed_outlives_what_is_dropped() -> None:
    """The views of the last frame stay valid: its header is sent on when the step has failed."""
    with bare_edge() as (writing, incoming):
        outgoing = sender(writing)
        outgoing.send(FrameKind.STEP, STEP, b"header" * 20, b"payload" * 20)
        frame = incoming.receive()
        outgoing.send_slice(StepId(6), 3, memoryview(b"\xff" * 999))
        outgoing.send(FrameKind.ABANDON, STEP, b"\xff" * 999)
        reason = incoming.receive_slice(STEP, 0, memoryview(bytearray(5)))
        assert reason is not None
        assert bytes(reason) == b"\xff" * 999
        assert bytes(frame.header) == b"header" * 20
        assert bytes(frame.payload) == b"payload" * 20


@pytest.mark.parametrize(
    ("send", "reason"),
    [
        (
            lambda edge: edge.send_slice(STEP, 1, memoryview(bytes(5))),
            "slice 1 of step 7 with 5 bytes instead of slice 0 of step 7 with 5",
        ),
        (
            lambda edge: edge.send_slice(STEP, 0, memoryview(bytes(6))),
            "slice 0 of step 7 with 6 bytes instead of slice 0 of step 7 with 5",
        ),
        (lambda edge: edge.send_slice(StepId(8), 0, memoryview(bytes(5))), "slice 0 of step 8"),
        (lambda edge: edge.send(FrameKind.STEP, STEP, b"header"), "a frame of kind 2 instead"),
        (lambda edge: edge.send(FrameKind.ABANDON, STEP, b"1"), "closed the connection|kind 10"),
        (lambda edge: edge.send(FrameKind.ABANDON, StepId(8), b"12345"), "of step 8"),
    ],
)
def test_what_has_no_place_ends_the_edge(send: Callable[[OutgoingEdge], None], reason: str) -> None:
    with bare_edge() as (writing, incoming):
        outgoing = sender(writing)
        send(outgoing)
        writing.shutdown(socket.SHUT_WR)
        with pytest.raises(EdgeError, match=reason):
            incoming.receive_slice(STEP, 0, memoryview(bytearray(5)))
        with pytest.raises(EdgeClosedError, match=r": closed$"):
            incoming.receive()


def test_the_end_between_slices_is_no_failure() -> None:
    with bare_edge() as (writing, incoming):
        writing.close()
        with pytest.raises(EdgeClosedError, match="closed by the peer"):
            incoming.receive_slice(STEP, 0, memoryview(bytearray(5)))


@pytest.mark.parametrize("num_sent", [1, 83, 84, 86])
def test_a_slice_that_is_cut_off_is_a_failure(num_sent: int) -> None:
    with bare_edge() as (writing, incoming):
        one, other = socket.socketpair()
        with one, other:
            sender(one).send_slice(STEP, 0, memoryview(bytes(5)))
            writing.sendall(other.recv(num_sent))
        writing.close()
        with pytest.raises(EdgeError, match="in the middle of a frame") as caught:
            incoming.receive_slice(STEP, 0, memoryview(bytearray(5)))
        assert not isinstance(caught.value, EdgeClosedError)


def test_a_slice_of_another_epoch_is_refused() -> None:
    with bare_edge() as (writing, incoming):
        other = type(HELLO.scope)(
            deployment=HELLO.scope.deployment,
            epoch=type(HELLO.scope.epoch)(number=6, coordinator=SENDER),
        )
        OutgoingEdge(writing, RECEIVER, other, LIMITS).send_slice(STEP, 0, memoryview(bytes(5)))
        with pytest.raises(EdgeError, match="is lower than 7"):
            incoming.receive_slice(STEP, 0, memoryview(bytearray(5)))
