"""The agent's side of a worker: a child process and a socket to it. For asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from potluck.cluster.agent.load_watch import LoadWatch
from potluck.cluster.agent.worker_notes import WORKER_MODULE
from potluck.cluster.background import LIMITS_HINT
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.listener import RoutedConnections
from potluck.cluster.wire.worker_messages import (
    LENGTH,
    Connect,
    Disconnect,
    Disconnected,
    Failed,
    FromWorker,
    Listen,
    Listening,
    Load,
    Loaded,
    MappedFile,
    Progress,
    Ready,
    Report,
    Stats,
    ToWorker,
    checked_length,
    decode_from_worker,
    encode,
)
from potluck.cluster.worker.watch import COMPILING_TIMES
from potluck.errors import EngineError, PotluckError, StalledError, UnitFaultError
from potluck.host.child import has_ended, signal_name
from potluck.host.python_child import ConnectedChild, start_connected_child
from potluck.types.cluster import Epoch
from potluck.types.content import Transfer
from potluck.types.quantities import format_seconds
from potluck.types.unit import Fault

_log = logging.getLogger(__name__)

_EXIT_SECONDS = 3.0
"""How long a process may take to exit after it has closed its socket or reported a failure; then it
is killed."""

_SILENCE_SECONDS = 10.0
"""The time beyond the limit of a call: a worker with one hung thread reports that itself."""

_KILL_SECONDS = 2.0
"""How long a killed process may take to exit, such as to free gigabytes of memory. One that waits
in a driver cannot be killed until the driver returns: nobody waits longer for it."""

_CRASHES = frozenset(
    {
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
        signal.SIGTRAP,
        signal.SIGSYS,
    }
)
"""Signals that a process gets for its own actions (``signal(7)``)."""

_REPORT_INTERVAL_SECONDS = 5.0
"""How often loading progress is repeated; ``coordinator.starting`` waits much longer."""

_FAULTS = frozenset(fault.value for fault in Fault)

_ANSWER_SECONDS = 10.0
"""The time limit for the thread of a loaded worker that only answers: milliseconds, or seconds on
an overloaded machine. One that takes longer was stopped, or all of its threads are blocked."""

_CUT_SECONDS = 2.0
"""The time for the edges of a worker to close, which takes milliseconds except during a long step.
"""

_CONNECT_SECONDS = 35.0
"""A worker gives up opening edges sooner than this."""

_Answer = TypeVar("_Answer")

OnEnd = Callable[["WorkerProcess", PotluckError], None]
OnDisconnected = Callable[["WorkerProcess", Epoch, str], None]


class WorkerProcess:
    """One worker process, from its start to its exit. Created by :meth:`start`.

    ``on_disconnected`` is called when the edges of an epoch have closed, or were not opened, and
    the worker waits for the next one. ``on_end`` is called once when the process has exited, with
    the reason.
    """

    def __init__(
        self,
        child: ConnectedChild,
        on_end: OnEnd,
        on_disconnected: OnDisconnected,
        route: RoutedConnections | None = None,
    ) -> None:
        self._route = route
        self._process = child.process
        self._reader = child.reader
        self._writer = child.writer
        self._on_end = on_end
        self._on_disconnected = on_disconnected
        self._failure: PotluckError | None = None
        self._was_killed = False
        self._has_defect = False
        self._mapped_file: MappedFile | None = None
        self._loading: asyncio.Queue[Progress | Transfer | Loaded | PotluckError] = asyncio.Queue()
        self._is_loaded = False
        self._connected: Epoch | None = None
        self._addresses: dict[Epoch, asyncio.Future[EdgeAddress]] = {}
        self._connecting: dict[Epoch, asyncio.Future[None]] = {}
        self._disconnected = asyncio.Event()
        self._stats: asyncio.Future[Stats] | None = None
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Return the exit status as in ``subprocess``; None while it runs, or if it cannot be
        killed.
        """
        return self._process.returncode

    @property
    def is_ending(self) -> bool:
        """Whether it is no longer usable: it has failed, was killed, or has exited."""
        return self._failure is not None or self._was_killed or self._listening.done()

    @property
    def was_killed(self) -> bool:
        """Whether :meth:`kill` ended it, before it had exited or failed by itself."""
        return self._was_killed

    @property
    def has_crashed(self) -> bool:
        """Whether its computation ended it, by an unexpected exception or a crash. Known once it
        has exited.
        """
        if self._has_defect:
            return True
        status = self.status
        if status is None or self._was_killed or self._failure is not None:
            return False
        if status == -signal.SIGBUS and self._mapped_file is not None:
            return False  # a mapped file has shrunk
        return status > 0 or -status in _CRASHES

    @classmethod
    async def start(
        cls,
        on_end: OnEnd,
        on_disconnected: OnDisconnected,
        *,
        transfer: socket.socket | None = None,
        route: RoutedConnections | None = None,
    ) -> WorkerProcess:
        """Start an idle worker.

        It inherits ``transfer``, a socket to the node's transfer process, which is closed here, and
        the descriptor of ``route``, which is closed when the worker has exited.
        """
        passed = [] if transfer is None else [transfer.fileno()]
        with transfer or contextlib.nullcontext():
            try:
                child = await start_connected_child(
                    WORKER_MODULE,
                    str(os.getpid()),
                    *map(str, passed),
                    descriptors=[*passed, *(() if route is None else (route.fileno(),))],
                    may_fetch=True,
                )
            except OSError as error:
                raise EngineError(
                    f"cannot start a worker: {error.strerror}", hint=LIMITS_HINT
                ) from error
        # No await here: if it were cancelled, the process would be left behind.
        return cls(child, on_end, on_disconnected, route)

    async def load(
        self, message: Load, *, stall_seconds: float
    ) -> AsyncGenerator[Progress | Loaded, None]:
        """Load a stage; the last event is ``Loaded``. Raises the worker's error.

        A worker that sends nothing for longer than any of its calls may take is killed, as is one
        that shows no sign of progress for ``stall_seconds``, or was stopped (``StalledError``). The
        progress is repeated every few seconds, so that listeners know that the worker is being
        watched. Progress passed to ``transferred`` is reported immediately, and counts as progress.
        """
        self._send(message)
        silence = None
        if message.step_seconds is not None:
            silence = COMPILING_TIMES * message.step_seconds + _SILENCE_SECONDS
        watch = LoadWatch(self.pid, stall_seconds)
        latest = Progress(done_bytes=0, total_bytes=0)
        received_at = reported_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(min(watch.check_seconds, silence or math.inf)):
                    event = await self._loading.get()
            except TimeoutError:
                now = time.monotonic()
                if problem := watch.check():
                    self.fail(StalledError(Fault.HUNG.value, problem))
                elif silence is not None and now - received_at >= silence:
                    self.fail(silent(silence))
                elif now - reported_at >= _REPORT_INTERVAL_SECONDS:
                    reported_at = now
                    yield latest
                continue
            if isinstance(event, PotluckError):
                raise event
            watch.progressed()
            received_at = reported_at = time.monotonic()
            if isinstance(event, Transfer):
                event = latest = msgspec.structs.replace(latest, transfer=event)
            elif isinstance(event, Progress):
                event = latest = msgspec.structs.replace(event, transfer=latest.transfer)
            yield event
            if isinstance(event, Loaded):
                return

    def transferred(self, transfer: Transfer) -> None:
        """Report how much of the worker's data has arrived on this node."""
        if not self._is_loaded:
            self._loading.put_nowait(transfer)

    async def listen(self, epoch: Epoch) -> EdgeAddress:
        """Listen for the incoming edge of ``epoch`` at a new address, and return the address.

        Open edges are not affected. Raises the error that ended the worker: one that does not
        answer is killed.
        """
        address = await self._ask(Listen(epoch=epoch), self._addresses, _ANSWER_SECONDS)
        # The worker knows the address that its node had when it started.
        return address if self._route is None else self._route.address

    async def connect(self, message: Connect) -> None:
        """Close the edges of a lower epoch and open the stage's own.

        Raises the worker's ``PotluckError``.
        """
        if self._listening.done():
            raise self._lost()
        self._connected = message.epoch
        self._disconnected.clear()
        await self._ask(message, self._connecting, _CONNECT_SECONDS)

    async def _ask(
        self,
        message: Listen | Connect,
        pending: dict[Epoch, asyncio.Future[_Answer]],
        seconds: float,
    ) -> _Answer:
        """Send a message about an epoch; return the answer, which settles a future in ``pending``.

        Raises the error that ended the worker: one that does not answer is killed.
        """
        if self._listening.done():
            raise self._lost()
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        pending[message.epoch] = answer
        self._send(message)
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            problem = f"its worker has not answered for {format_seconds(seconds)}"
            error = StalledError(Fault.HUNG.value, problem)
            self.fail(error)
            raise error from None
        finally:
            pending.pop(message.epoch, None)

    def disconnect(self, epoch: Epoch) -> None:
        """Close the edges of ``epoch`` and of lower ones, and refuse them from now on."""
        if not self._listening.done():
            self._send(Disconnect(epoch=epoch))

    async def wait_disconnected(self) -> None:
        """Return when no edges are open or the worker has exited, or after a short while.

        A step in progress is finished.
        """
        if self._connected is None or self._listening.done():
            return
        closed = asyncio.ensure_future(self._disconnected.wait())
        try:
            await asyncio.wait(
                {closed, self._listening},
                timeout=_CUT_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            closed.cancel()

    async def stats(self) -> Stats | None:
        """Return its totals; None until it is loaded. Raises the error that ended it."""
        if not self._is_loaded:
            return None
        if self._listening.done():
            raise self._lost()
        if self._stats is None:
            self._stats = asyncio.get_running_loop().create_future()
            self._send(Report())
        return await asyncio.shield(self._stats)

    def kill(self) -> None:
        """Kill it, whatever it is doing; all its memory is freed. Idempotent."""
        if self._listening.done():
            return
        if self._failure is None and not has_ended(self.pid):
            self._was_killed = True
        self._kill()

    def fail(self, error: PotluckError) -> None:
        """Kill it with ``error`` as the reason, since it cannot report the failure itself."""
        if not self._listening.done():
            self._failure = self._failure or error
            self._kill()

    async def wait(self) -> None:
        """Wait until it has exited and that was handled."""
        await asyncio.wait({self._listening})

    def _kill(self) -> None:
        # Not through ``Popen``, which could reap a process that has just exited, and take its
        # status from the task that waits for it.
        if self._process.returncode is None and not has_ended(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        asyncio.get_running_loop().call_later(_KILL_SECONDS, self._writer.transport.abort)

    def _send(self, message: ToWorker) -> None:
        """Send without waiting: the socket's buffer holds all that is ever pending for a worker."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _listen(self) -> None:
        """Handle messages until the worker closes its socket, then wait for its exit."""
        try:
            while True:
                prefix = await self._reader.readexactly(LENGTH.size)
                document = await self._reader.readexactly(checked_length(prefix))
                self._take(decode_from_worker(document))
        except (asyncio.IncompleteReadError, OSError):
            pass  # it has exited, or is about to
        except ValueError as error:
            self._failure = EngineError(f"the worker sent a malformed message: {error}")
            self._kill()
        except Exception as error:  # noqa: BLE001 - passed to the callers of this worker
            _log.exception("giving up on worker %d", self.pid)
            self._failure = EngineError(
                f"the agent gave up on the worker: {type(error).__name__}: {error}"
            )
            self._kill()
        self._writer.close()
        if not await _exits_within(self._process, _EXIT_SECONDS):
            self._kill()
            if not await _exits_within(self._process, _KILL_SECONDS):
                _log.warning("worker %d cannot be killed: it hangs in the kernel", self.pid)
        self._give_up(self._lost())

    def _give_up(self, error: PotluckError) -> None:
        """Fail all pending calls."""
        if self._route is not None:
            self._route.close()
        self._loading.put_nowait(error)
        self._connected = None
        for answer in (*self._addresses.values(), *self._connecting.values(), self._stats):
            if answer is not None and not answer.done():
                answer.set_exception(error)
                answer.exception()  # not an error if nobody awaits it
        self._on_end(self, error)

    def _take(self, message: FromWorker) -> None:
        match message:
            case Progress():
                self._loading.put_nowait(message)
            case Loaded():
                self._mapped_file = message.mapped_file
                self._is_loaded = True
                self._loading.put_nowait(message)
            case Listening():
                _settle(self._addresses.get(message.epoch), message.address)
            case Ready():
                _settle(self._connecting.get(message.epoch), None)
            case Disconnected():
                self._take_disconnected(message)
            case Stats():
                if self._stats is not None and not self._stats.done():
                    self._stats.set_result(message)
                self._stats = None
            case Failed():
                self._failure = _met(message)
                self._has_defect = message.is_defect
                asyncio.get_running_loop().call_later(_EXIT_SECONDS, self._kill)

    def _take_disconnected(self, message: Disconnected) -> None:
        connecting = self._connecting.get(message.epoch)
        if connecting is not None and not connecting.done():
            connecting.set_exception(EngineError(message.message))
            connecting.exception()  # not an error if nobody awaits it
        if self._connected is not None and self._connected <= message.epoch:
            self._connected = None
            self._disconnected.set()
        self._on_disconnected(self, message.epoch, message.message)

    def _lost(self) -> PotluckError:
        if self._failure is not None:
            return self._failure
        status = self._process.returncode
        if status == -signal.SIGBUS and self._mapped_file is not None:
            error = _unreadable(self._mapped_file)
            # The neighbours may have detected it first, and this stage may have been given up.
            _log.warning("%s", error.message)
            return error
        if status is None:
            return UnitFaultError(
                Fault.HUNG.value, "the worker cannot be killed: it hangs in the kernel"
            )
        if status < 0:
            name = signal_name(-status)
            return UnitFaultError(Fault.KILLED.value, f"the worker was killed by {name}")
        if status > 0:
            return UnitFaultError(
                Fault.DRIVER.value,
                f"the worker ended with exit code {status} without an error message",
            )
        return EngineError("the worker ended")


def silent(seconds: float) -> UnitFaultError:
    """Return the error of a silent worker, whose driver blocks all of its threads."""
    return UnitFaultError(
        Fault.HUNG.value, f"its worker has said nothing for {format_seconds(seconds)}"
    )


async def _exits_within(process: asyncio.subprocess.Process, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    return process.returncode is not None


def _settle(answer: asyncio.Future[_Answer] | None, value: _Answer) -> None:
    if answer is not None and not answer.done():
        answer.set_result(value)


def _met(failed: Failed) -> PotluckError:
    """Return the error that a worker reported."""
    if failed.fault in _FAULTS:
        return UnitFaultError(failed.fault, failed.message, hint=failed.hint)
    return EngineError(failed.message, hint=failed.hint)


def _unreadable(file: MappedFile) -> EngineError:
    """Return the error of a worker killed by SIGBUS, which could not read a mapped file."""
    try:
        num_bytes = Path(file.path).stat().st_size
    except OSError:
        num_bytes = file.num_bytes  # removed or replaced, which does not affect a mapping
    if num_bytes < file.num_bytes:
        problem = f"has shrunk from {file.num_bytes} to {num_bytes} bytes while it was mapped"
        return EngineError(
            f"{file.path} {problem}", hint="it is created again when the model is next loaded"
        )
    return EngineError(
        f"{file.path}, which is memory-mapped, could not be read", hint="check the disk for errors"
    )
