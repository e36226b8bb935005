"""An edge after the hello: frames, lies, cuts and closing."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cluster.edges import (
    HELLO,
    LIMITS,
    RECEIVER,
    SENDER,
    accept,
    bare_edge,
    credentials,
    edge,
    in_thread,
    listener,
)
from support.processes.waiting import done_within, eventually

from potluck.cluster.network.edges import options
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import (
    PREAMBLE_BYTES,
    Frame,
    FrameKind,
    Scope,
    encode_preamble_into,
    encode_scope,
)
from potluck.cluster.network.trust.pem_files import write_pem_files
from potluck.errors import EdgeClosedError, EdgeError
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.step import StepId


def _preamble(
    scope: Scope = HELLO.scope, header_bytes: int = 0, payload_bytes: int = 0
) -> bytearray:
    buffer = bytearray(PREAMBLE_BYTES)
    encode_preamble_into(
        buffer, encode_scope(scope), FrameKind.STEP, StepId(1), header_bytes, payload_bytes
    )
    return buffer


def test_frames_of_all_sizes_arrive_over_tls() -> None:
    sizes = [0, 1, 4096, 65_536, LIMITS.max_payload_bytes, 3]
    with edge() as (outgoing, incoming):
        assert outgoing.peer_node_id == RECEIVER
        assert incoming.peer_node_id == SENDER

        def send() -> None:
            for index, size in enumerate(sizes):
                header = bytes(index % 5) if index else bytes(LIMITS.max_header_bytes)
                outgoing.send(FrameKind.STEP, StepId(index), header, os.urandom(1) * size)

        with in_thread(threading.Thread(target=send)):
            for index, size in enumerate(sizes):
                frame = incoming.receive()
                assert (frame.kind, frame.step_id) == (FrameKind.STEP, index)
                assert len(frame.header) == (index % 5 if index else LIMITS.max_header_bytes)
                assert len(frame.payload) == size
                assert len(set(frame.payload)) <= 1


def test_payload_is_aligned_whatever_the_header() -> None:
    import numpy as np

    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    with edge() as (outgoing, incoming):
        for header_bytes in range(18):
            outgoing.send(FrameKind.STEP, StepId(0), b"h" * header_bytes, values.data)
            frame = incoming.receive()
            received = np.frombuffer(frame.payload, dtype=np.float32)
            assert received.ctypes.data % 16 == 0
            assert received.tolist() == list(range(12))
            assert bytes(frame.header) == b"h" * header_bytes


def test_a_frame_that_grows_the_buffer_leaves_the_last_one_alone() -> None:
    with bare_edge() as (writing, incoming):
        writing.sendall(_preamble(payload_bytes=5) + b"first")
        first = incoming.receive()
        with in_thread(
            threading.Thread(
                target=writing.sendall,
                args=(_preamble(payload_bytes=200_000) + bytes(200_000),),
            )
        ):
            assert len(incoming.receive().payload) == 200_000
        assert bytes(first.payload) == b"first"


def test_what_has_not_arrived_is_not_waited_for_and_read_on_later() -> None:
    """Byte after byte, by calls that wait and that do not, in any order."""
    frame = bytes(_preamble(header_bytes=3, payload_bytes=5)) + b"abcstill"
    for count in range(len(frame)):
        with bare_edge() as (writing, incoming):
            writing.sendall(frame[:count])
            assert incoming.poll() is None
            writing.sendall(frame[count:] + frame)
            first = incoming.receive(20) if count % 2 else incoming.poll()
            assert first is not None
            assert (bytes(first.header), bytes(first.payload)) == (b"abc", b"still")
            kept = first.copied()
            second = incoming.poll()
            assert second is not None
            assert incoming.poll() is None
            assert (bytes(kept.header), bytes(kept.payload)) == (b"abc", b"still")
            writing.close()
            with pytest.raises(EdgeClosedError):
                incoming.poll()


def test_frames_over_tls_are_taken_as_they_come() -> None:
    with edge() as (outgoing, incoming):
        assert incoming.poll() is None
        for index in range(3):
            outgoing.send(FrameKind.STEP, StepId(index), b"h", b"p" * 40_000)
        frames: list[Frame] = []

        def has_all() -> bool:
            frame = incoming.poll()
            if frame is not None:
                frames.append(frame.copied())
            return len(frames) == 3

        eventually(has_all, within=5)
        assert [each.step_id for each in frames] == [0, 1, 2]
        assert all(bytes(each.payload) == b"p" * 40_000 for each in frames)
        outgoing.send(FrameKind.STEP, StepId(3))
        assert incoming.receive(20).step_id == 3
        incoming.close()
        with pytest.raises(EdgeClosedError):
            incoming.poll()


def test_a_cut_or_a_lie_ends_an_edge_that_is_polled() -> None:
    with bare_edge() as (writing, incoming):
        writing.sendall(_preamble(payload_bytes=9) + b"cut")
        assert incoming.poll() is None
        writing.close()
        with pytest.raises(EdgeError, match="in the middle of a frame"):
            incoming.poll()
    with bare_edge() as (writing, incoming):
        writing.sendall(_preamble(header_bytes=1001))
        with pytest.raises(EdgeError, match="over the limit"):
            incoming.poll()
        with pytest.raises(EdgeClosedError):
            incoming.receive()


def test_sending_beyond_the_limits_sends_nothing() -> None:
    with edge() as (outgoing, incoming):
        with pytest.raises(ValueError, match="header of 1001 bytes"):
            outgoing.send(FrameKind.STEP, StepId(1), bytes(1001))
        with pytest.raises(ValueError, match="payload of 300001 bytes"):
            outgoing.send(FrameKind.STEP, StepId(1), b"", bytes(300_001))
        outgoing.send(FrameKind.RESULT, StepId(2))
        assert incoming.receive().step_id == 2


@pytest.mark.parametrize(
    ("preamble", "reason"),
    [
        (_preamble(header_bytes=1001), "header of 1001 bytes, over"),
        (_preamble(payload_bytes=300_001), "payload of 300001 bytes, over"),
        (_preamble(payload_bytes=2**32 - 1), "payload of 4294967295 bytes, over"),
        (bytearray(b"GET / HTTP/1.1\r\nHost: a\r\n".ljust(80)), "does not speak Potluck"),
        (_preamble()[:4] + b"\x0a\x00" + _preamble()[6:], "wire version 10, and this node 9"),
        (_preamble()[:62] + b"\x63\x00" + _preamble()[64:], "unknown kind 99"),
    ],
)
def test_what_has_no_place_closes_the_edge(preamble: bytearray, reason: str) -> None:
    with bare_edge() as (writing, incoming):
        writing.sendall(preamble)
        with pytest.raises(EdgeError, match=reason) as caught:
            incoming.receive()
        assert caught.value.peer == SENDER
        with pytest.raises(EdgeClosedError):
            incoming.receive()
        assert writing.recv(1) == b""


@pytest.mark.parametrize(
    ("epoch", "reason"),
    [
        (Epoch(number=6, coordinator=NodeId("f" * 16)), "epoch 6 of f+ is lower than 7 of b+"),
        (Epoch(number=7, coordinator=NodeId("a" * 16)), "epoch 7 of a+ is lower"),
        (Epoch(number=8, coordinator=SENDER), "epoch 8 of b+ is higher"),
    ],
)
def test_frames_of_other_epochs_are_refused(epoch: Epoch, reason: str) -> None:
    with bare_edge() as (writing, incoming):
        writing.sendall(_preamble(Scope(deployment=HELLO.scope.deployment, epoch=epoch)))
        with pytest.raises(EdgeError, match=reason):
            incoming.receive()


def test_frames_of_other_deployments_are_refused() -> None:
    with bare_edge() as (writing, incoming):
        scope = Scope(deployment=DeploymentId("demo2"), epoch=HELLO.scope.epoch)
        writing.sendall(_preamble(scope))
        with pytest.raises(EdgeError, match="deployment 'demo2' is not 'demo'"):
            incoming.receive()


def test_a_lying_count_allocates_nothing() -> None:
    limits = EdgeLimits(max_header_bytes=10, max_payload_bytes=2**32 - 1)
    with bare_edge(EdgeLimits(max_header_bytes=10, max_payload_bytes=100)) as (writing, incoming):
        before = _peak_bytes()
        writing.sendall(_preamble(payload_bytes=limits.max_payload_bytes))
        with pytest.raises(EdgeError):
            incoming.receive()
        assert _peak_bytes() - before < 2**24


def _peak_bytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("num_bytes", [1, 61, 79, 80, 83, 89])
def test_a_frame_that_is_cut_off_is_no_frame(num_bytes: int) -> None:
    frame = _preamble(header_bytes=4, payload_bytes=6) + b"headpayloa"
    with bare_edge() as (writing, incoming):
        writing.sendall(frame[:num_bytes])
        writing.close()
        with pytest.raises(EdgeError, match="in the middle of a frame") as caught:
            incoming.receive()
        assert not isinstance(caught.value, EdgeClosedError)


def test_a_sender_of_single_bytes_is_served() -> None:
    data = 2 * (_preamble(header_bytes=4, payload_bytes=6) + b"headpayloa")
    with bare_edge() as (writing, incoming):
        writing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

        def dribble() -> None:
            for byte in data:
                writing.sendall(bytes([byte]))

        with in_thread(threading.Thread(target=dribble)):
            for _ in range(2):
                frame = incoming.receive()
                assert (bytes(frame.header), bytes(frame.payload)) == (b"head", b"payloa")


def test_closing_ends_the_other_side_between_frames() -> None:
    with edge() as (outgoing, incoming):
        outgoing.send(FrameKind.RESULT, StepId(1))
        outgoing.close()
        outgoing.close()
        assert incoming.receive().step_id == 1
        with pytest.raises(EdgeClosedError, match="closed by the peer"):
            incoming.receive()
        with pytest.raises(EdgeClosedError):
            outgoing.send(FrameKind.RESULT, StepId(2))


def test_a_receiver_that_closes_is_noticed_by_sending() -> None:
    with edge() as (outgoing, incoming):
        incoming.close()
        with pytest.raises(EdgeError, match=r"was lost|reset|pipe"):
            _send_for_ever(outgoing)
        with pytest.raises(EdgeClosedError):
            outgoing.send(FrameKind.STEP, StepId(1))


def _send_for_ever(outgoing: OutgoingEdge) -> None:
    while True:
        outgoing.send(FrameKind.STEP, StepId(1), b"", bytes(300_000))


def test_close_ends_a_receive_in_another_thread() -> None:
    with edge() as (_, incoming):
        errors: list[EdgeError] = []

        def receive() -> None:
            try:
                incoming.receive()
            except EdgeError as error:
                errors.append(error)

        with in_thread(threading.Thread(target=receive)):
            time.sleep(0.1)
            incoming.close()
        assert [type(error) for error in errors] == [EdgeClosedError]


@pytest.mark.slow
def test_close_ends_a_send_to_a_peer_that_does_not_read() -> None:
    with edge() as (outgoing, _):
        errors: list[EdgeError] = []
        sent: list[int] = []

        def send() -> None:
            try:
                while True:
                    outgoing.send(FrameKind.STEP, StepId(1), b"", bytes(300_000))
                    sent.append(1)
            except EdgeError as error:
                errors.append(error)

        with in_thread(threading.Thread(target=send)):
            _wait_until_still(sent)
            outgoing.close()
        assert [type(error) for error in errors] == [EdgeClosedError]


def _wait_until_still(events: list[int]) -> None:
    """Wait until ``events`` stops growing: the sender's thread is blocked."""
    before = -1
    while before != len(events):
        before = len(events)
        time.sleep(0.3)


@pytest.mark.slow
def test_a_peer_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "STALL_SECONDS", 1)
    with (
        edge() as (outgoing, _),
        done_within(5),
        pytest.raises(EdgeError, match=r"was lost|timed out"),
    ):
        _send_for_ever(outgoing)


_KILLED_IN_A_FRAME = """
import os, pathlib, signal, sys
from potluck.cluster.network.edges.frames import PREAMBLE_BYTES, FrameKind, encode_preamble_into
from support.cluster.pem_files import read_pem_files
from support.cluster.edges import HELLO, SENDER, connect
from types import SimpleNamespace
from potluck.cluster.network.edges.address import EdgeAddress
listening = SimpleNamespace(address=EdgeAddress(host="127.0.0.1", port=int(sys.argv[1])))
outgoing = connect(listening, as_node=read_pem_files(pathlib.Path(sys.argv[2]), SENDER))
outgoing.send(FrameKind.STEP, 1, b"", bytes(100))
outgoing._connection.sendall(outgoing._buffer[: PREAMBLE_BYTES + 50])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_peer_killed_in_the_middle_of_a_frame(tmp_path: Path) -> None:
    write_pem_files(credentials(SENDER), tmp_path)
    with listener() as listening:
        child = subprocess.Popen(
            [sys.executable, "-c", _KILLED_IN_A_FRAME, str(listening.address.port), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        incoming = accept(listening, seconds=30)
        assert len(incoming.receive().payload) == 100
        with pytest.raises(EdgeError, match="in the middle of a frame"):
            incoming.receive()
        assert child.wait(40) == -signal.SIGKILL


def test_a_reset_connection_is_one_line() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    writing = socket.create_connection(server.getsockname())
    reading, _ = server.accept()
    server.close()
    writing.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writing.close()
    incoming = IncomingEdge(reading, SENDER, HELLO.scope, LIMITS)
    with pytest.raises(EdgeError, match=f"connection to node {SENDER}: Connection reset by peer"):
        incoming.receive()


def test_limits_fit_in_a_frame() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        EdgeLimits(max_header_bytes=1, max_payload_bytes=2**32)


@pytest.mark.slow
@pytest.mark.parametrize("is_tls", [False, True])
def test_silence_is_told_and_a_frame_that_comes_late_arrives_whole(is_tls: bool) -> None:
    silences: list[float] = []

    def on_silence() -> float:
        silences.append(time.monotonic())
        return 0.05

    with ExitStack() as opened:
        if is_tls:
            outgoing, incoming = opened.enter_context(edge())

            def send() -> None:
                eventually(lambda: len(silences) >= 2)
                outgoing.send(FrameKind.STEP, StepId(1), b"head", b"payload")

        else:
            writing, incoming = opened.enter_context(bare_edge())
            frame = bytes(_preamble(header_bytes=4, payload_bytes=7)) + b"headpayload"

            def send() -> None:
                for number, start in enumerate(range(0, len(frame), 8), 1):
                    eventually(lambda number=number: len(silences) >= number)  # type: ignore[misc]
                    writing.sendall(frame[start : start + 8])

        opened.enter_context(in_thread(threading.Thread(target=send)))
        found = incoming.receive(0.1, on_silence)
        assert (bytes(found.header), bytes(found.payload)) == (b"head", b"payload")
        assert len(silences) >= 2


def test_whoever_is_told_of_silence_may_end_the_wait() -> None:
    def on_silence() -> float:
        raise TimeoutError

    with bare_edge() as (_, incoming):
        with pytest.raises(EdgeError, match="it does not answer"):
            incoming.receive(0.05, on_silence)
        with pytest.raises(EdgeClosedError):
            incoming.receive(0.05)


def test_only_small_frames_go_at_once_and_only_while_the_kernel_has_room() -> None:
    with edge() as (outgoing, incoming):
        outgoing._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        assert outgoing.takes_at_once(100)
        assert not outgoing.takes_at_once(1 << 20)
        header = bytes(900)
        num_sent = 0
        while outgoing.takes_at_once(len(header)):
            outgoing.send(FrameKind.STEP, StepId(num_sent), header)  # nobody reads
            num_sent += 1
            assert num_sent < 50_000, "the kernel's buffers have no end"
        for _ in range(num_sent):
            incoming.receive(20)
        eventually(lambda: outgoing.takes_at_once(len(header)), within=5)
        outgoing.close()
        assert not outgoing.takes_at_once(100)
