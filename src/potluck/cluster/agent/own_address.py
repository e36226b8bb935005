"""Follows this node's address, which a new DHCP lease or another network may change.

A node has one address, that of one interface. Once the machine no longer has it, no connection to
or from it works, and the other nodes lose this one within the lease.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from potluck.cluster.network.membership import Address, Membership
from potluck.cluster.network.trust.connection_sources import family_of
from potluck.errors import JoinError

_log = logging.getLogger(__name__)

FindHost = Callable[[], str | None]
"""Returns an IP address of this machine at which other nodes may reach it; None without any."""

_LOOK_SECONDS = 1.0
_NUM_LOOKS = 3
"""How often in a row an address must be missing: some programs remove one only to add it again."""


def is_own_address(host: str) -> bool:
    """Return whether this machine has an IP address, on any interface."""
    try:
        with socket.socket(family_of(host), socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True


class OwnAddress:
    """Moves a membership when its address is gone. For use in the agent's event loop.

    ``members`` returns addresses to connect to. It and ``find_host`` are only called while the
    address is gone, ``moved(before)`` after each move from the address ``before``.
    """

    def __init__(
        self,
        membership: Membership,
        members: Callable[[], Sequence[Address]],
        find_host: FindHost,
        moved: Callable[[Address], Awaitable[None]],
        *,
        is_here: Callable[[str], bool] = is_own_address,
    ) -> None:
        self._membership = membership
        self._members = members
        self._find_host = find_host
        self._moved = moved
        self._is_here = is_here
        self._logged = ""

    async def run(self) -> None:
        """Look once a second, until cancelled."""
        num_missing = 0
        while not self._membership.address.is_loopback:
            await asyncio.sleep(_LOOK_SECONDS)
            num_missing = 0 if self._is_here(self._membership.address.host) else num_missing + 1
            if num_missing >= _NUM_LOOKS:
                await self._move()

    async def _move(self) -> None:
        before = self._membership.address
        host = self._find_host()
        if host is None:
            self._log_once(
                f"this machine no longer has the address {before.host}, nor another on the "
                "network; this node waits for one"
            )
            return
        listen = Address(host=host, port=before.port)
        try:
            await self._membership.move(listen, self._members())
        except JoinError as error:
            self._log_once(f"this machine no longer has the address {before.host}: {error.message}")
            return
        self._logged = ""
        _log.warning(
            "this machine no longer has the address %s: other nodes reach this one at %s now",
            before.host,
            listen,
        )
        await self._moved(before)

    def _log_once(self, message: str) -> None:
        if message != self._logged:
            self._logged = message
            _log.warning("%s", message)
