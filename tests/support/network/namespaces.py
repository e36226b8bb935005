"""Enters a network namespace, as ``ip netns exec`` does (ip-netns(8))."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CLONE_NEWNS = 0x00020000  # linux/sched.h
_CLONE_NEWNET = 0x40000000
_MS_REC = 0x4000  # linux/mount.h
_MS_SLAVE = 0x80000
_MNT_DETACH = 2


def join_namespace(name: str) -> None:
    """Have the calling thread, and what it starts, be in the network namespace ``name``.

    Raises ``OSError`` where this process may not.
    """
    with Path("/run/netns", name).open("rb") as namespace:
        _call("setns", namespace.fileno(), _CLONE_NEWNET)


def become_host(name: str) -> None:
    """Join the namespace and see its interfaces in /sys, for a process with one thread.

    Raises ``OSError`` where this process may not.
    """
    join_namespace(name)
    _call("unshare", _CLONE_NEWNS)
    _call("mount", b"", b"/", b"none", ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)
    _call("umount2", b"/sys", _MNT_DETACH)
    _call("mount", name.encode(), b"/sys", b"sysfs", ctypes.c_ulong(0), None)


def _call(function: str, *arguments: object) -> None:
    if ctypes.CDLL(None, use_errno=True)[function](*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
