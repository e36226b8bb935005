"""Frames survive the wire whatever is in them, however it is cut, and nonsense never does harm."""

from __future__ import annotations

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cluster.edges import HELLO, LIMITS, RECEIVER, bare_edge

from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import (
    PREAMBLE_BYTES,
    SCOPE_BYTES,
    FrameKind,
    Preamble,
    Scope,
    decode_preamble,
    encode_preamble_into,
    encode_scope,
)
from potluck.errors import EdgeError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.step import StepId

ids = st.text("0123456789abcdef", min_size=16, max_size=16).map(NodeId)
numbers = st.integers(0, 2**64 - 1)
scopes = st.builds(
    Scope,
    deployment=st.text(
        st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=40
    ).map(DeploymentId),
    epoch=st.builds(Epoch, number=numbers, coordinator=ids),
)
preambles = st.builds(
    Preamble,
    scope=scopes,
    kind=st.sampled_from(FrameKind),
    step_id=numbers.map(StepId),
    header_bytes=st.integers(0, 2**32 - 1),
    payload_bytes=st.integers(0, 2**32 - 1),
)


@pytest.mark.slow
@given(preambles)
def test_decode_undoes_encode(preamble: Preamble) -> None:
    buffer = bytearray(PREAMBLE_BYTES)
    encode_preamble_into(
        buffer,
        encode_scope(preamble.scope),
        preamble.kind,
        preamble.step_id,
        preamble.header_bytes,
        preamble.payload_bytes,
    )
    assert decode_preamble(buffer) == preamble


@given(scopes, scopes)
def test_scopes_are_told_apart_by_their_bytes(one: Scope, two: Scope) -> None:
    assert len(encode_scope(one)) == SCOPE_BYTES
    assert (encode_scope(one) == encode_scope(two)) == (one == two)


@given(st.binary(min_size=PREAMBLE_BYTES, max_size=PREAMBLE_BYTES))
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"does not speak|wire version|malformed|unknown kind"):
        decode_preamble(bytearray(data))


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from(FrameKind), numbers, st.binary(max_size=200), st.binary(max_size=400)
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(1, 90), min_size=1, max_size=6),
)
def test_frames_arrive_as_they_were_sent_however_they_are_cut(
    frames: list[tuple[FrameKind, int, bytes, bytes]], cuts: list[int]
) -> None:
    """What one end writes is written on to the other in pieces of the lengths in ``cuts``."""
    near, far = socket.socketpair()
    outgoing = OutgoingEdge(near, RECEIVER, HELLO.scope, LIMITS)
    for kind, step_id, header, payload in frames:
        outgoing.send(kind, StepId(step_id), header, payload)
    outgoing.close()
    with far, far.makefile("rb") as stream:
        data = stream.read()
    with bare_edge() as (writing, incoming):

        def write() -> None:
            start, turn = 0, 0
            while start < len(data):
                writing.sendall(data[start : start + cuts[turn % len(cuts)]])
                start, turn = start + cuts[turn % len(cuts)], turn + 1

        writer = threading.Thread(target=write)
        writer.start()
        for kind, step_id, header, payload in frames:
            frame = incoming.receive()
            assert (frame.kind, frame.step_id) == (kind, step_id)
            assert (bytes(frame.header), bytes(frame.payload)) == (header, payload)
            assert incoming.scope == HELLO.scope
        writer.join()


@given(st.binary(max_size=300), st.integers(0, 300))
def test_no_bytes_after_the_hello_do_harm(tail: bytes, num_sound: int) -> None:
    """Whatever follows a sound beginning: a frame, or an ``EdgeError``, and no big buffer."""
    sound = bytearray(PREAMBLE_BYTES)
    encode_preamble_into(sound, encode_scope(HELLO.scope), FrameKind.STEP, StepId(1), 5, 7)
    data = bytes(sound)[:num_sound] + tail
    limits = EdgeLimits(max_header_bytes=50, max_payload_bytes=50)
    with bare_edge(limits) as (writing, incoming):
        writing.sendall(data)
        writing.shutdown(socket.SHUT_WR)
        with pytest.raises(EdgeError):
            _receive_all(incoming)


def _receive_all(incoming: IncomingEdge) -> None:
    while True:
        incoming.receive()
