"""Where a node listens for control connections, and who accepts them."""

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
"""Where members get to Zenoh through the acceptor. Mutual TLS here, too: users of this machine can
connect to it, and Zenoh has no way to tell a Unix socket of its own from one of theirs, to which
anyone in the network can send it by multicast."""


def concrete(listen: Address) -> Address:
    """``listen`` with a port that is free; ``JoinError`` if the address cannot be listened on.

    Zenoh does not tell which port it got for port 0.
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
            hint="choose an address of this machine and a free port",
        ) from error


async def start_acceptor(
    config: MembershipConfig, pem: PemPaths, listen: Address, inner: Address
) -> AcceptorProcess:
    """Take ``listen`` from Zenoh, which listens there and at ``inner``, and accept in its place.

    Raises ``JoinError`` where that cannot be done.
    """
    settings = AcceptorSettings(
        inner_host=inner.host,
        inner_port=inner.port,
        node_id=config.node_id,
        authority=str(pem.authority),
        certificate=str(pem.certificate),
        key=str(pem.key),
        stall_milliseconds=config.stall_milliseconds,
    )
    server = None
    try:
        server = take_listener((listen.host, listen.port))
        return await AcceptorProcess.start(server, settings)
    except BaseException as error:
        if server is not None:
            server.close()
        if isinstance(error, OSError):
            raise JoinError(
                f"cannot accept connections at {listen}: {error.strerror or error}",
                hint="see whether this user may start more processes and open more files",
            ) from error
        raise
