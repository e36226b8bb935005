"""Start and end the child processes of an agent. Asyncio."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from potluck.host.child_environment import child_environment


async def start_child(
    module: str, *arguments: str, descriptors: Collection[int], may_fetch: bool = False
) -> asyncio.subprocess.Process:
    """Start ``python -m MODULE ARGUMENTS`` with this process's Python. Raise ``OSError``.

    The child inherits ``descriptors`` and standard output and error, but no standard input and no
    secrets. It has a process group of its own: Ctrl-C in a terminal is for the agent.

    ``may_fetch``: with the token for the hub, for a child that fetches files from there.
    """
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            *arguments,
            pass_fds=descriptors,
            stdin=asyncio.subprocess.DEVNULL,
            env=child_environment(may_fetch=may_fetch),
            process_group=0,
        )
    except RuntimeError as error:  # there is no thread to wait for its end
        raise OSError(errno.EAGAIN, str(error)) from error


@dataclass(frozen=True, slots=True)
class ConnectedChild:
    """A child, and a stream to it. The child ends when the stream does."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def end(self, *, timeout_seconds: float) -> None:
        """Close the stream, and wait for the end of the child; kill it if it takes too long."""
        self.writer.close()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


async def start_connected_child(
    module: str,
    *arguments: str,
    descriptors: Collection[int],
    may_fetch: bool = False,
    max_line_bytes: int = 2**16,
) -> ConnectedChild:
    """Start a child as ``start_child`` does; the descriptor of its socket is its first argument.

    ``max_line_bytes`` is the longest line that can be read from it.
    """
    ours, theirs = socket.socketpair()
    with theirs, ExitStack() as unless_started:
        reader, writer = await asyncio.open_connection(sock=ours, limit=max_line_bytes)
        unless_started.callback(writer.close)
        process = await start_child(
            module,
            str(theirs.fileno()),
            *arguments,
            descriptors=(theirs.fileno(), *descriptors),
            may_fetch=may_fetch,
        )
        unless_started.pop_all()
    # No await from here on: if it were cancelled, the process would be left behind.
    return ConnectedChild(process, reader, writer)
