"""How a process ends that has been a member of a cluster: without finalizing the interpreter.

A thread that is in Zenoh when the interpreter is finalized (because a session takes longer to close
than its node waits, or a message longer to be sent) asks for the interpreter's lock on its way
back. CPython 3.11 to 3.13 end such a thread with ``pthread_exit``, whose unwinding cannot pass
through Zenoh's Rust frames, so the C library aborts the process: "FATAL: exception not rethrown",
and a node that left in order would report ``SIGABRT`` instead of its exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

_is_skipping = threading.Event()


def skip_finalization() -> None:
    """Make ``end_process`` skip the finalization of the interpreter from now on."""
    _is_skipping.set()


def skips_finalization() -> bool:
    """Return whether ``skip_finalization`` was called."""
    return _is_skipping.is_set()


def end_process(status: int) -> NoReturn:
    """End with ``status``: after ``skip_finalization`` here and now, otherwise by ``SystemExit``.

    Functions registered with ``atexit`` are called, and the standard streams are flushed. What
    differs from ``SystemExit`` is that no thread is waited for.
    """
    if not skips_finalization():
        sys.exit(status)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it is closed
            if stream is not None:
                stream.flush()
    os._exit(status)
