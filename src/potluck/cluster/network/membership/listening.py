"""The address where a node listens for control connections, and the process that accepts them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from dataclasses import replace

from potluck.cluster.network.acceptor.process import AcceptorSettings
from potluck.cluster.network.acceptor.supervisor import AcceptorProcess
from potluck.cluster.network.membership.address import Address
from potluck.cluster.network.membership.config import MembershipConfig
from potluck.cluster.network.membership.sockets import are_same, descriptors, find_socket
from potluck.cluster.network.trust.connection_sources import family_of
from potluck.cluster.network.trust.pem_files import PemPaths
from potluck.errors import JoinError

INNER = Address(host="127.0.0.1", port=0)
"""The address of Zenoh's own listener, to which the acceptor connects members. It uses mutual TLS,
too: other users of this machine can connect to it. A Unix socket is no alternative, because anyone
on the network can direct Zenoh to one by multicast."""

_EPOLL_LINK = "anon_inode:[eventpoll]"  # proc_pid_fd(5)


def concrete(listen: Address) -> Address:
    """Return ``listen`` with a free port. Raises ``JoinError`` if the address cannot be listened
    on.

    Zenoh does not report which port it got for port 0.
    """
    try:
        with socket.socket(family_of(listen.host), socket.SOCK_STREAM) as probe:
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
    running: AcceptorProcess | None,
) -> AcceptorProcess:
    """Take over ``listen`` from Zenoh, which also listens at ``inner``, and accept in its place.

    The acceptor is a new one, or ``running``, which then accepts nowhere else. Raises ``JoinError``
    if that fails; ``running`` then goes on as before.
    """
    settings = AcceptorSettings(
        inner_host=inner.host,
        inner_port=inner.port,
        node_id=config.node_id,
        stall_milliseconds=config.stall_milliseconds,
        **pem.texts(),
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


def take_listener(address: tuple[str, int]) -> socket.socket:
    """Return a duplicate of the socket on which this process listens at ``address``.

    ``address`` is numeric. The listener is removed from every ``epoll(7)`` instance that watched
    it. Raises ``OSError`` if this process does not listen there, or nothing watches the socket.

    Zenoh itself advertises the addresses it listens on, and cannot be told to advertise others. So
    it opens the public address; then this function unregisters the socket from the library's event
    loop, and the acceptor gets it. The library keeps the socket but never sees a connection.
    """
    found = find_socket(
        lambda each: (
            bool(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
            and are_same(each.getsockname(), address)
        )
    )
    if found is None:
        raise OSError(f"this process does not listen at {address[0]} port {address[1]}")
    descriptor, listener = found
    if not _forget(descriptor):
        listener.close()
        raise OSError("no event loop of this process watches its listening socket")
    return listener


def _forget(watched: int) -> bool:
    """Unregister a descriptor from every epoll instance of this process; return whether one knew
    it.
    """
    num_forgotten = 0
    for descriptor, target in descriptors():
        if target != _EPOLL_LINK:
            continue
        with contextlib.suppress(OSError), select.epoll.fromfd(os.dup(descriptor)) as instance:
            instance.unregister(watched)  # ENOENT: it watches others
            num_forgotten += 1
    return num_forgotten > 0
