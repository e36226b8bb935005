"""The life of a worker: load, connect, serve, end.

It ends when the agent ends (in any way) or kills it, when its unit fails, or when something
unexpected happens. When an edge closes, it keeps its weights and waits for the next epoch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from dataclasses import asdict
from functools import partial

import msgspec

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.trust.connection_sources import HandedConnections
from potluck.cluster.transfer.client import TransferClient
from potluck.cluster.wire.worker_messages import (
    LENGTH,
    Connect,
    Disconnect,
    EdgeRoute,
    Failed,
    FromWorker,
    Listen,
    Listening,
    Load,
    Loaded,
    MappedFile,
    Progress,
    Report,
    Stats,
    ToWorker,
    checked_length,
    decode_to_worker,
    encode,
)
from potluck.cluster.worker.loading import LoadedShare, load_for
from potluck.cluster.worker.serving import ServedStage, Serving, ServingCallbacks
from potluck.cluster.worker.watch import CallWatch
from potluck.cluster.worker.watched_engine import open_watched
from potluck.engines.backends import open_engine
from potluck.engines.loading.load import LoadedStage
from potluck.errors import DefectError, PotluckError, UnitFaultError
from potluck.grammars.step_masks import StepMasks
from potluck.host.child_start import end_with
from potluck.host.memory import resident_bytes
from potluck.scheduling.frame_limits import edge_limits
from potluck.types.quantities import format_seconds
from potluck.types.unit import Fault

_log = logging.getLogger(__name__)

_FETCHING_REPORT_SECONDS = 0.25


class ControlChannel:
    """The worker's end of the socket pair: blocking, with one reader and any number of writers."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._writing = threading.Lock()

    def send(self, message: FromWorker) -> None:
        """Send a message. It is not an error if the agent has exited: its worker ends anyway."""
        with self._writing:
            try:
                self._connection.sendall(encode(message))
            except OSError:
                return

    def receive(self) -> ToWorker | None:
        """Return the next message; None once the agent has exited, and after ``stop_receiving``."""
        first = self._connection.recv(1)
        if not first:
            return None
        prefix = first + self._read(LENGTH.size - 1)
        message: ToWorker = decode_to_worker(self._read(checked_length(prefix)))
        return message

    def stop_receiving(self) -> None:
        """End a ``receive`` that waits in another thread, and make all later ones return None."""
        with contextlib.suppress(OSError):  # the agent has exited
            self._connection.shutdown(socket.SHUT_RD)

    def _read(self, num_bytes: int) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            part = self._connection.recv(num_bytes - len(data))
            if not part:
                raise EOFError("the agent closed the channel in the middle of a message")
            data += part
        return bytes(data)


def run_worker(descriptor: int, agent_pid: int, transfer_descriptor: int | None = None) -> int:
    """Serve one stage over the control channel ``descriptor``; return the exit code.

    ``transfer_descriptor`` is a socket to the node's transfer process, for a stage whose files are
    known by content.
    """
    _die_with_agent(agent_pid)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    channel = ControlChannel(socket.socket(fileno=descriptor))
    try:
        return _serve(channel, transfer_descriptor)
    except PotluckError as error:
        channel.send(_failed(error))
        return 1
    except MemoryError:
        channel.send(Failed(message="the worker ran out of memory", hint="use a smaller --context"))
        return 1
    except Exception as error:  # noqa: BLE001 - the boundary of the process
        _log.exception("internal error in the worker")
        channel.send(_failed(DefectError(f"{type(error).__name__}: {error}")))
        return 1


def _failed(error: PotluckError) -> Failed:
    return Failed(
        message=error.message,
        hint=error.hint,
        fault=error.fault if isinstance(error, UnitFaultError) else "",
        is_defect=isinstance(error, DefectError),
    )


def _serve(channel: ControlChannel, transfer_descriptor: int | None) -> int:
    """Run from loading to the end; return the exit code, and raise errors not yet reported."""
    load = channel.receive()
    if not isinstance(load, Load):
        return 0
    watch = CallWatch(load.step_seconds, partial(_end_hung, channel))
    make_engine = open_engine if load.step_seconds is None else partial(open_watched, watch)
    progress_reporter = ProgressReporter(channel)
    opener = None
    if transfer_descriptor is not None:
        connection = socket.socket(fileno=transfer_descriptor)
        opener = TransferClient(connection, on_wait=progress_reporter.waiting)
    loaded = load_for(load, progress_reporter, make_engine, opener)
    failures: list[PotluckError] = []

    def tell_failed(error: PotluckError) -> None:
        failures.append(error)
        channel.send(_failed(error))

    callbacks = ServingCallbacks(
        edges=channel.send,
        failed=tell_failed,
        ended=channel.stop_receiving,
        stuck=partial(_end_stuck, channel),
    )
    kept = loaded.kept_blocks
    serving = Serving(_served(load, loaded), callbacks)
    try:
        channel.send(
            Loaded(
                **asdict(serving.listen()),
                memory=loaded.memory,
                read_bytes=loaded.read_bytes,
                seconds=loaded.seconds,
                mapped_file=_mapped_file(loaded.stage),
                model_shape=loaded.model_shape,
                kept_blocks="" if kept is None else kept.name,
            )
        )
        _answer(channel, serving, watch)
    finally:
        if not serving.close():
            os._exit(1)  # the interpreter would wait for what is being computed
    return 1 if failures else 0


def _served(load: Load, share: LoadedShare) -> ServedStage:
    spec = load.spec
    return ServedStage(
        deployment=spec.deployment,
        loaded=share.stage,
        masks=StepMasks(share.open_vocabulary),
        limits=edge_limits(
            hidden_size=share.stage.program.hidden_size,
            context_tokens=spec.context_tokens,
            max_step_tokens=spec.max_step_tokens,
            max_step_sequences=spec.max_step_sequences,
            num_blocks=spec.num_blocks,
            num_states=spec.num_states,
        ),
        credentials=load.identity,
        listen_host=load.listen_host,
        route=None if load.route is None else _route(load.route),
        keeper=None if share.kept_blocks is None else share.kept_blocks.keeper,
    )


def _end_stuck(channel: ControlChannel, error: PotluckError) -> None:
    """Report ``error``, and exit while a thread is in a call that does not end."""
    try:
        channel.send(_failed(error))
    finally:
        os._exit(1)


def _end_hung(channel: ControlChannel, what: str, limit_seconds: float) -> None:
    """Exit while one of the threads is in a call that does not return."""
    message = f"{what} took longer than {format_seconds(limit_seconds)}"
    _end_stuck(channel, UnitFaultError(Fault.HUNG.value, message))


def _route(route: EdgeRoute) -> tuple[HandedConnections, EdgeAddress]:
    return HandedConnections(socket.socket(fileno=route.descriptor)), route.address


def _mapped_file(loaded: LoadedStage) -> MappedFile | None:
    if loaded.packed is None:
        return None
    return MappedFile(path=str(loaded.packed.path), num_bytes=loaded.packed.layout.num_bytes)


class ProgressReporter:
    """Reports fetching (a few times per second), loading and warming up to the agent."""

    def __init__(self, channel: ControlChannel) -> None:
        self._channel = channel
        self._fetching_reported_at = 0.0
        self._latest = Progress(done_bytes=0, total_bytes=0)

    def loading(self, done_bytes: int, total_bytes: int) -> None:
        """Report that weights are being loaded."""
        self._latest = Progress(done_bytes=done_bytes, total_bytes=total_bytes)
        self._channel.send(self._latest)

    def fetching(self, done_bytes: int, total_bytes: int) -> None:
        """Report that files are being fetched from the hub."""
        now = time.monotonic()
        if now - self._fetching_reported_at > _FETCHING_REPORT_SECONDS:
            self._fetching_reported_at = now
            self._channel.send(
                Progress(done_bytes=done_bytes, total_bytes=total_bytes, is_fetching=True)
            )

    def waiting(self, num_bytes: int) -> None:
        """Report that the next bytes have not arrived yet; the agent knows how many have."""
        self._channel.send(self._latest)

    def warming_up(self) -> None:
        """Report that all weights are loaded."""
        self._channel.send(msgspec.structs.replace(self._latest, is_warming_up=True))


def _answer(channel: ControlChannel, serving: Serving, watch: CallWatch) -> None:
    """Answer the agent's requests until it exits or the stage fails."""
    while (message := channel.receive()) is not None:
        match message:
            case Listen():
                channel.send(Listening(epoch=message.epoch, **asdict(serving.listen())))
            case Connect():
                serving.connect(message)
            case Disconnect():
                serving.disconnect(message.epoch)
            case Report():
                channel.send(_stats(serving, watch.busy_seconds))
            case _:
                raise DefectError(f"the agent sent {type(message).__name__} to a loaded stage")


def _stats(serving: Serving, busy_seconds: float) -> Stats:
    totals, now = serving.totals, time.perf_counter()
    experts, shard = serving.expert_use, serving.shard
    return Stats(
        num_steps=totals.num_steps,
        num_tokens=totals.num_tokens,
        compute_seconds=totals.compute_seconds,
        cpu_seconds=totals.cpu_seconds,
        send_seconds=totals.send_seconds,
        num_sent_bytes=totals.num_sent_bytes,
        resident_bytes=resident_bytes(),
        busy_seconds=busy_seconds or totals.busy_seconds,
        num_dropped_frames=totals.num_dropped_frames,
        sending_seconds=totals.sending_seconds,
        slowdown=totals.times.slowdown(now),
        # Figures of parts do not apply to layers.
        step_times=() if shard.part is not None else totals.times.of_stage(shard, now),
        way=serving.way(),
        num_experts_used=experts.num_used,
        num_experts_in_memory=experts.num_in_memory,
        num_exchanges=totals.exchange.num_exchanges,
        exchange_seconds=totals.exchange.seconds,
        waiting_seconds=totals.exchange.waiting_seconds,
    )


def _die_with_agent(agent_pid: int) -> None:
    """Let the kernel kill this process when the agent ends; exit if it already has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent decides
    end_with(agent_pid)
