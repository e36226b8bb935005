"""The server of invitations in its own process, with the test in the place of the agent."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from support.cluster.invitation_server import RunningServer
from support.processes.waiting import done_within, eventually

from potluck.cluster.invitations.front import MAX_BODY_BYTES, MOST_STRANGERS
from potluck.cluster.invitations.invitation import generate_token


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One for all tests that leave it as it was: each start costs a process with its imports."""
    running = RunningServer()
    yield running
    running.close()


@pytest.fixture
def own_server() -> Iterator[RunningServer]:
    """A server for a test that changes its invitations, ends it, or is refused by it afterwards."""
    running = RunningServer()
    yield running
    running.close()


@pytest.mark.slow
def test_a_certificate_is_asked_of_the_agent(server: RunningServer) -> None:
    server.questions.clear()
    path = f"/join/{server.token}/certificate"
    assert server.ask("POST", path, b"a request") == (200, b"made of it")
    (question,) = server.questions
    assert question.invitation_id == "abcd"
    assert question.name == "certificate"
    assert question.body == b"a request"
    assert question.newcomer == "127.0.0.1"


@pytest.mark.slow
def test_a_wrong_token_is_answered_as_an_unknown_path(server: RunningServer) -> None:
    server.questions.clear()
    wrong = server.ask("POST", f"/join/{generate_token()}/certificate", b"")
    assert wrong[0] == 404
    assert server.ask("GET", "/") == wrong
    assert server.ask("GET", "/join/") == wrong
    assert server.ask("GET", f"/join/{server.token}") == wrong
    assert server.ask("GET", f"/other/{server.token}/certificate") == wrong
    assert not server.questions


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["../x", "a/../b", ".x", "a//b", "a%2fb", "a?b", "a\\b", "", "a/", "é"]
)
def test_a_name_is_plain(server: RunningServer, name: str) -> None:
    request = f"GET /join/{server.token}/{name} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    assert server.say(request).startswith(b"HTTP/1.1 40")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("invitation", "expected"),
    [
        ({"expires": 1.0}, "it has expired"),
        ({"closed": "it was withdrawn"}, "it was withdrawn"),
        ({"closed": "used up", "is_used_up": True}, "used up"),
    ],
)
def test_whoever_has_the_token_is_told_why_it_is_closed(
    own_server: RunningServer, invitation: Any, expected: str
) -> None:
    own_server.know(own_server.invitation(**invitation))
    status, body = own_server.ask("GET", f"/join/{own_server.token}/install.py")
    assert status == 410
    assert expected in json.loads(body)["error"]["message"]


@pytest.mark.slow
def test_who_used_an_invitation_up_may_ask_again(own_server: RunningServer) -> None:
    own_server.know(own_server.invitation(closed="used up", is_used_up=True))
    assert own_server.ask("POST", f"/join/{own_server.token}/certificate", b"x")[0] == 200
    own_server.know(own_server.invitation(closed="withdrawn"))
    eventually(
        lambda: own_server.ask("POST", f"/join/{own_server.token}/certificate", b"x")[0] == 410
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /join HTTP/0.9\r\n\r\n", b"505"),
        (b"GET /join\r\n\r\n", b"400"),
        (b"GET  /join HTTP/1.1\r\n\r\n", b"400"),
        (b"\x16\x03\x01\r\n\r\n", b"400"),
        (b"GET /join HTTP/2.0\r\n\r\n", b"505"),
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"PUT /join HTTP/1.1\r\n\r\n", b"501"),
        (b"POST /join HTTP/1.1\r\n\r\n", b"411"),
        (b"POST /join HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"400"),
        (b"POST /join HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy", b"400"),
        (b"POST /join HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /join HTTP/1.1\r\nContent-Length: 0x10\r\n\r\n", b"400"),
        (b"POST /join HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), b"413"),
        (b"GET /join HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"400"),
        (b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\n\r\n", b"414"),
    ],
)
def test_malformed_requests_are_refused(
    server: RunningServer, request_head: bytes, status: bytes
) -> None:
    answer = server.say(request_head)
    assert answer.split(b" ")[1] == status, answer


def test_headers_without_end_are_cut_off(server: RunningServer) -> None:
    endless = b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000
    with server.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(endless)
        assert connection.recv(65_536)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert server.ask("GET", "/")[0] == 404


@pytest.mark.slow
def test_silent_strangers_do_not_keep_a_newcomer_out(own_server: RunningServer) -> None:
    own_server.ask("GET", "/")  # it has started
    strangers = [
        socket.create_connection(("127.0.0.1", own_server.port)) for _ in range(3 * MOST_STRANGERS)
    ]
    path = f"/join/{own_server.token}/certificate"
    with done_within(4):  # a stranger has 20 s
        assert own_server.ask("POST", path, b"a request") == (200, b"made of it")
    for stranger in strangers:
        stranger.close()


@pytest.mark.slow
def test_a_host_that_guesses_is_not_listened_to(own_server: RunningServer) -> None:
    def guess() -> None:
        assert own_server.ask("GET", f"/join/{generate_token()}/x")[0] == 404

    for _ in range(20):
        guess()
    with pytest.raises((ConnectionError, ssl.SSLEOFError)):
        guess()


@pytest.mark.slow
def test_the_process_starts_again(own_server: RunningServer) -> None:
    own_server.process._child.process.kill()

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return own_server.ask("POST", f"/join/{own_server.token}/certificate", b"")[0] == 200
        return False

    eventually(answers)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_curl_accepts_the_pinned_key_alone(server: RunningServer, tmp_path: Path) -> None:
    encoded = server.certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    pin = base64.b64encode(hashlib.sha256(encoded).digest()).decode()
    url = f"https://127.0.0.1:{server.port}/join/{server.token}/certificate"

    def curl(pin: str) -> int:
        command = ["curl", "-sSfk", "--pinnedpubkey", f"sha256//{pin}", "-d", "x", url]
        return subprocess.run(command, capture_output=True, timeout=30).returncode

    assert curl(pin) == 0
    assert curl(base64.b64encode(bytes(32)).decode()) == 90  # CURLE_SSL_PINNEDPUBKEYNOTMATCH
