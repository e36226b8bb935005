"""The newcomer's side: from an invitation to a membership that is stored. Blocking."""

from __future__ import annotations

import hmac
import http.client
import json
import socket
import ssl
from collections.abc import Iterable

import msgspec

from potluck.cluster.invitations.invitation import Invitation, token_digest
from potluck.cluster.invitations.issuing import CertificateRequest, IssuedCertificates
from potluck.cluster.invitations.joined import JoinedCluster
from potluck.cluster.network.membership.address import Address, parse_address
from potluck.cluster.network.trust.handshakes import describe
from potluck.cluster.network.trust.requests import KeyRequest, certificate_key_digest, new_request
from potluck.errors import JoinError, ParameterError
from potluck.types.cluster import WIRE_VERSION
from potluck.version import __version__

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 40.0
"""Slightly longer than the inviting node's own limit."""

_MAX_ANSWER_BYTES = 1 << 18
_NEW = "ask for a new one: potluck invite"


class _NotReachedError(Exception):
    """No answer at an address that could be that of the inviting node."""


def join(invitation: Invitation, *, host_name: str, names: Iterable[str]) -> JoinedCluster:
    """Become a member: generate keys, and have the inviting node certify them.

    ``names`` are those under which this node may serve clients. Its addresses are tried in order,
    twice each, with the same keys, so that a lost answer does not count as another use. Raise
    ``JoinError``.
    """
    node, client = new_request(), new_request()
    body = msgspec.json.encode(
        CertificateRequest(
            wire_version=WIRE_VERSION,
            version=__version__,
            host_name=host_name,
            certificate_request=node.request_pem.decode("ascii"),
            client_request=client.request_pem.decode("ascii"),
            names=tuple(names),
        )
    )
    reasons = []
    for address in (*invitation.addresses, *invitation.addresses):
        try:
            answer = _ask(invitation, address, body)
        except _NotReachedError as error:
            reasons.append(f"{address}: {error}")
            continue
        return _joined(invitation, address, answer, node, client)
    raise JoinError(
        "could not join with the invitation: " + "; ".join(dict.fromkeys(reasons)),
        hint="check that the inviting node is running and reachable from here",
    )


def _ask(invitation: Invitation, address: Address, body: bytes) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the key is pinned instead, before anything is sent
    context.set_alpn_protocols(["http/1.1"])
    try:
        raw = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
        with context.wrap_socket(raw) as connection:
            _check_key(connection, invitation, address)
            connection.settimeout(_ANSWER_SECONDS)
            asking = http.client.HTTPConnection(address.host, address.port)
            asking.sock = connection
            asking.request("POST", f"/join/{invitation.token}/certificate", body=body)
            response = asking.getresponse()
            answer = response.read(_MAX_ANSWER_BYTES)
            if response.status == 200:
                return answer
            raise _refusal(address, response.status, answer)
    except OSError as error:
        raise _NotReachedError(describe(error)) from error
    except UnicodeError as error:  # a label that is empty, or longer than 63 characters
        raise _NotReachedError("there is no host with that name") from error
    except http.client.HTTPException as error:
        raise _NotReachedError("the answer is incomplete") from error


def _check_key(connection: ssl.SSLSocket, invitation: Invitation, address: Address) -> None:
    certificate = connection.getpeercert(binary_form=True)
    try:
        digest = certificate_key_digest(certificate or b"")
    except ValueError:
        digest = b""
    if not hmac.compare_digest(digest, invitation.key_sha256):
        raise JoinError(
            f"the server at {address} is not the node that made the invitation",
            hint=f"nothing was sent to it; {_NEW}",
        )


def _refusal(address: Address, status: int, answer: bytes) -> JoinError:
    try:
        error = json.loads(answer)["error"]
        message, hint = str(error["message"])[:500], str(error.get("hint", ""))[:500]
    except (ValueError, KeyError, TypeError, AttributeError):
        message, hint = f"it answered with status {status}", ""
    if status == 404:
        message, hint = "it does not know the invitation", _NEW
    return JoinError(f"the node at {address} refused: {message}", hint=hint)


def _joined(
    invitation: Invitation, address: Address, answer: bytes, node: KeyRequest, client: KeyRequest
) -> JoinedCluster:
    try:
        issued = msgspec.json.decode(answer, type=IssuedCertificates)
        addresses = tuple(str(parse_address(each)) for each in issued.addresses)
        joined = JoinedCluster(
            cluster_id=issued.cluster_id,
            node_id=issued.node_id,
            certificate_pem=issued.certificate_pem,
            private_key_pem=node.private_key_pem.decode("ascii"),
            authority_pem=issued.authority_pem,
            client_chain_pem=issued.client_certificate_pem + client.private_key_pem.decode("ascii"),
            addresses=addresses,
            multicast=issued.multicast,
            token_sha256=token_digest(invitation.token),
        )
        joined.check()
    except (ValueError, ParameterError) as error:
        raise JoinError(f"malformed answer from the node at {address}: {error}") from error
    return joined
