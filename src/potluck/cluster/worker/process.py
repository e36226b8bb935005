"""The life of a worker: load, connect, serve, end.

It ends when the agent ends (whatever way) or kills it, and when an edge ends: then the deployment's
plan no longer holds and a stage without neighbours is of no use.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec
import psutil

from potluck.cluster.edges.connect import connect_edge
from potluck.cluster.edges.frames import Scope
from potluck.cluster.edges.hello import Hello
from potluck.cluster.edges.listener import EdgeListener
from potluck.cluster.steps import edge_limits
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.control import ControlChannel
from potluck.cluster.worker.loading import load_for
from potluck.cluster.worker.messages import (
    Connect,
    Failed,
    Load,
    Loaded,
    MappedFile,
    Progress,
    Ready,
    Report,
    Stats,
)
from potluck.cluster.worker.stage import Stage, StageTotals
from potluck.cluster.worker.watch import CallWatch
from potluck.cluster.worker.watched_engine import open_watched
from potluck.engines.opening import open_engine
from potluck.errors import DefectError, EdgeClosedError, PotluckError, UnitFaultError
from potluck.loading.load import LoadedStage
from potluck.quantities import format_seconds
from potluck.types.unit import Fault

_log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_CONNECT_SECONDS = 30.0
"""All stages are loaded when they are told to connect, so this is only the network's time."""

_FETCHING_TOLD_SECONDS = 0.25


def run_worker(descriptor: int, agent_pid: int) -> int:
    """Serve one stage over the control channel ``descriptor``; returns the exit code."""
    _die_with_agent(agent_pid)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    channel = ControlChannel(socket.socket(fileno=descriptor))
    try:
        return _serve(channel)
    except PotluckError as error:
        channel.send(_failed(error))
        return 1
    except MemoryError:
        channel.send(Failed(message="the worker ran out of memory", hint="use a smaller --context"))
        return 1
    except Exception as error:  # noqa: BLE001 - the boundary of the process
        _log.exception("the worker failed")
        channel.send(_failed(DefectError(f"{type(error).__name__}: {error}")))
        return 1


def _failed(error: PotluckError) -> Failed:
    return Failed(
        message=error.message,
        hint=error.hint,
        fault=error.fault if isinstance(error, UnitFaultError) else "",
        is_defect=isinstance(error, DefectError),
    )


def _serve(channel: ControlChannel) -> int:
    """From loading to the end; returns the exit code, and raises what is not told yet."""
    load = channel.receive()
    if not isinstance(load, Load):
        return 0
    watch = CallWatch(load.step_seconds, partial(_end_hung, channel))
    credentials = Credentials(
        node_id=load.identity.node_id,
        certificate_pem=load.identity.certificate_pem,
        private_key_pem=load.identity.private_key_pem,
        authority_pem=load.identity.authority_pem,
    )
    make_engine = open_engine if load.step_seconds is None else partial(open_watched, watch)
    loaded = load_for(load, *_progress_told(channel), make_engine)
    listener = EdgeListener(load.listen_host, credentials)
    try:
        host, port = listener.address
        channel.send(
            Loaded(
                host=host,
                port=port,
                memory=loaded.memory,
                read_bytes=loaded.read_bytes,
                seconds=loaded.seconds,
                mapped_file=_mapped_file(loaded.stage),
            )
        )
        connect = channel.receive()
        if not isinstance(connect, Connect):
            return 0
        stage = _connect(load, connect, loaded.stage, listener, credentials)
    finally:
        listener.close()
    channel.send(Ready())
    return _run(channel, stage, watch)


def _end_hung(channel: ControlChannel, what: str, limit_seconds: float) -> None:
    """End the process while one of its threads is in a call that does not return."""
    message = f"{what} took longer than {format_seconds(limit_seconds)}"
    try:
        channel.send(Failed(message=message, hint="", fault=Fault.HUNG.value))
    finally:
        os._exit(1)


def _mapped_file(loaded: LoadedStage) -> MappedFile | None:
    if loaded.packed is None:
        return None
    return MappedFile(path=str(loaded.packed.path), num_bytes=loaded.packed.layout.num_bytes)


def _progress_told(
    channel: ControlChannel,
) -> tuple[Callable[[int, int], None], Callable[[int, int], None], Callable[[], None]]:
    """Tell of loading, of fetching (some times a second), and of warming up."""
    last = 0.0
    latest = Progress(done_bytes=0, total_bytes=0)

    def tell_loading(done_bytes: int, total_bytes: int) -> None:
        nonlocal latest
        latest = Progress(done_bytes=done_bytes, total_bytes=total_bytes)
        channel.send(latest)

    def tell_fetching(done_bytes: int, total_bytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last > _FETCHING_TOLD_SECONDS:
            last = now
            channel.send(Progress(done_bytes=done_bytes, total_bytes=total_bytes, is_fetching=True))

    def tell_warming_up() -> None:
        channel.send(msgspec.structs.replace(latest, is_warming_up=True))

    return tell_loading, tell_fetching, tell_warming_up


def _connect(
    load: Load,
    connect: Connect,
    loaded: LoadedStage,
    listener: EdgeListener,
    credentials: Credentials,
) -> Stage:
    spec = load.spec
    scope = Scope(deployment=spec.deployment, epoch=spec.epoch)
    limits = edge_limits(
        hidden_size=loaded.program.hidden_size,
        context_tokens=spec.context_tokens,
        max_step_tokens=spec.max_step_tokens,
        max_step_sequences=spec.max_step_sequences,
        num_blocks=spec.num_blocks,
    )
    outgoing = connect_edge(
        (connect.following.host, connect.following.port),
        credentials,
        Hello(scope=scope, index=spec.index + 1),
        peer=connect.following.node_id,
        limits=limits,
        timeout_seconds=_CONNECT_SECONDS,
    )
    incoming = listener.accept(
        Hello(scope=scope, index=spec.index),
        peer=connect.preceding.node_id,
        limits=limits,
        timeout_seconds=_CONNECT_SECONDS,
    )
    program = loaded.program
    return Stage(loaded.engine, program.shard, program.hidden_size, incoming, outgoing)


def _run(channel: ControlChannel, stage: Stage, watch: CallWatch) -> int:
    """Compute on a thread, answer the agent on this one; returns the exit code."""
    failures: list[PotluckError] = []

    def compute() -> None:
        try:
            stage.run()
        except EdgeClosedError:
            pass
        except PotluckError as error:
            failures.append(error)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread
            _log.exception("the stage failed")
            failures.append(DefectError(f"the stage failed: {type(error).__name__}: {error}"))
        finally:
            try:
                # Before the edges close: who sees that plans anew, and the unit is out by then.
                for failure in failures:
                    channel.send(_failed(failure))
            finally:
                channel.stop_receiving()
                stage.close()

    thread = threading.Thread(target=compute, name="compute", daemon=True)
    thread.start()
    process = psutil.Process()
    while isinstance(channel.receive(), Report):
        channel.send(_stats(stage.totals, process.memory_info().rss, watch.busy_seconds))
    stage.close()
    thread.join()
    return 1 if failures else 0


def _stats(totals: StageTotals, resident_bytes: int, busy_seconds: float) -> Stats:
    return Stats(
        num_steps=totals.num_steps,
        num_tokens=totals.num_tokens,
        compute_seconds=totals.compute_seconds,
        send_seconds=totals.send_seconds,
        num_sent_bytes=totals.num_sent_bytes,
        resident_bytes=resident_bytes,
        busy_seconds=busy_seconds or totals.busy_seconds,
        sending_seconds=totals.sending_seconds,
        slowdown=totals.pace.slowdown(time.perf_counter()),
    )


def _die_with_agent(agent_pid: int) -> None:
    """Have the kernel kill this process when the agent ends; exit if it already has."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the agent decides
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent_pid:
        os._exit(1)
