"""Start and end the child processes of an agent. Asyncio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from contextlib import suppress

from potluck.host.child_environment import child_environment


async def start_child(
    module: str, *arguments: str, descriptors: Collection[int], may_fetch: bool = False
) -> asyncio.subprocess.Process:
    """Start ``python -m MODULE ARGUMENTS`` with this process's Python. Raise ``OSError``.

    The child inherits ``descriptors`` and standard output and error, but no standard input and no
    secrets. It has a process group of its own: Ctrl-C in a terminal is for the agent.

    ``may_fetch``: with the token for the hub, for a child that fetches files from there.
    """
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


async def end_child(process: asyncio.subprocess.Process, *, timeout_seconds: float) -> None:
    """Wait for the end of a child that was told to end; kill it if it takes too long."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
