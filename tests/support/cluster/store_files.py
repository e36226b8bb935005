"""Files to keep in a store, and other processes that use it."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

from support.processes.environment import environment

from potluck.types.content import CHUNK_BYTES, FileContent


def some_bytes(num_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


def content_of(data: bytes) -> FileContent:
    return FileContent(hashlib.sha256(data).hexdigest(), len(data))


def chunks_of(data: bytes) -> list[bytes]:
    return [data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES)]


def digests_of(data: bytes) -> bytes:
    return b"".join(hashlib.sha256(chunk).digest() for chunk in chunks_of(data))


def started(
    script: str, *arguments: str | Path, prefix: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """Another process that runs ``script``; it is told things by its standard input.

    ``prefix`` is a command that starts it in some other way.
    """
    return subprocess.Popen(
        (*prefix, sys.executable, "-c", script, *map(str, arguments)),
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
