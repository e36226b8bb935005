"""How the agent of an inviting node answers a newcomer that requests a certificate.

The server has already checked the token. What the newcomer says about itself is not trusted: its
node id is chosen here, so that it cannot impersonate another node, and names for its server
certificate are limited.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from potluck.cluster.invitations.channel import Question, Reply
from potluck.cluster.invitations.ledger import Ledger
from potluck.cluster.network.trust.authority import (
    Authority,
    authority_pem,
    issue_certificate,
    key_digest,
    server_certificate_for,
)
from potluck.cluster.network.trust.requests import requested_key
from potluck.errors import PotluckError, UsageError
from potluck.types.cluster import SAME_VERSION, WIRE_VERSION

_log = logging.getLogger(__name__)

_MOST_NAMES = 64
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.local)?", re.IGNORECASE)


class CertificateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A newcomer's request: for its membership, and for serving clients under ``names``."""

    wire_version: int
    version: str
    host_name: str
    certificate_request: str
    client_request: str
    names: tuple[str, ...] = ()


class IssuedCertificates(msgspec.Struct, frozen=True, kw_only=True):
    """The certificates for a newcomer."""

    cluster_id: str
    node_id: str
    certificate_pem: str
    client_certificate_pem: str
    authority_pem: str
    addresses: tuple[str, ...]
    multicast: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The facts about the cluster that newcomers receive. ``taken_names`` are host names of other
    members.
    """

    cluster_id: str
    version: str
    addresses: tuple[str, ...]
    multicast: bool
    taken_names: Collection[str] = ()


class Issuing:
    """Issues certificates.

    ``read`` and ``write`` are the ledger's, which is written before any answer is sent; ``facts``
    returns the current facts.
    """

    def __init__(
        self,
        authority: Authority,
        read: Callable[[], Ledger],
        write: Callable[[Ledger], None],
        facts: Callable[[], ClusterFacts],
    ) -> None:
        self._authority = authority
        self._read = read
        self._write = write
        self._facts = facts

    def answer(self, question: Question) -> Reply:
        """Return the answer to a newcomer. Raise ``OSError`` if the ledger cannot be written."""
        try:
            return _reply(question, 200, msgspec.json.encode(self._issued(question)))
        except PotluckError as error:
            _log.warning("refused a newcomer at %s: %s", question.newcomer, error.message)
            document = {"error": {"message": error.message, "hint": error.hint}}
            return _reply(question, 403, msgspec.json.encode(document))

    def _issued(self, question: Question) -> IssuedCertificates:
        request = _parsed(question.body)
        facts = self._facts()
        if request.wire_version != WIRE_VERSION:
            raise UsageError(
                f"this cluster runs Potluck {facts.version} (wire version {WIRE_VERSION}), but the "
                f"newcomer runs {request.version[:40]!r} (wire version {request.wire_version})",
                hint=SAME_VERSION,
            )
        key = requested_key(request.certificate_request.encode("utf-8"))
        client_key = requested_key(request.client_request.encode("utf-8"))
        ledger, node_id = self._read().admit(
            question.invitation_id,
            key_digest(key),
            time.time(),
            name=_shown(request.host_name),
            host=question.newcomer,
        )
        names = allowed_names(request.names, question.newcomer, facts.taken_names)
        issued = IssuedCertificates(
            cluster_id=facts.cluster_id,
            node_id=node_id,
            certificate_pem=issue_certificate(
                self._authority, node_id, key, [question.newcomer]
            ).decode("ascii"),
            client_certificate_pem=server_certificate_for(
                self._authority, client_key, names
            ).decode("ascii"),
            authority_pem=authority_pem(self._authority).decode("ascii"),
            addresses=facts.addresses,
            multicast=facts.multicast,
        )
        self._write(ledger)
        _log.warning("node %s (%s) is now a member", node_id, question.newcomer)
        return issued


def allowed_names(
    names: Iterable[str], newcomer: str, taken_names: Collection[str]
) -> Iterator[str]:
    """Yield those of the names for which the authority may certify a newcomer to clients.

    Clients that trust the authority would accept the newcomer as whatever its certificate says: so
    it only gets addresses of private networks and its own, and names of one label, or one and
    ``.local``, that no other member has.
    """
    taken = {name.lower().removesuffix(".local") for name in taken_names}
    yield newcomer
    for name in list(names)[:_MOST_NAMES]:
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            bare = name.lower().removesuffix(".local")
            if _HOST_NAME.fullmatch(name) and (bare == "localhost" or bare not in taken):
                yield name
            continue
        if address.is_private or address.is_link_local:
            yield name


def _parsed(body: bytes) -> CertificateRequest:
    try:
        return msgspec.json.decode(body, type=CertificateRequest)
    except ValueError as error:
        raise UsageError(f"malformed request from the newcomer: {error}") from error


def _shown(name: str) -> str:
    kept = "".join(each for each in name if each.isascii() and (each.isalnum() or each in "-._"))
    return kept[:64]


def _reply(question: Question, status: int, body: bytes) -> Reply:
    return Reply(
        number=question.number, status=status, content_type="application/json", body=body + b"\n"
    )
