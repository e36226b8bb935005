"""The invitations of this node, and the server that runs while any is open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from potluck.cluster.background import cancel_all
from potluck.cluster.invitations.channel import Settings
from potluck.cluster.invitations.identity import Identity
from potluck.cluster.invitations.invitation import Invitation
from potluck.cluster.invitations.issuing import ClusterFacts, Issuing
from potluck.cluster.invitations.ledger import Ledger, LedgerFile
from potluck.cluster.invitations.supervisor import InvitationServer
from potluck.cluster.network.acceptor.routes import JOIN_NAME
from potluck.cluster.network.membership import Address, Membership
from potluck.cluster.network.trust.authority import Authority, issue_server_credentials
from potluck.cluster.network.trust.requests import pem_key_digest
from potluck.errors import PotluckError, UsageError
from potluck.host.uname import host_name
from potluck.version import __version__

_log = logging.getLogger(__name__)

_LINGER_SECONDS = 600.0
"""How long the server runs after the last invitation was closed, so that nodes that try to join are
told why they cannot, and one whose answer was lost gets it again."""

_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInvitation:
    """A new invitation. ``certificate_pem`` is the server's."""

    invitation_id: str
    invitation: Invitation
    expires: float
    num_uses: int
    certificate_pem: str


class Inviting:
    """Manages invitations. For use in the agent's event loop."""

    def __init__(
        self,
        membership: Membership,
        identity: Identity,
        file: LedgerFile,
        *,
        multicast: bool,
    ) -> None:
        self._membership = membership
        self._identity = identity
        self._file = file
        self._multicast = multicast
        self._ledger: Ledger | None = None
        self._server: InvitationServer | None = None
        self._watching: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._wheel_folders: tuple[str, ...] = ()

    @property
    def ledger(self) -> Ledger:
        """Return the stored invitations. Raises ``PotluckError`` if they cannot be read."""
        if self._ledger is None:
            try:
                self._ledger = self._file.read()
            except OSError as error:
                raise _unreadable(error) from error
        return self._ledger

    async def resume(self) -> None:
        """Serve the invitations that were open when the agent last stopped."""
        try:
            if self._identity.authority is not None and self.ledger.open_ones(time.time()):
                async with self._changing:
                    await self._serve(self._identity.authority)
        except PotluckError as error:
            _log.warning("%s", error.message)

    async def invite(
        self, *, num_uses: int, seconds: float, wheel_folders: Sequence[Path] = ()
    ) -> NewInvitation:
        """Open an invitation. Raises ``PotluckError`` if that is not possible."""
        authority = self._authority()
        async with self._changing:
            self._wheel_folders = tuple(
                dict.fromkeys((*self._wheel_folders, *map(str, wheel_folders)))
            )
            ledger, invitation_id, token = self.ledger.invite(
                time.time(), num_uses=num_uses, seconds=seconds
            )
            if self._server is None:
                await self._serve(authority, ledger)
            else:
                self._keep(ledger)
        record = next(r for r in self.ledger.invitations if r.invitation_id == invitation_id)
        return NewInvitation(
            invitation_id=invitation_id,
            invitation=Invitation(
                addresses=self._addresses(),
                token=token,
                key_sha256=pem_key_digest(self.ledger.server_pem.encode("ascii")),
            ),
            expires=record.expires,
            num_uses=record.num_uses,
            certificate_pem=self.ledger.server_pem,
        )

    def withdraw(self, invitation_id: str) -> None:
        """Close an invitation. Raises ``UsageError`` if no invitation has that id."""
        self._keep(self.ledger.withdraw(invitation_id))

    async def moved(self) -> None:
        """Give newcomers the current address of this node from now on.

        An invitation names the earlier one, and works no more unless this node gets it back.
        """
        async with self._changing:
            if self._server is not None:
                await self._stop()
                try:
                    await self._serve(self._authority())
                except PotluckError as error:
                    _log.warning("%s", error.message)

    async def close(self) -> None:
        """Stop serving; invitations stay open for the next start. Idempotent."""
        if self._watching is not None:
            await cancel_all([self._watching])
        async with self._changing:
            await self._stop()

    def _authority(self) -> Authority:
        authority = self._identity.authority
        if authority is None:
            raise UsageError(
                "this node was invited, and only a node that has the cluster's secret can invite "
                "others",
                hint="find one with: potluck nodes",
            )
        return authority

    def _addresses(self) -> tuple[Address, ...]:
        return (self._membership.address,)

    async def _serve(self, authority: Authority, ledger: Ledger | None = None) -> None:
        """Start the server with the key that open invitations name."""
        ledger = self.ledger if ledger is None else ledger
        if not ledger.server_pem:
            certificate, key = issue_server_credentials(authority, [self._membership.address.host])
            ledger = msgspec.structs.replace(
                ledger,
                server_pem=certificate.decode("ascii"),
                server_key_pem=key.decode("ascii"),
            )
        source = self._membership.add_route(JOIN_NAME)
        if source is None:
            raise UsageError("a node without TLS cannot invite others")
        try:
            settings = Settings(
                certificate_pem=ledger.server_pem,
                private_key_pem=ledger.server_key_pem,
                addresses=tuple(map(str, self._addresses())),
                wheel_folders=self._wheel_folders,
            )
            issuing = Issuing(authority, lambda: self.ledger, self._keep, self._facts)
            self._server = await InvitationServer.start(source, settings, issuing.answer)
        except BaseException as error:
            source.close()
            self._membership.remove_route(JOIN_NAME)
            if isinstance(error, OSError):
                raise PotluckError(
                    f"cannot start the invitation server: {error.strerror or error}"
                ) from error
            raise
        if ledger is self.ledger:
            self._server.know(ledger.known(time.time()))
        else:
            try:
                self._keep(ledger)
            except PotluckError:
                await self._stop()
                raise
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    def _keep(self, ledger: Ledger) -> None:
        """Store a ledger, and then make it the current one."""
        try:
            self._file.write(ledger)
        except OSError as error:
            raise _unwritable(error) from error
        self._ledger = ledger
        if self._server is not None:
            self._server.know(ledger.known(time.time()))

    def _facts(self) -> ClusterFacts:
        return ClusterFacts(
            cluster_id=self._identity.cluster_id,
            version=__version__,
            addresses=tuple(map(str, self._addresses())),
            multicast=self._multicast,
            taken_names=(host_name(), *(each.name for each in self.ledger.members)),
        )

    async def _watch(self) -> None:
        """Stop the server a while after the last invitation was closed."""
        idle_since = None
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._server is None or self.ledger.open_ones(time.time()):
                idle_since = None
                continue
            idle_since = idle_since or time.monotonic()
            if time.monotonic() - idle_since >= _LINGER_SECONDS:
                async with self._changing:
                    if not self.ledger.open_ones(time.time()):
                        await self._stop()
                        with contextlib.suppress(PotluckError):
                            self._keep(
                                msgspec.structs.replace(
                                    self.ledger, server_pem="", server_key_pem=""
                                )
                            )

    async def _stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._membership.remove_route(JOIN_NAME)
            await server.close()


def _unreadable(error: OSError) -> PotluckError:
    return PotluckError(
        f"cannot read this node's invitations: {error.strerror or error}",
        hint="use a state directory on a readable disk (--state)",
    )


def _unwritable(error: OSError) -> PotluckError:
    return PotluckError(
        f"cannot store this node's invitations: {error.strerror or error}",
        hint="free space on the disk of the state directory",
    )
