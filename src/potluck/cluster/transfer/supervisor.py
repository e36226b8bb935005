"""The transfer process as seen by its agent. Asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from potluck import errors
from potluck.cluster.background import cancel_all
from potluck.cluster.transfer.channel import LENGTH, encode, process_gone
from potluck.cluster.transfer.messages import (
    AddDigests,
    AgentMessage,
    AskDigests,
    AskHoldings,
    AskIdentity,
    AskState,
    DialFailed,
    DialWanted,
    DigestsAnswer,
    Done,
    EndJob,
    HashProgress,
    HoldingsAnswer,
    IdentityAnswer,
    Listening,
    LogLine,
    ProcessMessage,
    Progress,
    Question,
    Refused,
    RemoveFile,
    ServePeer,
    SetRefused,
    SetServing,
    SetSources,
    StateAnswer,
    TransferSettings,
)
from potluck.errors import ModelFileError, PotluckError, TransferError
from potluck.host.python_child import ConnectedChild, start_connected_child
from potluck.types.cluster import NodeId
from potluck.types.content import (
    ChunkSource,
    FileContent,
    Manifest,
    ReadingOrder,
    Transfer,
)

TRANSFER_MODULE = "potluck.cluster.transfer"
_log = logging.getLogger(__name__)

_START_SECONDS = 30.0
_END_SECONDS = 2.0
"""How long the process may take to end after its agent has closed the socket; then it is killed."""

_RESTART_SECONDS = 0.5

_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEvents:
    """Callbacks in the agent's loop. They must not raise."""

    on_progress: Callable[[str, Transfer], None] = lambda job, transfer: None
    """This node's progress with the bytes that its readers of a job want: about twice a second for
    each job with progress, and once when it is complete."""

    on_dial_wanted: Callable[[NodeId], None] | None = None
    """The process cannot connect to a peer, which should be asked to call ``serve_peer`` for this
    node. If it does not, call ``dial_failed``. None if peers cannot be asked."""


class TransferProcess:
    """Made by :meth:`start`; restarts the process if it ends. For its own loop only.

    When the process ends, its readers get ``TransferError``; the next process receives the jobs.
    Digests that were set are only kept for files in the store.
    """

    def __init__(
        self,
        settings: TransferSettings,
        events: TransferEvents,
        connections: socket.socket | None,
    ) -> None:
        """For :meth:`start` only."""
        self._settings = settings
        self._connections = connections
        self._events = events
        self._child: _Child
        self._listening: asyncio.Task[None]
        self._is_up = False
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[ProcessMessage]] = {}
        self._hashing: dict[int, Callable[[int, int], None]] = {}
        self._jobs: dict[str, SetSources] = {}
        self._serving: SetServing | None = None
        self._refused: SetRefused | None = None
        self.address: tuple[str, int]
        """The address for peers; without a route, it changes when the process is restarted."""

    @classmethod
    async def start(
        cls,
        settings: TransferSettings,
        *,
        events: TransferEvents | None = None,
        connections: socket.socket | None = None,
    ) -> Self:
        """Start the process. Raise ``OSError`` or ``TransferError`` if that fails.

        ``connections`` is the result of ``Membership.add_route(peer_frames.SERVER_NAME)``:
        connections from peers to the node's single port. This object owns it if this returns.
        Without it the process listens on a port of its own.
        """
        self = cls(settings, events or TransferEvents(), connections)
        await self._spawn()
        self._listening = asyncio.create_task(self._listen())
        return self

    @property
    def pid(self) -> int:
        """Return the id of the current process."""
        return self._child.connected.process.pid

    async def close(self) -> None:
        """End the process. Idempotent; takes about a second at worst."""
        await cancel_all([self._listening])
        await self._end()
        if self._connections is not None:
            self._connections.close()

    def worker_socket(self) -> socket.socket:
        """Return a socket to read files through, which the caller owns.

        Pass it to a worker (``pass_fds``), or to a ``TransferClient`` in a thread of the agent.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._child.doors, [b"c"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise process_gone() from error
        return ours

    async def holdings(self, contents: Sequence[FileContent]) -> HoldingsAnswer:
        """Return what this node has of ``contents``. Raise ``TransferError``."""
        return await self._ask(AskHoldings(next(self._numbers), tuple(contents)), HoldingsAnswer)

    async def identify(
        self, path: Path, on_progress: Callable[[int, int], None] | None = None
    ) -> FileContent:
        """Return the content of a file on this disk, reading all of it at most once.

        ``on_progress`` is called with the bytes read and the total. From then on the file is a
        source, for this node and for others. Raise ``ModelNotFoundError`` and ``ModelFileError``
        like ``KnownFiles.identify``, and ``TransferError``.
        """
        number = next(self._numbers)
        if on_progress is not None:
            self._hashing[number] = on_progress
        try:
            return (await self._ask(AskIdentity(number, str(path)), IdentityAnswer)).content
        finally:
            self._hashing.pop(number, None)

    def set_sources(
        self,
        job: str,
        manifest: Manifest,
        sources: Sequence[ChunkSource],
        peers: Mapping[NodeId, tuple[str, int]],
        *,
        ahead: ReadingOrder = (),
    ) -> None:
        """Set the sources of a job's chunks, replacing earlier ones.

        Several sources of one chunk are tried in the given order; sources of kind ``DISK`` are
        ignored, as the process finds them itself. ``peers`` says where peers listen (their
        ``address``). Transfers in progress continue. A job that failed because no source had its
        bytes is restarted. If the store may keep files, the chunks of ``ahead`` are fetched now,
        since readers will want them.
        """
        message = SetSources(job, manifest, tuple(sources), dict(peers), ahead)
        # A restarted process does not fetch what readers may long have read.
        self._jobs[job] = msgspec.structs.replace(message, ahead=())
        self._say(message)

    def end_job(self, job: str) -> None:
        """End a job that has no readers any more; what was fetched stays in the store."""
        self._jobs.pop(job, None)
        self._say(EndJob(job))

    def set_serving(self, is_serving: bool, *, link_bytes_per_second: float = 0.0) -> None:
        """Set whether a deployment is being served, and so how much of the link transfers get.

        ``link_bytes_per_second`` is the link's measured rate; 0 if unknown.
        """
        self._serving = SetServing(is_serving, link_bytes_per_second)
        self._say(self._serving)

    def set_address(self, host: str, port: int) -> None:
        """Set the address at which this node's acceptor listens from now on; peers receive it."""
        self.address = (host, port)
        self._settings = replace(self._settings, host=host, port=port)  # for a restart

    def set_refused(self, nodes: frozenset[NodeId]) -> None:
        """Set the nodes that are excluded from transfers; their connections are closed."""
        self._refused = SetRefused(nodes)
        self._say(self._refused)

    async def digests(self, sha256: str) -> bytes | None:
        """Return the digests of all chunks, one after the other; None unless they are verified."""
        return (await self._ask(AskDigests(next(self._numbers), sha256), DigestsAnswer)).digests

    async def add_digests(self, content: FileContent, digests: bytes, *, verified: bool) -> None:
        """Set the digests of all chunks; chunks in the store that differ are removed.

        ``verified``: all of a file with this SHA-256 was hashed, with these digests.
        """
        await self._ask(AddDigests(next(self._numbers), content, digests, verified), Done)

    async def hash_chunks(
        self, sha256: str, first: int, end: int, state: bytes
    ) -> tuple[bytes, bytes]:
        """Return the SHA-256 state after the chunks ``[first, end)``, which this node has, and the
        digests of these chunks, one after the other.

        ``state`` is the state before them, as saved by ``kernels.Sha256State``; empty at the
        beginning. Raise ``ModelFileError`` for a chunk that is missing or damaged.
        """
        answer = await self._ask(
            AskState(next(self._numbers), sha256, first, end, state), StateAnswer
        )
        return answer.state, answer.digests

    async def remove(self, sha256: str) -> None:
        """Remove what the store has of a file, as its bytes are wrong."""
        await self._ask(RemoveFile(next(self._numbers), sha256), Done)

    async def serve_peer(self, node: NodeId, address: tuple[str, int]) -> None:
        """Connect to a peer that cannot connect to this node, and send it what it requests.

        Raise ``TransferError`` if that fails.
        """
        await self._ask(ServePeer(next(self._numbers), node, *address), Done)

    def dial_failed(self, node: NodeId, reason: str) -> None:
        """Report that a peer, which ``on_dial_wanted`` named, will not connect."""
        self._say(DialFailed(node, reason))

    def _say(self, message: AgentMessage) -> None:
        self._child.connected.writer.write(encode(message))

    async def _ask(self, message: Question, answer: type[_T]) -> _T:
        if not self._is_up:
            raise process_gone()
        number = message.number
        future: asyncio.Future[ProcessMessage] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            self._say(message)
            answered = await future
        finally:
            self._pending.pop(number, None)
        if isinstance(answered, Refused):
            raise _error(answered)
        assert isinstance(answered, answer)
        return answered

    async def _listen(self) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, msgspec.MsgspecError):
                while True:
                    self._take(await _receive(self._child.connected.reader))
            self._is_up = False
            await self._end()
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(process_gone())
            status = self._child.connected.process.returncode
            _log.error("the transfer process exited with status %s", status)
            while True:
                await asyncio.sleep(_RESTART_SECONDS)
                try:
                    await self._spawn()
                    break
                except (OSError, TransferError) as error:
                    _log.error("the transfer process cannot be started: %s", error)

    def _take(self, message: ProcessMessage) -> None:
        match message:
            case Progress():
                self._events.on_progress(message.job, message.transfer)
            case DialWanted():
                if self._events.on_dial_wanted is None:
                    self.dial_failed(message.node, "there is no agent to ask it")
                else:
                    self._events.on_dial_wanted(message.node)
            case LogLine():
                _log.log(message.level, "%s", message.text)
            case HashProgress():
                on_progress = self._hashing.get(message.number)
                if on_progress is not None:
                    on_progress(message.done_bytes, message.total_bytes)
            case Listening():
                self.address = (message.host, message.port)
            case _:
                future = self._pending.get(message.number)
                if future is not None and not future.done():
                    future.set_result(message)

    async def _spawn(self) -> None:
        doors, doors_theirs = socket.socketpair()
        with doors_theirs, contextlib.ExitStack() as unless_started:
            unless_started.callback(doors.close)
            given = (doors_theirs, self._connections)
            descriptors = [each.fileno() for each in given if each is not None]
            connected = await start_connected_child(
                TRANSFER_MODULE,
                *map(str, descriptors),
                json.dumps(asdict(self._settings)),
                descriptors=descriptors,
                may_fetch=True,
            )
            unless_started.pop_all()
        self._child = _Child(connected, doors)
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not isinstance(message := await _receive(connected.reader), Listening):
                    self._take(message)
        except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            await self._end()
            raise TransferError(
                f"the transfer process failed to start (status {connected.process.returncode})",
                hint="see the agent's log",
            ) from error
        self._take(message)
        self._is_up = True
        for again in (self._serving, self._refused, *self._jobs.values()):
            if again is not None:
                self._say(again)

    async def _end(self) -> None:
        self._child.doors.close()
        await self._child.connected.end(timeout_seconds=_END_SECONDS)


@dataclass(frozen=True, slots=True)
class _Child:
    connected: ConnectedChild
    doors: socket.socket
    """The socket over which sockets of readers are passed."""


_decoder: msgspec.msgpack.Decoder[ProcessMessage] = msgspec.msgpack.Decoder(ProcessMessage)


async def _receive(reader: asyncio.StreamReader) -> ProcessMessage:
    (num_bytes,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return _decoder.decode(await reader.readexactly(num_bytes))


def _error(refused: Refused) -> PotluckError:
    """Return the error that the process raised, as far as its class can be made from a message."""
    kind = getattr(errors, refused.kind, PotluckError)
    if isinstance(kind, type) and issubclass(kind, ModelFileError):
        path, _, problem = refused.message.partition(": ")
        return ModelFileError(path, problem, hint=refused.hint)
    if kind is errors.ModelNotFoundError:
        return errors.ModelNotFoundError(refused.message, hint=refused.hint)
    return TransferError(refused.message, hint=refused.hint)
