"""The transfer process: blocking code in threads.

There is one for the agent, one for each reader, one for each peer that fetches or is fetched from,
a few for the hub, and one that accepts connections. The process ends when the agent closes its end
of the socket between them, or dies.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from potluck.cluster.network.trust.connection_sources import (
    ConnectionSource,
    HandedConnections,
    SourceEndedError,
    open_listener,
)
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.network.trust.handshakes import (
    MOST_HANDSHAKES,
    Handshake,
    Handshakes,
    describe,
    refusal_log,
)
from potluck.cluster.network.trust.removed import RemovedNodes
from potluck.cluster.transfer.board import Board
from potluck.cluster.transfer.channel import Channel, ChannelClosedError
from potluck.cluster.transfer.demand import Reader
from potluck.cluster.transfer.hub_lane import HubLane
from potluck.cluster.transfer.messages import (
    AddDigests,
    AgentMessage,
    Arrived,
    AskDigests,
    AskHoldings,
    AskIdentity,
    AskState,
    Await,
    Check,
    ClientMessage,
    CloseFile,
    Consumed,
    DialFailed,
    DialWanted,
    DigestsAnswer,
    Done,
    EndJob,
    Failed,
    HashProgress,
    HoldingsAnswer,
    IdentityAnswer,
    Listening,
    LogLine,
    OpenFile,
    ProcessMessage,
    Question,
    Refused,
    RemoveFile,
    ServePeer,
    SetRefused,
    SetServing,
    SetSources,
    StateAnswer,
    TransferSettings,
    Waiting,
    Want,
)
from potluck.cluster.transfer.peer_frames import HELLO, OFFER, is_offer
from potluck.cluster.transfer.peer_lane import DialBacks, PeerFailedError, PeerLane, connect_to_peer
from potluck.cluster.transfer.peer_session import PeerSession
from potluck.cluster.transfer.share import Share, limit_for, set_bulk_options
from potluck.cluster.transfer.shared_file import Origin, Routes, sha256_of
from potluck.errors import ModelFileError, PotluckError, TransferError
from potluck.host.child_start import ignore_stop_signals
from potluck.store.content_store import ContentStore
from potluck.types.cluster import NodeId

_LOG = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_WAITING_SECONDS = 1.0
_HASH_REPORT_SECONDS = 0.5
_MOST_SESSIONS = 64
"""Peers that fetch from this node concurrently, each with a chunk in memory."""

_STACK_BYTES = 2**19
"""The size of each thread's stack; the default of 8 MiB matters where memory is not
overcommitted."""

_EXHAUSTED_SECONDS = 0.1


class TransferService:
    """The work of the process, independently of it."""

    def __init__(
        self,
        settings: TransferSettings,
        credentials: Credentials,
        report: Callable[[ProcessMessage], None],
    ) -> None:
        self._credentials = credentials
        self._report = report
        self._removed = RemovedNodes(credentials.removed_path)
        self._refused: frozenset[NodeId] = frozenset()
        self._client_context = credentials.client_context()
        self._incoming, self._outgoing = Share(), Share()
        self._streams: dict[str, threading.Lock] = {}
        self.dial_backs = DialBacks(lambda node: report(DialWanted(node)))
        self._sessions = threading.BoundedSemaphore(_MOST_SESSIONS)
        self.store = ContentStore(
            Path(settings.store_folder),
            settings.limit_bytes,
            hub_folder=None if settings.hub_folder is None else Path(settings.hub_folder),
        )
        self.board = Board(
            self.store, NodeId(settings.node_id), start_lane=self._start_lane, report=report
        )

    def set_serving(self, is_serving: bool, link_bytes_per_second: float) -> None:
        """Leave most of the link to a deployment, and keep the queue of a slow link short."""
        limit = limit_for(link_bytes_per_second, is_serving=is_serving)
        for share in (self._incoming, self._outgoing):
            share.set_limit(limit, link_bytes_per_second=link_bytes_per_second)

    def tick(self) -> None:
        """Run periodic work, forever."""
        while True:
            time.sleep(_TICK_SECONDS)
            self.board.assignments.set_refused(self._refused | self._removed.nodes())
            self.board.tick()

    def listen(self, source: ConnectionSource) -> None:
        """Serve peers that connect, until the source ends."""
        while True:
            with selectors.DefaultSelector() as selector:
                handshakes = Handshakes(
                    source,
                    self._credentials.server_context(),
                    selector,
                    log=refusal_log(),
                    is_complete=_has_begun,
                )
                try:
                    while True:
                        expires = handshakes.expire(time.monotonic())
                        seconds = None if expires is None else expires - time.monotonic()
                        for key, _ in selector.select(seconds):
                            handshake = handshakes.handle(key)
                            if handshake is not None:
                                self._admit(handshake)
                except SourceEndedError:
                    return
                except OSError as error:
                    _LOG.warning("cannot accept connections from peers: %s", describe(error))
                finally:
                    handshakes.close()
            time.sleep(_EXHAUSTED_SECONDS)

    def serve_reader(self, connection: socket.socket) -> None:
        """Serve one reader until it closes its end."""
        channel: Channel[ClientMessage] = Channel(connection, ClientMessage)
        reader = self.board.reading.add_reader()
        try:
            while True:
                message, descriptor = channel.receive()
                if descriptor is not None:
                    os.close(descriptor)
                self._serve_reader_message(channel, reader, message)
        except ChannelClosedError:
            pass
        finally:
            self.board.reading.drop_reader(reader)
            channel.close()

    def _serve_reader_message(
        self,
        channel: Channel[ClientMessage],
        reader: Reader,
        message: ClientMessage,
    ) -> None:
        match message:
            case OpenFile():
                self.board.reading.open_file(reader, message.content, message.label, message.job)
            case Want():
                self.board.reading.want(reader, message.job, message.needs, keeps=message.keeps)
            case Await():
                self._answer_await(channel, reader, message)
            case Consumed():
                self.board.reading.consume(reader, message.content, message.first, message.end)
            case Check():
                failed = self.board.reading.check(message.content)
                channel.send(failed or Arrived(0, 0, 0, False))
            case CloseFile():
                self.board.reading.close_file(reader, message.content)

    def _answer_await(
        self,
        channel: Channel[ClientMessage],
        reader: Reader,
        message: Await,
    ) -> None:
        sent_at = time.monotonic()
        while True:
            found = self.board.reading.find(reader, message.content, message.first, message.end)
            if isinstance(found, Failed):
                channel.send(found)
                return
            if found is not None:
                arrived, descriptor = found
                try:
                    channel.send(arrived, descriptor)
                finally:
                    os.close(descriptor)
                return
            self.board.reading.await_chunk(reader, message.content, message.first, _WAITING_SECONDS)
            if channel.is_ended():
                raise ChannelClosedError
            now = time.monotonic()
            if now - sent_at >= _WAITING_SECONDS:
                sent_at = now
                channel.send(Waiting(self.board.reading.arrived_bytes(reader, message.content)))

    def serve_agent(self, channel: Channel[AgentMessage]) -> None:
        """Carry out the agent's requests until it closes its end."""
        with contextlib.suppress(ChannelClosedError):
            while True:
                message, _ = channel.receive()
                self._serve_agent_message(message)

    def _serve_agent_message(self, message: AgentMessage) -> None:
        match message:
            case SetSources():
                self.board.set_sources(
                    message.job,
                    Routes(message.manifest, message.sources, message.peers),
                    ahead=message.ahead,
                )
            case EndJob():
                self.board.end_job(message.job)
            case SetServing():
                self.set_serving(message.is_serving, message.bytes_per_second)
            case SetRefused():
                self._refused = message.nodes
                self.board.assignments.set_refused(message.nodes)
            case DialFailed():
                self.dial_backs.answer(message.node, message.reason)
            case _:
                start_thread("answer", partial(self._answer, message))

    def _answer(self, message: Question) -> None:
        try:
            self._report(self._answered(message))
        except PotluckError as error:
            self._report(Refused(message.number, type(error).__name__, error.message, error.hint))
        except (OSError, ValueError) as error:
            self._report(Refused(message.number, type(error).__name__, str(error), ""))

    def _answered(self, message: Question) -> ProcessMessage:
        number = message.number
        match message:
            case AskHoldings():
                held, verified = self.board.files.held(message.contents)
                return HoldingsAnswer(number, held, frozenset(verified))
            case AskIdentity():
                return self._identified(number, Path(message.path))
            case AskDigests():
                return DigestsAnswer(number, self.board.files.digests(message.sha256))
            case AddDigests():
                self.board.add_digests(
                    message.content, message.digests, is_verified=message.is_verified
                )
                return Done(number)
            case AskState():
                return self._hashed(message)
            case RemoveFile():
                self.board.files.remove(message.sha256)
                return Done(number)
            case ServePeer():
                self.serve_peer(message.node, (message.host, message.port))
                return Done(number)

    def _identified(self, number: int, path: Path) -> IdentityAnswer:
        reported_at = time.monotonic()

        def on_progress(done_bytes: int, total_bytes: int) -> None:
            nonlocal reported_at
            now = time.monotonic()
            if now - reported_at >= _HASH_REPORT_SECONDS or done_bytes == total_bytes:
                reported_at = now
                self._report(HashProgress(number, done_bytes, total_bytes))

        content, _ = self.store.known.identify(path, on_progress)
        self.board.look_again(content)
        return IdentityAnswer(number, content)

    def _hashed(self, message: AskState) -> StateAnswer:
        # It imports NumPy, which this process does not need otherwise.
        from potluck.kernels import Sha256State

        found = self.store.find(message.sha256)
        if found is None:
            raise ModelFileError(message.sha256, "is not on this disk")
        digests = bytearray()
        with contextlib.closing(found):
            if message.end > found.content.num_chunks:
                raise ModelFileError(
                    message.sha256,
                    f"it has {found.content.num_chunks} chunks, but chunks {message.first} to "
                    f"{message.end} are needed",
                )
            state = Sha256State.restored(message.state) if message.state else Sha256State()
            for chunk in range(message.first, message.end):
                data = found.read_chunk(chunk)
                state.update(data)
                digests += found.digest(chunk) or sha256_of(data)
            return StateAnswer(message.number, state.save(), bytes(digests))

    def _start_lane(self, origin: Origin) -> None:
        if origin.node is None:
            lane = HubLane(self.board.lane_work, self._incoming, self._streams)
            start_thread("hub", lane.run)
        else:
            peer = PeerLane(
                self.board.lane_work,
                origin.node,
                self._client_context,
                self._incoming,
                self.dial_backs,
            )
            start_thread("peer", peer.run)

    def serve_peer(self, peer: NodeId, address: tuple[str, int]) -> None:
        """Connect to a peer that cannot connect to this node, and send it what it requests.

        Raise ``TransferError`` if that fails.
        """
        if self.board.assignments.is_refused(peer):
            raise TransferError(f"node {peer} was removed from the cluster")
        try:
            connection = connect_to_peer(peer, address, self._client_context)
        except (OSError, PeerFailedError) as error:
            reason = describe(error) if isinstance(error, OSError) else str(error)
            raise TransferError(f"cannot connect to node {peer} either: {reason}") from error
        try:
            connection.sendall(OFFER)
        except OSError as error:
            connection.close()
            raise TransferError(f"lost the connection to node {peer}: {describe(error)}") from error
        if not self._begin_session(peer, connection):
            raise TransferError("too many nodes are fetching from here")

    def _admit(self, handshake: Handshake) -> None:
        """Serve a peer that has connected, or fetch from it if it connected to be asked."""
        peer, connection = handshake.peer, handshake.connection
        if peer is None or self.board.assignments.is_refused(peer):
            connection.close()
            return
        if not is_offer(handshake.data):
            self._begin_session(peer, connection, bytes(handshake.data))
            return
        try:
            set_bulk_options(connection)
        except OSError:
            connection.close()
            return
        if not self.dial_backs.answer(peer, connection):
            connection.close()  # nobody waits for it any more

    def _begin_session(
        self, peer: NodeId, connection: ssl.SSLSocket, received: bytes = b""
    ) -> bool:
        """Serve a peer in a thread; return False, with the connection closed, if that fails."""
        if not self._sessions.acquire(blocking=False):
            _LOG.warning(
                "closed a connection from node %s: too many nodes are fetching from here", peer
            )
            connection.close()
            return False
        try:
            set_bulk_options(connection)
            self._outgoing.bound_queue(connection, socket.SO_SNDBUF)
            session = PeerSession(self.board.serving, connection, peer, self._outgoing, received)
        except OSError:
            self._sessions.release()
            connection.close()
            return False

        def run() -> None:
            try:
                session.run()
            finally:
                self._sessions.release()

        start_thread("session", run)
        return True


def _has_begun(handshake: Handshake) -> bool:
    """Read the first bytes after TLS, which say who is going to fetch."""
    missing = len(HELLO) - len(handshake.data)
    data = handshake.connection.recv(missing)
    if not data:
        raise ValueError("it closed the connection before sending a hello")
    handshake.data += data
    return len(handshake.data) == len(HELLO)


def start_thread(name: str, work: Callable[[], None]) -> None:
    """Run a function in a daemon thread; unexpected errors are logged."""

    def run() -> None:
        try:
            work()
        except ChannelClosedError:
            pass
        except Exception:  # noqa: BLE001  the boundary of a thread: others go on
            _LOG.exception("unexpected error in a thread (%s)", name)

    threading.Thread(target=run, name=name, daemon=True).start()


class AgentLog(logging.Handler):
    """Sends log lines to the agent."""

    def __init__(self, channel: Channel[AgentMessage]) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send one line."""
        text = self.format(record) if record.exc_info else record.getMessage()
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(LogLine(record.levelno, " ".join(text.splitlines())))


def run_transfer(
    settings: TransferSettings, control: int, doors: int, connections: int | None
) -> None:
    """Transfer until the agent ends.

    All arguments are inherited descriptors: the channel to the agent, the socket over which it
    passes those of readers, and the socket over which the node's acceptor hands over connections
    from peers. Without the last one the process listens itself.
    """
    ignore_stop_signals()
    threading.stack_size(_STACK_BYTES)
    os.set_inheritable(control, False)
    os.set_inheritable(doors, False)
    channel: Channel[AgentMessage] = Channel(socket.socket(fileno=control), AgentMessage)
    logging.basicConfig(level=logging.WARNING, handlers=[AgentLog(channel)])

    def report(message: ProcessMessage) -> None:
        with contextlib.suppress(ChannelClosedError):
            channel.send(message)

    service = TransferService(settings, settings.read(), report)
    source: ConnectionSource
    if connections is None:
        server = open_listener(settings.host, backlog=MOST_HANDSHAKES)
        host, port = server.getsockname()[:2]
        source = server
    else:
        os.set_inheritable(connections, False)
        source = HandedConnections(socket.socket(fileno=connections))
        host, port = settings.host, settings.port
    report(Listening(host, port))
    door = socket.socket(fileno=doors)
    start_thread("tick", service.tick)
    start_thread("listen", partial(service.listen, source))
    start_thread("doors", partial(_take_readers, service, door))
    service.serve_agent(channel)
    os._exit(0)  # threads may be waiting for anything; everything important is on disk


def _take_readers(service: TransferService, door: socket.socket) -> None:
    while True:
        data, descriptors, _, _ = socket.recv_fds(door, 1, 1)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
            connection = socket.socket(fileno=descriptor)
            connection.setblocking(True)
            start_thread("reader", partial(service.serve_reader, connection))
        if not data:
            return
