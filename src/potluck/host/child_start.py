"""The entry point of a child: ``python -m potluck.host.child_start PARENT MODULE …``.

It makes the kernel end this process with its parent, keeps the output of libraries out of the
answer, and then runs the module as ``python -m`` would.
"""

from __future__ import annotations

import os
import resource
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


def run_module(parent_pid: int, arguments: list[str]) -> None:
    """Run ``arguments[0]`` with the other arguments, and end with the process ``parent_pid``."""
    end_with(parent_pid)
    # A crash is expected here, and its core dump useless. The kernel never writes a core file of
    # one byte, and a limit of 1, unlike 0, also disables piping core dumps to a program
    # (fs/coredump.c).
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard != 0 else 0, hard))
    # Libraries written in C print to descriptor 1, some of them at every start.
    answer = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(answer, "w", encoding="utf-8")
    sys.argv[:] = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def end_with(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; exit if that has ended already."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before prctl
        os._exit(1)


def ignore_stop_signals() -> None:
    """Leave it to the parent to end this process.

    A service manager may send these signals to all processes of the agent; the agent handles them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def prctl(option: int, value: int) -> None:
    """Call ``prctl(2)``. Kernels ignore options that they do not know."""
    import ctypes  # the acceptor imports this module, and has no use for it

    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    run_module(int(sys.argv[1]), sys.argv[2:])
