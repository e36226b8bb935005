"""HTTPS of the HTTP address."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.http.api_server import RunningApi, running_api
from support.http.toy_gateway import MODEL
from support.processes.waiting import done_within

from potluck.api.config import ApiConfig, ApiLimits
from potluck.cluster.network.trust.authority import automatic_context, derive_authority
from potluck.cluster.network.trust.secret import Secret, generate_secret

SECRET = Secret(text=generate_secret())
CONFIG = ApiConfig(
    tls=automatic_context(derive_authority(SECRET), ["localhost", "127.0.0.1", "not a name"])
)


@pytest.fixture(scope="module")
def running() -> Iterator[RunningApi]:
    with running_api(CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A client that trusts the cluster's authority and checks names, strictly."""
    from cryptography.hazmat.primitives.serialization import Encoding

    path: Path = tmp_path_factory.mktemp("tls") / "authority.pem"
    # Derived once more, as another node or another start of this one does.
    path.write_bytes(derive_authority(SECRET).certificate.public_bytes(Encoding.PEM))
    context = ssl.create_default_context(cafile=str(path))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def get(
    running: RunningApi, context: ssl.SSLContext, path: str, host: str = "127.0.0.1", **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection(host, running.port, context=context, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_address_and_its_names(running: RunningApi, trusting: ssl.SSLContext) -> None:
    assert running.url.startswith("https://127.0.0.1:")
    for host in ("127.0.0.1", "localhost"):
        status, body = get(running, trusting, "/v1/models", host)
        assert status == 200
        assert json.loads(body)["data"][0]["id"] == MODEL


def test_a_stream_comes_whole(running: RunningApi, trusting: ssl.SSLContext) -> None:
    connection = http.client.HTTPSConnection("127.0.0.1", running.port, context=trusting)
    body = {"model": MODEL, "prompt": "a", "max_tokens": 200, "stream": True, "seed": 1}
    connection.request("POST", "/v1/completions", json.dumps(body))
    text = connection.getresponse().read()
    connection.close()
    assert text.endswith(b"data: [DONE]\n\n")
    assert text.count(b"data: ") > 50


def test_a_page_of_the_address_itself_may_use_it(
    running: RunningApi, trusting: ssl.SSLContext
) -> None:
    for origin, status in ((running.url, 200), (running.url.replace("https", "http"), 403)):
        assert get(running, trusting, "/v1/models", Origin=origin)[0] == status


def test_nobody_is_trusted_by_default(running: RunningApi) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        get(running, ssl.create_default_context(), "/health")


def test_old_protocols_and_plain_http_get_nothing(running: RunningApi) -> None:
    with socket.create_connection(("127.0.0.1", running.port), 20) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in plain.recv(100)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", running.port), 20) as old,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(old)


def test_handshakes_that_never_end_keep_nobody_out(trusting: ssl.SSLContext) -> None:
    limits = ApiLimits(max_connections=4, head_seconds=60)
    with running_api(replace(CONFIG, limits=limits)) as running:
        silent = [socket.create_connection(("127.0.0.1", running.port), 20) for _ in range(12)]
        time.sleep(0.2)
        assert get(running, trusting, "/health")[0] == 200
        for each in silent:
            each.close()


def test_a_handshake_has_a_time_limit() -> None:
    limits = ApiLimits(head_seconds=0.3)
    with (
        running_api(replace(CONFIG, limits=limits)) as running,
        socket.create_connection(("127.0.0.1", running.port), 20) as silent,
        done_within(2),
    ):  # it has 10 s by default
        assert silent.recv(100) == b""


def test_a_client_that_does_not_read_is_cut_off_and_a_slow_one_is_not(
    trusting: ssl.SSLContext,
) -> None:
    limits = ApiLimits(send_seconds=2.0)
    with running_api(replace(CONFIG, limits=limits)) as running:
        # An answer of 1.1 MiB.
        body = json.dumps({"content": "a" * 50_000, "with_pieces": True}).encode()
        head = (
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n"
        )
        for seconds, is_served in ((0.1, True), (60.0, False)):
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.settimeout(20)
            raw.connect(("127.0.0.1", running.port))
            with trusting.wrap_socket(raw, server_hostname="localhost") as client:
                client.sendall(head % len(body) + body)
                received = client.recv(16)
                if not is_served:
                    time.sleep(6)
                while data := _some(client, 32 * 1024):
                    received += data
                    if is_served:
                        time.sleep(seconds)
            assert received.endswith(b"}") is is_served


def _some(client: ssl.SSLSocket, most: int) -> bytes:
    """Up to ``most`` bytes; none once the connection is closed or cut off."""
    received = b""
    try:
        while len(received) < most and (data := client.recv(most - len(received))):
            received += data
    except OSError:
        return received
    return received
