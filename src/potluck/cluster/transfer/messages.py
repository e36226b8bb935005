"""Messages between the transfer process and the agent or workers.

Both ends are from one installation, and one is the other's parent or sibling: only the types of
messages are checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from potluck.cluster.network.trust.credentials import CredentialFiles
from potluck.types.cluster import NodeId
from potluck.types.content import (
    ChunkRuns,
    ChunkSource,
    FileContent,
    Manifest,
    ReadingOrder,
    Transfer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSettings(CredentialFiles):
    """The node's address for peers (``host`` is numeric), its credentials, and the store.

    ``port`` is the node's single port, from which connections are handed over; without it, the
    process listens on a free one. With ``limit_bytes`` of 0, nothing is stored.
    """

    host: str
    port: int = 0
    store_folder: str
    limit_bytes: int
    hub_folder: str | None = None
    """huggingface_hub's cache, in which files in large-file storage are found; None for none."""


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# From the agent. Those with a ``number`` are answered by ``Done`` or ``Refused``.


class SetSources(_Message, frozen=True):
    """The sources of a job's chunks, best first for each, and where the peers listen.

    Chunks of ``ahead`` are fetched before a reader wants them.
    """

    job: str
    manifest: Manifest
    sources: tuple[ChunkSource, ...]
    peers: dict[NodeId, tuple[str, int]]
    ahead: ReadingOrder = ()


class EndJob(_Message, frozen=True):
    """No reader of the job is left."""

    job: str


class SetServing(_Message, frozen=True):
    """Whether a deployment is being served, and the link's rate (0 if unknown).

    Both determine how much transfers may use of the link and its queue (see ``share``).
    """

    is_serving: bool
    bytes_per_second: float


class SetRefused(_Message, frozen=True):
    """The nodes that are excluded from all transfers."""

    nodes: frozenset[NodeId]


class AskHoldings(_Message, frozen=True):
    """Answered by ``HoldingsAnswer``."""

    number: int
    contents: tuple[FileContent, ...]


class AskIdentity(_Message, frozen=True):
    """Answered by ``IdentityAnswer``, after any number of ``HashProgress``."""

    number: int
    path: str


class AskDigests(_Message, frozen=True):
    """Answered by ``DigestsAnswer``."""

    number: int
    sha256: str


class AddDigests(_Message, frozen=True):
    """Answered by ``Done``."""

    number: int
    content: FileContent
    digests: bytes
    is_verified: bool


class AskState(_Message, frozen=True):
    """Continue the hash ``state`` with the chunks ``[first, end)``. Answered by ``StateAnswer``."""

    number: int
    sha256: str
    first: int
    end: int
    state: bytes


class RemoveFile(_Message, frozen=True):
    """Remove what the store has of a file whose bytes are wrong. Answered by ``Done``."""

    number: int
    sha256: str


class ServePeer(_Message, frozen=True):
    """Connect to a peer that cannot connect to this node, and send it what it requests. Answered
    by ``Done``.
    """

    number: int
    node: NodeId
    host: str
    port: int


class DialFailed(_Message, frozen=True):
    """A peer that was to connect (``DialWanted``) will not do so. Not answered."""

    node: NodeId
    reason: str


Question: TypeAlias = (
    AskHoldings | AskIdentity | AskDigests | AddDigests | AskState | RemoveFile | ServePeer
)
"""The messages with a ``number``, each answered on a thread of its own."""

AgentMessage: TypeAlias = SetSources | EndJob | SetServing | SetRefused | DialFailed | Question


# To the agent.


class Done(_Message, frozen=True):
    """The request was carried out."""

    number: int


class Refused(_Message, frozen=True):
    """The request failed. ``kind`` is the name of a class of ``potluck.errors``, if known."""

    number: int
    kind: str
    message: str
    hint: str


class HoldingsAnswer(_Message, frozen=True):
    """See ``types.content.Holdings``."""

    number: int
    held: dict[str, ChunkRuns]
    verified: frozenset[str]


class IdentityAnswer(_Message, frozen=True):
    """The content of a file."""

    number: int
    content: FileContent


class HashProgress(_Message, frozen=True):
    """How much of a file has been read."""

    number: int
    done_bytes: int
    total_bytes: int


class DigestsAnswer(_Message, frozen=True):
    """The digests of all chunks, one after the other; None unless they are verified."""

    number: int
    digests: bytes | None


class StateAnswer(_Message, frozen=True):
    """The state after the range, and the digests of its chunks, one after the other."""

    number: int
    state: bytes
    digests: bytes


class Listening(_Message, frozen=True):
    """The address at which the process listens for peers. Sent once, first."""

    host: str
    port: int


class Progress(_Message, frozen=True):
    """How far this node is with the files of a job."""

    job: str
    transfer: Transfer


class DialWanted(_Message, frozen=True):
    """The process cannot connect to a peer, which has to connect to it instead."""

    node: NodeId


class LogLine(_Message, frozen=True):
    """A warning for the agent's log."""

    level: int
    text: str


ProcessMessage: TypeAlias = (
    Done
    | Refused
    | HoldingsAnswer
    | IdentityAnswer
    | HashProgress
    | DigestsAnswer
    | StateAnswer
    | Listening
    | Progress
    | DialWanted
    | LogLine
)


# From a worker, or from the agent as a reader.


class OpenFile(_Message, frozen=True):
    """Start to read a file for a job."""

    content: FileContent
    label: str
    job: str


class Want(_Message, frozen=True):
    """Byte ranges, in the order in which they will be read. ``keeps``: in the store, if
    possible.
    """

    job: str
    needs: tuple[tuple[FileContent, tuple[tuple[int, int], ...]], ...]
    keeps: bool


class Await(_Message, frozen=True):
    """Answered by ``Waiting`` any number of times, then by ``Arrived`` or ``Failed``.

    ``first`` is the chunk that is read now; chunks up to ``end`` are read next.
    """

    content: FileContent
    first: int
    end: int


class Consumed(_Message, frozen=True):
    """The chunks ``[first, end)`` were read and are no longer needed. Not answered."""

    content: FileContent
    first: int
    end: int


class Check(_Message, frozen=True):
    """Answered by ``Arrived`` (of nothing) if the file is unchanged, otherwise by ``Failed``."""

    content: FileContent


class CloseFile(_Message, frozen=True):
    """The file is no longer read. Not answered."""

    content: FileContent


ClientMessage: TypeAlias = OpenFile | Want | Await | Consumed | Check | CloseFile


# To a worker.


class Arrived(_Message, frozen=True):
    """The chunks ``[first, end)`` can be read at their offsets from the descriptor ``place``.

    The descriptor comes with the message. ``is_window``: bytes are gone once they are consumed.
    """

    first: int
    end: int
    place: int
    is_window: bool


class Waiting(_Message, frozen=True):
    """Sent about once a second: ``num_bytes`` have arrived for this reader's job so far."""

    num_bytes: int


class Failed(_Message, frozen=True):
    """The bytes are unavailable. ``is_changed``: a file on this disk was changed."""

    message: str
    hint: str
    is_changed: bool


ClientAnswer: TypeAlias = Arrived | Waiting | Failed
