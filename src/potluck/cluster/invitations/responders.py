"""What the invitation server serves in addition to certificates."""

from __future__ import annotations

import base64
import hashlib
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from potluck.cluster.invitations.answers import Answer, NewcomerRequest, Responder
from potluck.cluster.invitations.channel import Settings
from potluck.cluster.invitations.invitation import Invitation
from potluck.cluster.invitations.software.endpoint import Endpoint
from potluck.cluster.invitations.software.service import SoftwareService
from potluck.cluster.membership.address import Address, parse_address
from potluck.cluster.trust.requests import pem_key_digest


def responders_of(settings: Settings) -> Sequence[Responder]:
    """Return the responders that run in the server's process, in the order in which they are
    asked.
    """
    folders = tuple(map(Path, settings.wheel_folders))
    service = SoftwareService(folders, os.environ)
    certificate = ssl.PEM_cert_to_DER_cert(settings.certificate_pem)
    key_sha256 = pem_key_digest(settings.certificate_pem.encode("ascii"))

    def respond(request: NewcomerRequest) -> Answer | None:
        reached = Address(host=request.host, port=request.port)
        others = (parse_address(each) for each in settings.addresses)
        invitation = Invitation(
            addresses=tuple(dict.fromkeys((reached, *others))),
            token=request.token,
            key_sha256=key_sha256,
        )
        endpoint = Endpoint(
            host=request.host,
            port=request.port,
            token=request.token,
            certificate_sha256=hashlib.sha256(certificate).hexdigest(),
            public_key_sha256=base64.b64encode(key_sha256).decode("ascii"),
            invitation=str(invitation),
        )
        return service.respond(endpoint, request.method, request.name, request.body)

    return (respond,)
