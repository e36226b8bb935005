"""The first thing that runs in a child: ``python -m potluck.probe.child_start PARENT MODULE …``.

Has the kernel end this process with its parent, and keeps what libraries print apart from the
answer. Then runs the module as ``python -m`` would.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h


def _prepare(parent_pid: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before it was asked for
        os._exit(1)
    # A crash is expected here and its core of no use. The kernel never writes a file of one byte,
    # and takes 1, unlike 0, to forbid handing cores to a program too (fs/coredump.c).
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard != 0 else 0, hard))
    # Libraries written in C print to descriptor 1, some at every start.
    answer = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(answer, "w", encoding="utf-8")


if __name__ == "__main__":
    _prepare(int(sys.argv[1]))
    module, sys.argv[:] = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
