"""The address where a node listens for control connections, and the process that accepts them."""

from __future__ import annotations

import socket
from dataclasses import replace

from potluck.cluster.acceptor.process import AcceptorSettings
from potluck.cluster.acceptor.supervisor import AcceptorProcess
from potluck.cluster.acceptor.takeover import take_listener
from potluck.cluster.membership.address import Address
from potluck.cluster.membership.config import MembershipConfig, PemPaths
from potluck.errors import JoinError

INNER = Address(host="127.0.0.1", port=0)
"""The address of Zenoh's own listener, to which the acceptor connects members. It uses mutual TLS,
too: other users of this machine can connect to it. A Unix socket is no alternative, because anyone
on the network can direct Zenoh to one by multicast."""


def concrete(listen: Address) -> Address:
    """Return ``listen`` with a free port. Raises ``JoinError`` if the address cannot be listened
    on.

    Zenoh does not report which port it got for port 0.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((listen.host, listen.port))
            return replace(listen, port=probe.getsockname()[1])
    except OSError as error:
        raise JoinError(
            f"cannot listen on {listen}: {(error.strerror or str(error)).lower()}",
            hint="use an address of this machine and a free port",
        ) from error


async def start_acceptor(
    config: MembershipConfig,
    pem: PemPaths,
    listen: Address,
    inner: Address,
    running: AcceptorProcess | None = None,
) -> AcceptorProcess:
    """Take over ``listen`` from Zenoh, which also listens at ``inner``, and accept in its place.

    The acceptor is a new one, or ``running``, which then accepts nowhere else. Raises ``JoinError``
    if that fails; ``running`` then goes on as before.
    """
    settings = AcceptorSettings(
        inner_host=inner.host,
        inner_port=inner.port,
        node_id=config.node_id,
        authority=str(pem.authority),
        certificate=str(pem.certificate),
        key=str(pem.key),
        stall_milliseconds=config.stall_milliseconds,
        removed=None if pem.removed is None else str(pem.removed),
    )
    server = None
    try:
        server = take_listener((listen.host, listen.port))
        if running is None:
            return await AcceptorProcess.start(server, settings)
        await running.move(server, settings)
        return running
    except BaseException as error:
        if server is not None:
            server.close()
        if isinstance(error, OSError):
            raise JoinError(
                f"cannot accept connections at {listen}: {error.strerror or error}",
                hint="check this user's limits on processes and open files",
            ) from error
        raise
