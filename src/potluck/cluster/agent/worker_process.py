"""A worker as its agent sees it: a child process and a socket to it. Asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeVar

from potluck.child_environment import child_environment
from potluck.cluster.agent.load_watch import LoadWatch
from potluck.cluster.worker.messages import (
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
from potluck.probe.child import signal_name
from potluck.quantities import format_seconds
from potluck.types.cluster import Epoch
from potluck.types.unit import Fault

WORKER_MODULE = "potluck.cluster.worker"
_log = logging.getLogger(__name__)

_EXIT_SECONDS = 3.0
"""How long a process may take to end after it has closed its socket, or has said that it failed;
then it is killed."""

_SILENCE_SECONDS = 10.0
"""Beyond the longest that a call may take: a worker of which one thread hangs says so itself."""

_KILL_SECONDS = 2.0
"""How long a killed process may take to be gone, such as to give back gigabytes of memory. One that
waits within a driver may not be killed until the driver lets go: nobody waits for it longer."""

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
"""Signals that a process gets for what it does itself (``signal(7)``)."""

_SAY_AGAIN_SECONDS = 5.0
"""How far loading is, where nothing was said since; ``coordinator.starting`` waits much longer."""

_FAULTS = frozenset(fault.value for fault in Fault)

_ANSWER_SECONDS = 10.0
"""For the thread of a loaded worker that does nothing but answer: milliseconds, or seconds on a
machine with far too much to do. One that takes longer was stopped, or all of its threads are held
up."""

_CUT_SECONDS = 2.0
"""For the edges of a worker to close, which takes milliseconds unless it is within a long step."""

_CONNECT_SECONDS = 35.0
"""A worker gives up edges sooner than that."""

_Answer = TypeVar("_Answer")

OnEnd = Callable[["WorkerProcess", PotluckError], None]
OnDisconnected = Callable[["WorkerProcess", Epoch, str], None]


class WorkerProcess:
    """One worker, from its start to its end. Made by :meth:`start`.

    ``on_disconnected`` is called when the edges of an epoch have closed, or were not opened, and
    the worker waits for the next one. ``on_end`` is called once when the process has ended, with
    the reason.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_end: OnEnd,
        on_disconnected: OnDisconnected,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._on_end = on_end
        self._on_disconnected = on_disconnected
        self._failure: PotluckError | None = None
        self._was_killed = False
        self._has_defect = False
        self._mapped_file: MappedFile | None = None
        self._loading: asyncio.Queue[Progress | Loaded | PotluckError] = asyncio.Queue()
        self._is_loaded = False
        self._connected: Epoch | None = None
        self._addresses: dict[Epoch, asyncio.Future[tuple[str, int]]] = {}
        self._connecting: dict[Epoch, asyncio.Future[None]] = {}
        self._disconnected = asyncio.Event()
        self._stats: asyncio.Future[Stats] | None = None
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """As ``subprocess`` has it; None while it runs, or where it cannot be ended."""
        return self._process.returncode

    @property
    def is_ending(self) -> bool:
        """Whether it is of no use any more: it has failed, was killed, or has ended."""
        return self._failure is not None or self._was_killed or self._listening.done()

    @property
    def was_killed(self) -> bool:
        """Whether it was :meth:`kill` that ended it, before it had ended or failed by itself."""
        return self._was_killed

    @property
    def has_crashed(self) -> bool:
        """Whether it was what it computed that ended it: an exception that nobody expected, or a
        crash. Known once it has ended.
        """
        if self._has_defect:
            return True
        status = self.status
        if status is None or self._was_killed or self._failure is not None:
            return False
        if status == -signal.SIGBUS and self._mapped_file is not None:
            return False  # a file has shrunk under it
        return status > 0 or -status in _CRASHES

    @classmethod
    async def start(cls, on_end: OnEnd, on_disconnected: OnDisconnected) -> WorkerProcess:
        """Start a worker that has nothing to do yet."""
        ours, theirs = socket.socketpair()
        with theirs:
            # Nothing may wait between the start of the process and the return: whoever is
            # cancelled there would leave it behind.
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    WORKER_MODULE,
                    str(theirs.fileno()),
                    str(os.getpid()),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    env=child_environment(may_fetch=True),
                )
            except OSError as error:
                writer.close()
                raise EngineError(f"a worker could not be started: {error.strerror}") from error
            except asyncio.CancelledError:
                writer.close()
                raise
        return cls(process, reader, writer, on_end, on_disconnected)

    async def load(
        self, message: Load, *, stall_seconds: float
    ) -> AsyncGenerator[Progress | Loaded, None]:
        """Have it load a stage; the last event is ``Loaded``. Raises what the worker met.

        One that says nothing for longer than any of its calls may take is ended, and so is one that
        shows no sign of progress for ``stall_seconds``, or was stopped (``StalledError``). How far
        it is is said again every few seconds, so that who listens knows that somebody watches.
        """
        self._send(message)
        silence = None
        if message.step_seconds is not None:
            silence = COMPILING_TIMES * message.step_seconds + _SILENCE_SECONDS
        watch = LoadWatch(self.pid, stall_seconds)
        latest = Progress(done_bytes=0, total_bytes=0)
        heard_at = said_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(min(watch.look_seconds, silence or math.inf)):
                    event = await self._loading.get()
            except TimeoutError:
                now = time.monotonic()
                if problem := watch.look():
                    self.fail(StalledError(Fault.HUNG.value, problem))
                elif silence is not None and now - heard_at >= silence:
                    self.fail(silent(silence))
                elif now - said_at >= _SAY_AGAIN_SECONDS:
                    said_at = now
                    yield latest
                continue
            if isinstance(event, PotluckError):
                raise event
            watch.heard()
            heard_at = said_at = time.monotonic()
            if isinstance(event, Progress):
                latest = event
            yield event
            if isinstance(event, Loaded):
                return

    async def listen(self, epoch: Epoch) -> tuple[str, int]:
        """Have it listen for the incoming edge of ``epoch`` at a new address, and return that.

        The edges that stand are left alone. Raises what ended the worker: one that does not answer
        is ended.
        """
        if self._listening.done():
            raise self._lost()
        address: asyncio.Future[tuple[str, int]] = asyncio.get_running_loop().create_future()
        self._addresses[epoch] = address
        self._send(Listen(epoch=epoch))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await address
        except TimeoutError:
            error = unresponsive(_ANSWER_SECONDS)
            self.fail(error)
            raise error from None
        finally:
            self._addresses.pop(epoch, None)

    async def connect(self, message: Connect) -> None:
        """Have it close the edges of a lower epoch and open its own.

        Raises the ``PotluckError`` that it met.
        """
        if self._listening.done():
            raise self._lost()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connecting[message.epoch] = ready
        self._connected = message.epoch
        self._disconnected.clear()
        self._send(message)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                await ready
        except TimeoutError:
            error = unresponsive(_CONNECT_SECONDS)
            self.fail(error)
            raise error from None
        finally:
            self._connecting.pop(message.epoch, None)

    def disconnect(self, epoch: Epoch) -> None:
        """Have it close the edges of ``epoch`` and of lower ones, and refuse them from now on."""
        if not self._listening.done():
            self._send(Disconnect(epoch=epoch))

    async def wait_disconnected(self) -> None:
        """Return when no edges are open or the worker has ended, or after a short while.

        A step that is being computed goes on to its end.
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
        """What it has done so far; None until it is loaded. Raises what ended it."""
        if not self._is_loaded:
            return None
        if self._listening.done():
            raise self._lost()
        if self._stats is None:
            self._stats = asyncio.get_running_loop().create_future()
            self._send(Report())
        return await asyncio.shield(self._stats)

    def kill(self) -> None:
        """End it now, whatever it is doing: all it holds goes with it. Idempotent."""
        if self._listening.done():
            return
        if self._failure is None and not _has_ended(self.pid):
            self._was_killed = True
        self._kill()

    def fail(self, error: PotluckError) -> None:
        """End it as one that failed, and cannot say so itself."""
        if not self._listening.done():
            self._failure = self._failure or error
            self._kill()

    async def wait(self) -> None:
        """Until it has ended and was taken note of."""
        await asyncio.wait({self._listening})

    def _kill(self) -> None:
        # Not by way of ``Popen``, which would take the status of one that has just ended from
        # whoever waits for it.
        if self._process.returncode is None and not _has_ended(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        asyncio.get_running_loop().call_later(_KILL_SECONDS, self._writer.transport.abort)

    def _send(self, message: ToWorker) -> None:
        """The socket holds all that is ever on its way to a worker, so that nothing need wait."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    async def _listen(self) -> None:
        """Take messages until the worker closes its socket, then see it end."""
        try:
            while True:
                prefix = await self._reader.readexactly(LENGTH.size)
                document = await self._reader.readexactly(checked_length(prefix))
                self._take(decode_from_worker(document))
        except (asyncio.IncompleteReadError, OSError):
            pass  # it has ended, or is about to
        except ValueError as error:
            self._failure = EngineError(f"the worker sent what makes no sense: {error}")
            self._kill()
        except Exception as error:  # noqa: BLE001 - the callers of this worker must hear of it
            _log.exception("worker %d is given up", self.pid)
            self._failure = EngineError(f"the worker was given up: {type(error).__name__}: {error}")
            self._kill()
        self._writer.close()
        if not await self._ends_within(_EXIT_SECONDS):
            self._kill()
            if not await self._ends_within(_KILL_SECONDS):
                _log.warning("worker %d cannot be ended: it hangs in the kernel", self.pid)
        self._give_up(self._lost())

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return self._process.returncode is not None

    def _give_up(self, error: PotluckError) -> None:
        """Nobody shall wait for an answer any more."""
        self._loading.put_nowait(error)
        self._connected = None
        for answer in (*self._addresses.values(), *self._connecting.values(), self._stats):
            if answer is not None and not answer.done():
                answer.set_exception(error)
                answer.exception()  # that nobody waits for it is no defect
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
                _settle(self._addresses.get(message.epoch), (message.host, message.port))
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
            connecting.exception()  # that nobody waits for it is no defect
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
            # The neighbours may have noticed first, and this stage be given up already.
            _log.warning("%s", error.message)
            return error
        if status is None:
            return UnitFaultError(
                Fault.HUNG.value, "the worker cannot be ended: it hangs in the kernel"
            )
        if status < 0:
            name = signal_name(-status)
            return UnitFaultError(Fault.KILLED.value, f"the worker was killed by {name}")
        if status > 0:
            return UnitFaultError(
                Fault.DRIVER.value, f"the worker ended with exit code {status} and said nothing"
            )
        return EngineError("the worker ended")


def silent(seconds: float | None) -> UnitFaultError:
    """A worker does not answer, and cannot tell why: its driver holds up all of its threads."""
    return UnitFaultError(
        Fault.HUNG.value, f"its worker has said nothing for {format_seconds(seconds or 0)}"
    )


def unresponsive(seconds: float) -> StalledError:
    """A worker that has loaded its stage does not answer."""
    return StalledError(
        Fault.HUNG.value, f"its worker has not answered for {format_seconds(seconds)}"
    )


def _settle(answer: asyncio.Future[_Answer] | None, value: _Answer) -> None:
    if answer is not None and not answer.done():
        answer.set_result(value)


def _met(failed: Failed) -> PotluckError:
    """What a worker says that it met."""
    if failed.fault in _FAULTS:
        return UnitFaultError(failed.fault, failed.message, hint=failed.hint)
    return EngineError(failed.message, hint=failed.hint)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended by now, whoever was told of it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # and was reaped
        return True


def _unreadable(file: MappedFile) -> EngineError:
    """Why a worker was ended by SIGBUS: what it has mapped could not be read (``mmap(2)``)."""
    try:
        num_bytes = Path(file.path).stat().st_size
    except OSError:
        num_bytes = file.num_bytes  # removed or replaced, which does a mapping no harm
    if num_bytes < file.num_bytes:
        problem = f"has shrunk from {file.num_bytes} to {num_bytes} bytes while it was mapped"
        return EngineError(
            f"{file.path} {problem}", hint="it is made again when the model is loaded again"
        )
    return EngineError(
        f"{file.path}, which was mapped, could not be read", hint="check that the disk is sound"
    )
