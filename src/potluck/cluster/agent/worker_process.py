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

from potluck.child_environment import child_environment
from potluck.cluster.agent.load_watch import LoadWatch
from potluck.cluster.worker.messages import (
    LENGTH,
    Connect,
    Failed,
    FromWorker,
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

OnEnd = Callable[["WorkerProcess", PotluckError], None]


class WorkerProcess:
    """One worker, from its start to its end. Made by :meth:`start`.

    ``on_end`` is called once when the process has ended, with the reason.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_end: OnEnd,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._on_end = on_end
        self._failure: PotluckError | None = None
        self._was_killed = False
        self._has_defect = False
        self._mapped_file: MappedFile | None = None
        loop = asyncio.get_running_loop()
        self._loading: asyncio.Queue[Progress | Loaded | PotluckError] = asyncio.Queue()
        self._ready: asyncio.Future[None] = loop.create_future()
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
    async def start(cls, on_end: OnEnd) -> WorkerProcess:
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
        return cls(process, reader, writer, on_end)

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

    async def connect(self, message: Connect) -> None:
        """Have it open its edges. Raises the ``PotluckError`` that it met."""
        self._send(message)
        await asyncio.shield(self._ready)

    async def stats(self) -> Stats | None:
        """What it has done so far; None while it is not connected. Raises what ended it."""
        if not self._ready.done():
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
        for answer in (self._ready, self._stats):
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
                self._loading.put_nowait(message)
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(None)
            case Stats():
                if self._stats is not None and not self._stats.done():
                    self._stats.set_result(message)
                self._stats = None
            case Failed():
                self._failure = _met(message)
                self._has_defect = message.is_defect
                asyncio.get_running_loop().call_later(_EXIT_SECONDS, self._kill)

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
