"""The ledger of an inviting node: its invitations, and the machines that have joined by them.

A ledger is a value; ``LedgerFile`` stores the latest one in the node's state directory, so that
invitations keep their validity and use counts when the agent restarts. Tokens are stored only as
digests. Time is wall-clock time, as nothing else survives a restart; an invitation that was made in
the future is closed, because the clock was set back by an unknown amount.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path

import msgspec

from potluck.cluster.invitations.channel import KnownInvitation
from potluck.cluster.invitations.invitation import generate_token, token_digest
from potluck.errors import ParameterError, PotluckError, UsageError
from potluck.host.private_files import replace_file
from potluck.host.system import read_regular_file
from potluck.types.cluster import NodeId

DEFAULT_SECONDS = 3600.0
LONGEST_SECONDS = 30 * 86_400.0
MOST_USES = 1000
_MOST_OPEN = 64
_KEPT_SECONDS = 7 * 86_400.0
"""How long closed invitations are listed, and newcomers told why theirs is not open."""

_MOST_MEMBERS = 10_000
_MAX_FILE_BYTES = 1 << 23
_CLOCK_SECONDS = 300.0
"""How far a clock may be set back, as time servers do, before invitations are closed."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


class IssuedMembership(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that has joined: the digest of its key, and where it came from and when."""

    node_id: str
    invitation_id: str
    key_sha256: bytes
    name: str
    host: str
    time: float


class InvitationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An invitation; times are seconds since 1970."""

    invitation_id: str
    token_sha256: bytes
    created: float
    expires: float
    num_uses: int
    is_withdrawn: bool = False


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All invitations and memberships.

    ``server_pem`` and ``server_key_pem`` are the server's certificate and key, which stay the same
    while any invitation is open.
    """

    server_pem: str = ""
    server_key_pem: str = ""
    invitations: tuple[InvitationRecord, ...] = ()
    members: tuple[IssuedMembership, ...] = ()

    def num_used(self, record: InvitationRecord) -> int:
        """Return how many machines have joined by an invitation."""
        return sum(each.invitation_id == record.invitation_id for each in self.members)

    def closed(self, record: InvitationRecord, now: float) -> str:
        """Return why an invitation is not open at ``now``; empty if it is."""
        if record.is_withdrawn:
            return "it was withdrawn"
        if now >= record.expires:
            return "it has expired"
        if now < record.created - _CLOCK_SECONDS:
            return "the clock of the inviting node was set back"
        if self.num_used(record) >= record.num_uses:
            return "it has been used up"
        return ""

    def open_ones(self, now: float) -> tuple[InvitationRecord, ...]:
        """Return the invitations that can be used at ``now``."""
        return tuple(each for each in self.invitations if not self.closed(each, now))

    def known(self, now: float) -> tuple[KnownInvitation, ...]:
        """Return what the server needs to know."""
        return tuple(
            KnownInvitation(
                invitation_id=each.invitation_id,
                token_sha256=each.token_sha256,
                expires=each.expires,
                closed=self.closed(each, now),
                is_used_up=not each.is_withdrawn
                and now < each.expires
                and self.num_used(each) >= each.num_uses,
            )
            for each in self.invitations
        )

    def invite(self, now: float, *, num_uses: int, seconds: float) -> tuple[Ledger, str, str]:
        """Return the ledger with a new invitation, its id, and its token, which is not stored.

        Raise ``ParameterError`` for numbers out of range, and ``UsageError`` if too many are open.
        """
        if not 1 <= num_uses <= MOST_USES:
            raise ParameterError("uses", f"an invitation must have 1 to {MOST_USES} uses")
        if not 1.0 <= seconds <= LONGEST_SECONDS:
            raise ParameterError("expires", "an invitation must expire within 1 second to 30 days")
        if len(self.open_ones(now)) >= _MOST_OPEN:
            raise UsageError(
                f"{_MOST_OPEN} invitations are already open",
                hint="close one with potluck invite --withdraw ID",
            )
        token = generate_token()
        record = InvitationRecord(
            invitation_id=secrets.token_hex(4),
            token_sha256=token_digest(token),
            created=now,
            expires=now + seconds,
            num_uses=num_uses,
        )
        kept = tuple(each for each in self.invitations if now < each.expires + _KEPT_SECONDS)
        after = msgspec.structs.replace(self, invitations=(*kept, record))
        return after, record.invitation_id, token

    def withdraw(self, invitation_id: str) -> Ledger:
        """Return the ledger without an invitation. Raise ``UsageError`` if there is none."""
        if all(each.invitation_id != invitation_id for each in self.invitations):
            raise UsageError(
                f"there is no invitation {invitation_id[:40]!r} on this node",
                hint="list the invitations of this node with potluck invite --list",
            )
        return msgspec.structs.replace(
            self,
            invitations=tuple(
                msgspec.structs.replace(each, is_withdrawn=True)
                if each.invitation_id == invitation_id
                else each
                for each in self.invitations
            ),
        )

    def admit(
        self, invitation_id: str, key_sha256: bytes, now: float, *, name: str, host: str
    ) -> tuple[Ledger, NodeId]:
        """Return the ledger after a machine has used an invitation, and its new node id.

        A machine that asks again with the same key, because the answer was lost, gets the same id
        without another use. Raise ``PotluckError`` if the invitation is not open.
        """
        record = next((r for r in self.invitations if r.invitation_id == invitation_id), None)
        if record is None:
            raise PotluckError("there is no such invitation")
        closed = self.closed(record, now)
        for each in self.members:
            if each.invitation_id == invitation_id and each.key_sha256 == key_sha256:
                if record.is_withdrawn or now >= record.expires:
                    break
                return self, NodeId(each.node_id)
        if closed:
            raise PotluckError(
                f"the invitation is not open: {closed}", hint="ask for a new one: potluck invite"
            )
        if len(self.members) >= _MOST_MEMBERS:
            raise PotluckError("this node has issued too many memberships")
        member = IssuedMembership(
            node_id=secrets.token_hex(8),
            invitation_id=invitation_id,
            key_sha256=key_sha256,
            name=name,
            host=host,
            time=now,
        )
        after = msgspec.structs.replace(self, members=(*self.members, member))
        return after, NodeId(member.node_id)


class LedgerFile:
    """The ledger at ``path``, in a folder that only this user can access."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Ledger:
        """Return the latest ledger, which is empty at first.

        Raise ``OSError``, and ``PotluckError`` for a malformed file.
        """
        try:
            data = read_regular_file(self._path, _MAX_FILE_BYTES)
        except FileNotFoundError:
            return Ledger()
        try:
            return msgspec.json.decode(data, type=Ledger)
        except ValueError as error:
            raise PotluckError(
                f"{self._path} does not hold this node's invitations",
                hint="remove it; this invalidates open invitations",
            ) from error

    def write(self, ledger: Ledger) -> None:
        """Write a ledger durably, also with respect to power failures. Raise ``OSError``."""
        replace_file(self._path, msgspec.json.encode(ledger) + b"\n")


def parse_duration(text: str) -> float:
    """Return the seconds of ``90s``, ``30m``, ``1h`` or ``2d``. Raise ``ParameterError``."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ParameterError(
            "expires", f"--expires {text} is not a duration", hint="for example 30m or 1h"
        )
    return float(match[1]) * _UNIT_SECONDS[match[2]]
