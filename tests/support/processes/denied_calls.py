"""A process to which the kernel denies system calls, as sandboxes do (``seccomp(2)``).

``python denied_calls.py NAME,NAME COMMAND …`` runs COMMAND so.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_NUMBERS = {
    "x86_64": {"sched_getaffinity": 204, "uname": 63},
    "aarch64": {"sched_getaffinity": 123, "uname": 160},
}
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def deny(*names: str) -> None:
    """Deny the calls to this process and all that it starts, from now on."""
    numbers = [_NUMBERS[platform.machine()][name] for name in names]
    steps = [(_LOAD, 0, 0, 0)]  # the number of the call is first in ``struct seccomp_data``
    for index, number in enumerate(numbers):
        steps.append((_JUMP_IF_EQUAL, len(numbers) - index, 0, number))
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    code = b"".join(struct.pack("HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    deny(*sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
