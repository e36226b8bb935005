"""Who gets an edge, and that nobody else is in the way."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from support.cluster.edges import (
    EPOCH,
    HELLO,
    OTHER_SECRET,
    RECEIVER,
    SENDER,
    accept,
    accept_edges,
    connect,
    credentials,
    in_thread,
    listener,
    tls_client,
)
from support.cluster.imposters import expired, forged
from support.processes.waiting import done_within

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import (
    FrameKind,
    Hello,
    Scope,
    encode_hello,
    encode_refusal,
)
from potluck.cluster.network.edges.listener import EdgeEndpoint, EdgeListener, RoutedConnections
from potluck.cluster.network.trust.connection_sources import connection_channel
from potluck.cluster.network.trust.credentials import Credentials
from potluck.errors import EdgeClosedError, EdgeError
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.step import StepId

THIRD = NodeId("c" * 16)


def _hello(deployment: str = "demo", epoch: Epoch = EPOCH, index: int = HELLO.index) -> Hello:
    return Hello(scope=Scope(deployment=DeploymentId(deployment), epoch=epoch), index=index)


def _check(outgoing: OutgoingEdge, incoming: IncomingEdge) -> None:
    outgoing.send(FrameKind.STEP, StepId(5), b"h", b"payload")
    assert bytes(incoming.receive().payload) == b"payload"
    outgoing.close()
    incoming.close()


def _refused(
    call: Callable[[EdgeListener], object], caplog: pytest.LogCaptureFixture
) -> tuple[EdgeError | None, str]:
    """What ``call`` raised and what was logged, while a listener waited for somebody else.

    The one that it waited for comes afterwards, and is served by the same ``accept``.
    """
    error = None
    with (
        caplog.at_level(logging.WARNING, "potluck"),
        listener() as listening,
        ThreadPoolExecutor(1) as pool,
    ):
        accepting = pool.submit(accept, listening)
        try:
            call(listening)
        except EdgeError as caught:
            error = caught
        outgoing = connect(listening)
        _check(outgoing, accepting.result())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    return error, lines[0]


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (_hello(deployment="other"), "deployment 'other' is not 'demo'"),
        (_hello(epoch=Epoch(number=6, coordinator=SENDER)), "epoch 6 of b+ is lower than 7 of b+"),
        (_hello(epoch=Epoch(number=7, coordinator=RECEIVER)), "epoch 7 of a+ is lower"),
        (_hello(epoch=Epoch(number=8, coordinator=SENDER)), "epoch 8 of b+ is higher"),
        (_hello(index=3), "expected edge 2, got edge 3"),
    ],
)
def test_a_wrong_hello_is_refused_with_the_reason_on_both_sides(
    hello: Hello, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    error, line = _refused(lambda listening: connect(listening, hello), caplog)
    assert error is not None
    assert re.search(f"refused: {reason}", error.message)
    assert error.peer.startswith(f"{RECEIVER} at 127.0.0.1:")
    assert re.search(f"^refused {SENDER} at 127.0.0.1:[0-9]+: {reason}", line)


def test_a_member_that_is_not_the_expected_one_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error, line = _refused(lambda listening: connect(listening, as_node=credentials(THIRD)), caplog)
    assert error is not None
    assert f"expected node {SENDER}, got node {THIRD}" in error.message
    assert f"refused {THIRD}" in line


@pytest.mark.parametrize(
    ("imposter", "reason"),
    [
        (lambda: credentials(SENDER, OTHER_SECRET), "alert unknown ca"),
        (lambda: forged(SENDER), "certificate signature failure|alert decrypt error|unknown ca"),
    ],
    ids=["wrong secret", "home-made authority"],
)
def test_a_stranger_sees_that_the_node_is_not_of_its_cluster(
    imposter: Callable[[], Credentials], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    error, line = _refused(
        lambda listening: connect(listening, as_node=imposter(), seconds=10), caplog
    )
    assert error is not None
    assert "its certificate was not issued by this cluster" in error.message
    assert "secret" in error.hint
    assert line.startswith("refused an unknown client at 127.0.0.1:")
    assert re.search(reason, line.lower().replace("_", " "))


def _address_of(server: socket.socket) -> EdgeAddress:
    host, port = server.getsockname()
    return EdgeAddress(host=host, port=port)


def _insist(listening: EdgeListener, imposter: Credentials | None) -> None:
    """Connect without looking at the node's certificate, say hello, and wait for the end."""
    if imposter is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
    else:
        context = imposter.client_context()
    context.verify_mode = ssl.CERT_NONE
    raw = socket.create_connection(listening.address.endpoint, timeout=20)
    with contextlib.suppress(OSError), context.wrap_socket(raw) as connection:
        connection.sendall(encode_hello(HELLO))
        assert connection.recv(1000) == b""


@pytest.mark.parametrize(
    ("imposter", "reason"),
    [
        (lambda: None, r"TLS failed \(PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        (
            lambda: credentials(SENDER, OTHER_SECRET),
            "its certificate was not issued by this cluster",
        ),
        (lambda: expired(SENDER), r"its certificate was not issued by this cluster.*expired"),
        (lambda: forged(SENDER), "its certificate was not issued by this cluster"),
    ],
    ids=["no certificate", "another cluster", "expired", "home-made authority"],
)
def test_strangers_are_refused_and_told_nothing(
    imposter: Callable[[], Credentials | None],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, line = _refused(lambda listening: _insist(listening, imposter()), caplog)
    assert re.search(f"refused an unknown client at 127.0.0.1:[0-9]+: {reason}", line)


def test_a_node_that_is_refused_by_tls_gets_a_hint() -> None:
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, listening, HELLO, 30)
        with pytest.raises(EdgeError, match=r"EXPIRED|reset|lost") as caught:
            connect(listening, as_node=expired(SENDER))
        assert "secret" in caught.value.hint
        listening.close()
        with pytest.raises(EdgeError):
            accepting.result()


def _http(listening: EdgeListener) -> None:
    with socket.create_connection(listening.address.endpoint, timeout=20) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: potluck\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1000):
                pass


def test_a_browser_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    _, line = _refused(_http, caplog)
    assert re.search(
        r"refused an unknown client at .*: TLS failed \((HTTP_REQUEST|WRONG_VERSION)", line
    )


def _says(data: bytes) -> Callable[[EdgeListener], None]:
    def say(listening: EdgeListener) -> None:
        with tls_client(listening, credentials(SENDER)) as connection:
            connection.sendall(data)
            with contextlib.suppress(OSError):
                while connection.recv(1000):
                    pass

    return say


_SOUND = encode_hello(HELLO)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n".ljust(80), "does not speak Potluck's protocol"),
        (_SOUND[:4] + b"\x0a\x00" + _SOUND[6:], "speaks wire version 10, and this node 9"),
        (_SOUND[:62] + b"\x02\x00" + _SOUND[64:], "did not begin with a hello"),
        (encode_refusal(HELLO.scope, "no"), "did not begin with a hello"),
        (_SOUND[:72] + b"\x01\x04\x00\x00" + _SOUND[76:], "announced a header of 1025 bytes"),
        (_SOUND[:76] + b"\x01\x00\x00\x00" + _SOUND[80:], "announced a payload of 1 bytes"),
        (_SOUND[:80] + b"\xc1" * (len(_SOUND) - 80), "malformed hello"),
        (
            _SOUND[:72]
            + (9).to_bytes(4, "little")
            + bytes(4)
            + msgspec.msgpack.encode({"index": "2"}),
            "malformed hello",
        ),
    ],
)
def test_members_that_speak_nonsense_are_refused(
    data: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, line = _refused(_says(data), caplog)
    assert reason in line


def test_a_member_that_leaves_in_its_hello_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    def leave(listening: EdgeListener) -> None:
        with tls_client(listening, credentials(SENDER)) as connection:
            connection.sendall(_SOUND[:40])

    _, line = _refused(leave, caplog)
    assert "closed the connection before sending a hello" in line


def test_a_hello_in_single_bytes_is_understood() -> None:
    with listener() as listening:

        def dribble() -> None:
            with tls_client(listening, credentials(SENDER)) as connection:
                for byte in _SOUND:
                    connection.sendall(bytes([byte]))
                assert connection.recv(1000) == _SOUND

        with in_thread(threading.Thread(target=dribble)):
            accept(listening).close()


@pytest.mark.slow
def test_two_hundred_that_say_nothing_are_not_in_the_way() -> None:
    with contextlib.ExitStack() as silent, listener(handshake_seconds=60) as listening:
        for _ in range(200):
            client = socket.socket()
            silent.callback(client.close)
            client.setblocking(False)
            client.connect_ex(listening.address.endpoint)
        with done_within(5), ThreadPoolExecutor(1) as pool:
            accepting = pool.submit(accept, listening, HELLO, 60)
            _check(connect(listening, seconds=60), accepting.result())


@pytest.mark.slow
def test_a_client_that_says_nothing_is_closed_in_time(caplog: pytest.LogCaptureFixture) -> None:
    with listener(handshake_seconds=1) as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, listening, HELLO, 6)
        with (
            socket.create_connection(listening.address.endpoint, timeout=20) as plain,
            done_within(1.2),
        ):
            started = time.monotonic()
            assert plain.recv(1) == b""
            assert time.monotonic() - started > 0.5
        with tls_client(listening, credentials(SENDER)) as member:
            assert b"it did not authenticate in time" in member.recv(1000)
        with pytest.raises(EdgeError, match="did not connect within 6 s"):
            accepting.result()
    assert "refused an unknown client" in caplog.text
    assert f"refused {SENDER}" in caplog.text


def test_another_node_than_the_expected_one_answers() -> None:
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, listening, HELLO, 30)
        with pytest.raises(EdgeError, match=f"{THIRD} at .*: node {RECEIVER} answers there"):
            connect(listening, to_node=THIRD)
        listening.close()
        with pytest.raises(EdgeError):
            accepting.result()


def test_nobody_listens() -> None:
    with listener() as listening:
        pass
    with pytest.raises(EdgeError, match="Connection refused"):
        connect(listening)


def test_a_listener_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = type("Silent", (), {"address": _address_of(server)})
        with done_within(2), pytest.raises(EdgeError, match="it does not answer"):
            connect(silent(), seconds=0.3)


def test_close_ends_an_accept_in_another_thread() -> None:
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept, listening, HELLO, 30)
        time.sleep(0.1)
        with done_within(4):
            listening.close()
            with pytest.raises(EdgeClosedError, match="listener is closed"):
                accepting.result(20)
        with pytest.raises(EdgeClosedError):
            accept(listening)
        listening.close()


def test_a_listener_can_be_used_again_at_a_higher_epoch() -> None:
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        for number in (7, 8):
            hello = _hello(epoch=Epoch(number=number, coordinator=SENDER))
            connecting = pool.submit(connect, listening, hello)
            incoming = accept(listening, hello)
            assert incoming.scope.epoch.number == number
            connecting.result().close()
            incoming.close()


def test_nothing_legible_is_on_the_wire() -> None:
    """A relay between the two sides sees neither the header nor the payload nor node ids."""
    seen = bytearray()
    with listener() as listening, socket.create_server(("127.0.0.1", 0)) as server:

        def relay() -> None:
            client, _ = server.accept()
            upstream = socket.create_connection(listening.address.endpoint)
            back = threading.Thread(target=_pump, args=(upstream, client, seen))
            back.start()
            _pump(client, upstream, seen)
            back.join()
            client.close()
            upstream.close()

        through = type("Relay", (), {"address": _address_of(server)})
        with in_thread(threading.Thread(target=relay)), ThreadPoolExecutor(1) as pool:
            connecting = pool.submit(connect, through())
            incoming = accept(listening)
            outgoing = connecting.result()
            outgoing.send(FrameKind.STEP, StepId(1), b"the prompt", b"the hidden state")
            assert bytes(incoming.receive().header) == b"the prompt"
            outgoing.close()
            incoming.close()
    assert len(seen) > 1000
    for text in (b"the prompt", b"the hidden state", b"PLCK", SENDER.encode(), RECEIVER.encode()):
        assert text not in seen


def _pump(source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            seen.extend(data)
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


# Several edges at one address.


def _between(sender: int, receiver: int) -> Hello:
    return Hello(scope=HELLO.scope, index=HELLO.index, sender=sender, receiver=receiver)


def test_all_who_are_expected_are_let_in_whatever_their_order() -> None:
    expected = {HELLO: SENDER, _between(1, 0): THIRD, _between(2, 0): SENDER}
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept_edges, listening, expected)
        outgoing = {
            hello: connect(listening, hello, as_node=credentials(expected[hello]))
            for hello in reversed(expected)
        }
        incoming = accepting.result()
    assert {hello: each.peer_node_id for hello, each in incoming.items()} == expected
    for hello, sender in outgoing.items():
        _check(sender, incoming[hello])


@pytest.mark.parametrize(
    ("hello", "node", "reason"),
    [
        (
            _between(0, 1),
            SENDER,
            "expected edge 1 to 0 of group 2 or edge 2.*, got edge 0 to 1 of group 2",
        ),
        (HELLO, SENDER, "expected edge 1 to 0 .*, got edge 2"),
        (_between(1, 0), THIRD, f"expected node {SENDER}, got node {THIRD}"),
    ],
)
def test_an_edge_that_is_not_expected_is_refused_among_several(
    hello: Hello, node: NodeId, reason: str
) -> None:
    expected = {_between(1, 0): SENDER, _between(2, 0): SENDER}
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept_edges, listening, expected)
        with pytest.raises(EdgeError, match=reason):
            connect(listening, hello, as_node=credentials(node))
        kept = [connect(listening, each) for each in expected]
        for edge in (*accepting.result().values(), *kept):
            edge.close()


@pytest.mark.slow
def test_if_one_does_not_come_nobody_is_let_in() -> None:
    expected = {_between(1, 0): SENDER, _between(2, 0): THIRD}
    with listener() as listening, ThreadPoolExecutor(1) as pool:
        accepting = pool.submit(accept_edges, listening, expected, seconds=0.5)
        outgoing = connect(listening, _between(1, 0))
        with pytest.raises(
            EdgeError, match=f"connection to node {THIRD}: it did not connect within 0.5 s"
        ):
            accepting.result()
        assert outgoing._connection.recv(1) == b""
        outgoing.close()


def test_without_descriptors_left_no_route_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def exhausted(*given: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    def open_route() -> RoutedConnections:
        channel, sending = connection_channel()
        sending.close()
        address = EdgeAddress(host="127.0.0.1", port=1, name="a.stage.potluck")
        return RoutedConnections(channel, lambda: address, lambda: ended.append("a"))

    endpoint = EdgeEndpoint(
        credentials=credentials(RECEIVER), listen_host="127.0.0.1", open_route=open_route
    )
    monkeypatch.setattr(os, "eventfd", exhausted)
    with pytest.raises(OSError, match="Too many open files"):
        endpoint.listen()
    assert ended == ["a"]
