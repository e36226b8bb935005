"""The process between probe and child: ``python -m potluck.host.supervisor STATUS …``.

A vendor's library may send signals to its parent or its process group. They only reach this
process, which blocks every signal that can be blocked. If it is killed nevertheless, that becomes a
one-line reason and does not end the command. It runs the module named after ``STATUS`` in a fork of
itself, in a separate session, so that Python starts only once for both.

It writes lines to the descriptor ``STATUS``: ``pid N`` immediately, and at the end ``ended N`` (the
return code as in ``subprocess``) or ``stuck`` if the child cannot be killed. When the child ends,
every process that it started is killed, including orphans (``PR_SET_CHILD_SUBREAPER``). When
standard input is closed, by the probe or because the probe died, the child is killed as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from potluck.host.child_start import prctl, run_module

KILL_SECONDS = 2.0
"""How long a killed process may take to disappear, for example to release gigabytes of memory."""

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h, since Linux 3.4

_LIFELINE = 0
"""Standard input: a pipe to which nothing is written."""

_PAUSE_SECONDS = 0.001
"""Interval between checks of processes that were killed."""


def main() -> None:
    """Run the child until it ends or standard input is closed, and kill what it has left behind."""
    status, arguments = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(status, False)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, _wake_up)  # also if the parent process ignores it
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (status, woken, wake):
            os.close(descriptor)
        os.setsid()
        _open_null(_LIFELINE, os.O_RDONLY)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        run_module(supervisor, arguments)
        return
    _tell(status, f"pid {pid}")
    for descriptor in (1, 2):  # only the child keeps them, so that they close when it ends
        _open_null(descriptor, os.O_WRONLY)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    _await_end(pid, woken)
    returncode = _end_all(pid)
    _tell(status, "stuck" if returncode is None else f"ended {returncode}")
    os._exit(0)


def _await_end(pid: int, woken: int) -> None:
    """Return when the child has ended and is a zombie, or when the lifeline is closed."""
    poll = select.poll()
    poll.register(_LIFELINE, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if _LIFELINE in ready:
            return
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)


def _end_all(pid: int) -> int | None:
    """Kill the child's group and all other descendants, and return the child's return code.

    Return None if the child still exists after :data:`KILL_SECONDS`.
    """
    # The child is not reaped yet, so its process id and group id cannot have been reused.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    returncode: int | None = None
    end = time.monotonic() + KILL_SECONDS
    while time.monotonic() < end:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there are none left
            break
        if ended == pid:
            returncode = os.waitstatus_to_exitcode(status)
        elif not ended:
            for orphan in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            time.sleep(_PAUSE_SECONDS)
    return returncode


def _children() -> list[int]:
    """Return the processes whose parent is this one (``proc(5)``, ``/proc/PID/stat``)."""
    from pathlib import Path  # rarely needed, and a tenth of a child's startup time

    own = str(os.getpid())
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The second field is a name in parentheses, which may contain any character.
            if path.read_text(errors="replace").rpartition(")")[2].split()[1] == own:
                found.append(int(path.parent.name))
    return found


def _open_null(descriptor: int, flags: int) -> None:
    null = os.open(os.devnull, flags | os.O_CLOEXEC)
    os.dup2(null, descriptor)
    os.close(null)


def _tell(status: int, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the reader is gone
        os.write(status, f"{line}\n".encode())


def _wake_up(*_: object) -> None:
    """Do nothing: Python writes to the wake-up descriptor only if a signal has a handler."""


if __name__ == "__main__":
    main()
