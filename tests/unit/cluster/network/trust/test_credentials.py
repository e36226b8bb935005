"""Who gets through a TLS handshake with whom, on a socket pair."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.cluster.edges import OTHER_SECRET, RECEIVER, SENDER, authority, credentials
from support.cluster.imposters import expired, forged, named

from potluck.cluster.network.trust.credentials import Credentials, peer_node_id
from potluck.errors import ParameterError
from potluck.types.cluster import NodeId

Exchange = tuple[NodeId, NodeId]


def _exchange(server: ssl.SSLContext, client: ssl.SSLContext) -> Exchange:
    """The node ids that client and server read of one another, after a byte went each way.

    Raises what the server raises, else what the client does.
    """
    left, right = socket.socketpair()
    left.settimeout(10)
    right.settimeout(10)

    def serve() -> NodeId:
        with server.wrap_socket(left, server_side=True) as connection:
            connection.sendall(connection.recv(1))
            return peer_node_id(connection)

    def call() -> NodeId:
        with client.wrap_socket(right) as connection:
            connection.sendall(b"x")
            if connection.recv(1) != b"x":
                raise ConnectionResetError
            return peer_node_id(connection)

    with ThreadPoolExecutor(2) as pool:
        serving, calling = pool.submit(serve), pool.submit(call)
        served = serving.result()
        return calling.result(), served


def test_members_know_one_another() -> None:
    found = _exchange(credentials(RECEIVER).server_context(), credentials(SENDER).client_context())
    assert found == (RECEIVER, SENDER)


def test_a_sound_certificate_from_elsewhere_is_taken() -> None:
    """So what the imposters below are refused for is what they lie about."""
    sound = named(SENDER, authority())
    found = _exchange(credentials(RECEIVER).server_context(), sound.client_context())
    assert found == (RECEIVER, SENDER)


@pytest.mark.parametrize(
    "imposter",
    [
        pytest.param(lambda: credentials(SENDER, OTHER_SECRET), id="another cluster"),
        pytest.param(lambda: expired(SENDER), id="expired"),
        pytest.param(lambda: forged(SENDER), id="home-made authority with the same names"),
    ],
)
def test_a_server_refuses(imposter: Callable[[], Credentials]) -> None:
    context = imposter().client_context()
    context.verify_mode = ssl.CERT_NONE  # The imposter is not so particular.
    with pytest.raises(ssl.SSLCertVerificationError):
        _exchange(credentials(RECEIVER).server_context(), context)


@pytest.mark.parametrize(
    "imposter",
    [
        pytest.param(lambda: credentials(RECEIVER, OTHER_SECRET), id="another cluster"),
        pytest.param(lambda: expired(RECEIVER), id="expired"),
        pytest.param(lambda: forged(RECEIVER), id="home-made authority with the same names"),
    ],
)
def test_a_client_refuses(imposter: Callable[[], Credentials]) -> None:
    context = imposter().server_context()
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):  # What the client told the server.
        _exchange(context, credentials(SENDER).client_context())


def test_a_client_without_certificate_is_refused() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        _exchange(credentials(RECEIVER).server_context(), context)


def test_sessions_cannot_be_resumed() -> None:
    left, right = socket.socketpair()
    server, client = credentials(RECEIVER).server_context(), credentials(SENDER).client_context()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(server.wrap_socket, left, server_side=True)
        with client.wrap_socket(right) as connection, serving.result() as other:
            other.sendall(b"x")
            assert connection.recv(1) == b"x"  # A ticket would have come before.
            assert connection.session is not None
            assert not connection.session.has_ticket


def test_older_tls_is_refused() -> None:
    context = credentials(SENDER).client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        _exchange(credentials(RECEIVER).server_context(), context)


def test_a_node_cannot_make_nodes() -> None:
    """The holder of a node's key, without the secret, signs a certificate with it."""
    node = credentials(SENDER)
    key = serialization.load_pem_private_key(node.private_key_pem, None)
    issuer = x509.load_pem_x509_certificate(node.certificate_pem)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    child_key = ec.generate_private_key(ec.SECP256R1())
    child = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c" * 16)]))
        .issuer_name(issuer.subject)
        .public_key(child_key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC))
        .sign(key, hashes.SHA256())
    )
    imposter = Credentials(
        node_id=NodeId("c" * 16),
        certificate_pem=child.public_bytes(serialization.Encoding.PEM) + node.certificate_pem,
        private_key_pem=child_key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        authority_pem=node.authority_pem,
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        _exchange(credentials(RECEIVER).server_context(), imposter.client_context())


@pytest.mark.parametrize("name", ["cluster", "B" * 16, "b" * 17])
def test_a_certificate_without_a_node_id_is_nobodys(name: str) -> None:
    with pytest.raises(ParameterError, match="not a node id"):
        _exchange(credentials(RECEIVER).server_context(), named(name, authority()).client_context())
