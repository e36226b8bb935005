"""A newcomer and what it is given, through a real server; and what a newcomer must not get."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from support.cluster.invitation_server import RunningServer

from potluck.cluster.invitations.channel import Question, Reply
from potluck.cluster.invitations.identity import identity_by_invitation
from potluck.cluster.invitations.invitation import Invitation, generate_token
from potluck.cluster.invitations.issuing import (
    CertificateRequest,
    ClusterFacts,
    Issuing,
    allowed_names,
)
from potluck.cluster.invitations.joining import join
from potluck.cluster.invitations.ledger import Ledger
from potluck.cluster.network.membership import Address
from potluck.cluster.network.trust.requests import new_request, pem_key_digest, requested_key
from potluck.errors import JoinError, ParameterError
from potluck.types.cluster import WIRE_VERSION


class Inviting:
    """A node that invites: a server, and the agent's part of it."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.server = RunningServer(self.answer)
        self.facts = ClusterFacts(
            cluster_id="c" * 16,
            version="1",
            addresses=("127.0.0.1:7333",),
            multicast=True,
            taken_names=("gateway",),
        )
        self.issuing = Issuing(
            self.server.authority, lambda: self.ledger, self.keep, lambda: self.facts
        )

    def keep(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def answer(self, question: Question) -> Reply:
        return self.issuing.answer(question)

    def invite(self, num_uses: int = 1) -> Invitation:
        self.ledger, _, token = self.ledger.invite(time.time(), num_uses=num_uses, seconds=60)
        self.server.know(*self.ledger.known(time.time()))
        return self.invitation(token)

    def invitation(self, token: str) -> Invitation:
        return Invitation(
            addresses=(Address(host="127.0.0.1", port=self.server.port),),
            token=token,
            key_sha256=pem_key_digest(self.server.certificate_pem),
        )


@pytest.fixture(scope="module")
def node() -> Iterator[Inviting]:
    """One for all tests that ask the agent alone: a server costs a process with its imports."""
    made = Inviting()
    yield made
    made.server.close()


@pytest.fixture
def inviting() -> Iterator[Inviting]:
    made = Inviting()
    yield made
    made.server.close()


@pytest.mark.slow
def test_a_newcomer_becomes_a_member(inviting: Inviting) -> None:
    joined = join(inviting.invite(), host_name="board-7", names=["board-7", "192.168.1.7"])
    (member,) = inviting.ledger.members
    assert joined.node_id == member.node_id
    assert member.name == "board-7"
    assert member.host == "127.0.0.1"
    assert joined.addresses == ("127.0.0.1:7333",)
    assert joined.multicast
    identity = identity_by_invitation(joined)
    assert identity.authority is None
    identity.credentials.server_context()
    certificate = x509.load_pem_x509_certificate(joined.client_chain_pem.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["board-7"]
    (usage,) = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert usage == ExtendedKeyUsageOID.SERVER_AUTH


@pytest.mark.slow
def test_one_whose_invitation_is_used_up_is_told_so(inviting: Inviting) -> None:
    invitation = inviting.invite()
    join(invitation, host_name="a", names=[])
    with pytest.raises(JoinError, match="used up"):
        join(invitation, host_name="b", names=[])
    assert len(inviting.ledger.members) == 1


@pytest.mark.slow
def test_an_unknown_token(inviting: Inviting) -> None:
    with pytest.raises(JoinError, match="does not know the invitation"):
        join(inviting.invitation(generate_token()), host_name="a", names=[])


@pytest.mark.slow
def test_another_server_is_told_nothing(inviting: Inviting) -> None:
    good = inviting.invite()
    bad = Invitation(addresses=good.addresses, token=good.token, key_sha256=bytes(32))
    with pytest.raises(JoinError, match="not the node that made the invitation"):
        join(bad, host_name="a", names=[])
    assert not inviting.server.questions


def test_nobody_there_names_each_address() -> None:
    addresses = (Address(host="127.0.0.1", port=1), Address(host="127.0.0.2", port=1))
    invitation = Invitation(addresses=addresses, token=generate_token(), key_sha256=bytes(32))
    with pytest.raises(JoinError, match=r"127\.0\.0\.1:1: .*; 127\.0\.0\.2:1: "):
        join(invitation, host_name="a", names=[])


def test_a_name_that_no_host_can_have() -> None:
    addresses = (Address(host="attic..local", port=7333),)
    invitation = Invitation(addresses=addresses, token=generate_token(), key_sha256=bytes(32))
    with pytest.raises(JoinError, match=r"attic\.\.local:7333: there is no host with that name"):
        join(invitation, host_name="box", names=())


@pytest.mark.slow
def test_a_newcomer_of_another_wire_version_is_refused_and_uses_nothing(
    inviting: Inviting,
) -> None:
    inviting.invite()
    request = CertificateRequest(
        wire_version=WIRE_VERSION + 1,
        version="9",
        host_name="a",
        certificate_request=new_request().request_pem.decode(),
        client_request=new_request().request_pem.decode(),
    )
    (record,) = inviting.ledger.invitations
    reply = inviting.answer(
        Question(
            number=1,
            invitation_id=record.invitation_id,
            newcomer="127.0.0.1",
            name="certificate",
            body=msgspec.json.encode(request),
        )
    )
    assert reply.status == 403
    assert b"same version" in reply.body
    assert not inviting.ledger.members


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b"[" * 60_000, b'{"wire_version": "x"}'])
def test_what_makes_no_sense_is_refused(node: Inviting, body: bytes) -> None:
    question = Question(
        number=1, invitation_id="x", newcomer="127.0.0.1", name="certificate", body=body
    )
    assert node.answer(question).status == 403


def test_names_for_clients_are_limited() -> None:
    names = [
        "localhost",
        "board",
        "board.local",
        "gateway",
        "GATEWAY.local",
        "example.org",
        "*",
        "192.168.1.7",
        "8.8.8.8",
        "fe80::1",
        "a b",
    ]
    assert list(allowed_names(names, "203.0.113.9", ["gateway"])) == [
        "203.0.113.9",
        "localhost",
        "board",
        "board.local",
        "192.168.1.7",
        "fe80::1",
    ]


@pytest.mark.slow
def test_a_request_proves_its_key() -> None:
    request = new_request()
    key = serialization.load_pem_private_key(request.private_key_pem, None)
    assert requested_key(request.request_pem) == key.public_key()
    name = x509.Name([])
    weak = ec.generate_private_key(ec.SECP224R1())
    other = x509.CertificateSigningRequestBuilder().subject_name(name).sign(weak, hashes.SHA256())
    der = x509.load_pem_x509_csr(request.request_pem).public_bytes(serialization.Encoding.DER)
    forged = bytearray(der)
    forged[-1] ^= 1
    armoured = (
        b"-----BEGIN CERTIFICATE REQUEST-----\n"
        + base64.encodebytes(bytes(forged))
        + b"-----END CERTIFICATE REQUEST-----\n"
    )
    for bad in (b"", b"x" * 10_000, other.public_bytes(serialization.Encoding.PEM), armoured):
        with pytest.raises(ParameterError):
            requested_key(bad)
