"""The process between the probe and a child: ``python -m potluck.probe.child_supervisor STATUS …``.

A library of a vendor may signal its parent or its process group. What it meets is this process,
which blocks every signal that can be blocked; and if it is killed all the same, that costs one line
of reason and not the command. It runs the module named after ``STATUS`` in a fork of itself, in a
session of that fork's own, so that Python starts once for both.

Lines go to the descriptor ``STATUS``: ``pid N`` at once, and in the end ``ended N`` (what
``subprocess`` calls the return code) or ``stuck``, if the child cannot be killed. Everything that
the child has started is killed when it ends, orphans too (``PR_SET_CHILD_SUBREAPER``), and all of
it as soon as standard input is closed, which is how the probe, or its death, ends a child.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from potluck.probe.child_start import prctl, run_module

KILL_SECONDS = 2.0
"""How long a killed process may take to be gone, such as to give back gigabytes of memory."""

_PR_SET_CHILD_SUBREAPER = 36  # include/uapi/linux/prctl.h, since Linux 3.4

_LIFELINE = 0
"""Standard input: a pipe that nothing is written to."""

_PAUSE_SECONDS = 0.001
"""Between two looks at processes that were killed."""


def main() -> None:
    """Start the child, wait for its end or that of standard input, and leave nothing behind."""
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
    for descriptor in (1, 2):  # the child's alone, so that they end with it
        _open_null(descriptor, os.O_WRONLY)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    _await_end(pid, woken)
    returncode = _end_all(pid)
    _tell(status, "stuck" if returncode is None else f"ended {returncode}")
    os._exit(0)


def _await_end(pid: int, woken: int) -> None:
    """Return when the child has ended, which stays a zombie, or when the lifeline is cut."""
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
    """Kill the child's group and every other process below this one; the child's return code.

    None if the child is still there after :data:`KILL_SECONDS`.
    """
    # The child is not reaped yet, so that its number, and its group's, cannot be another's.
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
    """The processes whose parent is this one (``proc(5)``, ``/proc/PID/stat``)."""
    from pathlib import Path  # seldom needed, and a tenth of what a child costs

    own = str(os.getpid())
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The second field is a name in parentheses, in which anything may stand.
            if path.read_text(errors="replace").rpartition(")")[2].split()[1] == own:
                found.append(int(path.parent.name))
    return found


def _open_null(descriptor: int, flags: int) -> None:
    null = os.open(os.devnull, flags | os.O_CLOEXEC)
    os.dup2(null, descriptor)
    os.close(null)


def _tell(status: int, line: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        os.write(status, f"{line}\n".encode())


def _wake_up(*_: object) -> None:
    """Python writes to the wake-up descriptor where a signal has a handler."""


if __name__ == "__main__":
    main()
