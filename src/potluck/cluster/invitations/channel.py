"""Messages between the agent and the invitation server: one JSON document per line.

From the agent: ``Settings`` first, then ``CurrentInvitations`` whenever invitations are made, used
up or withdrawn, and ``Reply``. From the server: ``Question``, and ``LogLine``. Both ends are
processes of this user; the server limits what a stranger can put into a question.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

MAX_LINE_BYTES = 1 << 20
"""A question has a body of at most 64 KiB, in base64."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the server while it runs. They are not passed as an argument, which other
    users can read.

    ``addresses`` are those given to newcomers, as in an invitation. ``wheel_folders`` are searched
    for wheels before any index.
    """

    certificate_pem: str
    private_key_pem: str
    addresses: tuple[str, ...]
    wheel_folders: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return a representation without the key."""
        return f"Settings(addresses={self.addresses!r})"


class KnownInvitation(msgspec.Struct, frozen=True, kw_only=True):
    """An invitation, by the digest of its token.

    ``closed`` says why it is not open; empty if it is. ``is_used_up``: a machine that used it may
    still request the same certificate again.
    """

    invitation_id: str
    token_sha256: bytes
    expires: float
    closed: str = ""
    is_used_up: bool = False


class CurrentInvitations(msgspec.Struct, frozen=True, kw_only=True, tag="known"):
    """All current invitations, replacing those sent before."""

    invitations: tuple[KnownInvitation, ...]


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag="reply"):
    """The answer to a question."""

    number: int
    status: int
    content_type: str
    body: bytes


class Question(msgspec.Struct, frozen=True, kw_only=True, tag="question"):
    """A request that the agent has to answer."""

    number: int
    invitation_id: str
    newcomer: str
    name: str
    body: bytes


class LogLine(msgspec.Struct, frozen=True, kw_only=True, tag="log"):
    """A line for the agent's log."""

    text: str


decode_from_agent: Callable[[bytes], CurrentInvitations | Reply] = msgspec.json.Decoder(
    CurrentInvitations | Reply
).decode
decode_from_server: Callable[[bytes], Question | LogLine] = msgspec.json.Decoder(
    Question | LogLine
).decode


def encoded(message: msgspec.Struct) -> bytes:
    """Return a message in the form in which it is sent."""
    return msgspec.json.encode(message) + b"\n"
