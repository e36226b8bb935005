"""A worker as its agent sees it: a child process and a socket to it. Asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable

from potluck.cluster.worker.messages import (
    LENGTH,
    Connect,
    Failed,
    FromWorker,
    Load,
    Loaded,
    Progress,
    Ready,
    Stats,
    Stop,
    ToWorker,
    checked_length,
    decode_from_worker,
    encode,
)
from potluck.errors import EngineError, PotluckError

_STOP_SECONDS = 3.0
"""A worker ends after the step it is computing; then it is killed."""


class WorkerProcess:
    """One worker, from its start to its end. Made by :meth:`start`.

    ``on_end`` is called once when the process has ended, with the reason, unless ``stop`` ended it.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_end: Callable[[PotluckError], None],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._on_end = on_end
        self._is_stopping = False
        self._failure: PotluckError | None = None
        self._answers: asyncio.Queue[Loaded | Ready | None] = asyncio.Queue()
        self._on_progress: Callable[[int, int], None] | None = None
        self.stats: Stats | None = None
        self._task = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @classmethod
    async def start(cls, on_end: Callable[[PotluckError], None]) -> WorkerProcess:
        """Start a worker that has nothing to do yet."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "potluck.cluster.worker",
                    str(theirs.fileno()),
                    str(os.getpid()),
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                raise EngineError(f"a worker could not be started: {error.strerror}") from error
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer, on_end)

    async def load(self, message: Load, on_progress: Callable[[int, int], None]) -> Loaded:
        """Have it load a stage. Raises the ``PotluckError`` that it met."""
        self._on_progress = on_progress
        answer = await self._ask(message)
        if not isinstance(answer, Loaded):
            raise self._lost()
        return answer

    async def connect(self, message: Connect) -> None:
        """Have it open its edges. Raises the ``PotluckError`` that it met."""
        answer = await self._ask(message)
        if not isinstance(answer, Ready):
            raise self._lost()

    async def stop(self) -> None:
        """End it, gently first. Idempotent."""
        self._is_stopping = True
        with contextlib.suppress(OSError):
            self._writer.write(encode(Stop()))
            await self._writer.drain()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._task

    async def _ask(self, message: ToWorker) -> Loaded | Ready | None:
        with contextlib.suppress(OSError):
            self._writer.write(encode(message))
            await self._writer.drain()
        return await self._answers.get()

    async def _listen(self) -> None:
        """Take messages until the worker closes its socket, then see it end."""
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                prefix = await self._reader.readexactly(LENGTH.size)
                document = await self._reader.readexactly(checked_length(prefix))
                self._take(decode_from_worker(document))
        self._writer.close()
        await self._process.wait()
        self._answers.put_nowait(None)
        if not self._is_stopping:
            self._on_end(self._lost())

    def _take(self, message: FromWorker) -> None:
        match message:
            case Progress():
                if self._on_progress is not None:
                    self._on_progress(message.done_bytes, message.total_bytes)
            case Loaded() | Ready():
                self._answers.put_nowait(message)
            case Stats():
                self.stats = message
            case Failed():
                self._failure = EngineError(message.message, hint=message.hint)

    def _lost(self) -> PotluckError:
        if self._failure is not None:
            return self._failure
        status = self._process.returncode
        if status is not None and status < 0:
            return EngineError(f"the worker was ended by signal {-status}")
        return EngineError("the worker ended")
