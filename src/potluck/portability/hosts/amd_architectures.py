"""The architectures of AMD's GPUs, from the files of its compute driver (KFD)."""

from __future__ import annotations

import re

from potluck.portability.hosts.root_files import RootFiles

_NODES = "/sys/class/kfd/kfd/topology/nodes"
_VERSION = re.compile(r"^gfx_target_version (\d{1,6})$", re.MULTILINE)
_MAX_DIGIT = 15
"""Minor version and stepping are one hexadecimal digit each in the name."""


def amd_architectures(files: RootFiles) -> tuple[str, ...]:
    """Return the architectures of the GPUs that the driver lists, each once, such as ``gfx1030``.

    Empty if there are none, or if the driver is not loaded.
    """
    nodes = sorted(files.names(_NODES), key=lambda each: (len(each), each))
    matches = (_VERSION.search(files.text(f"{_NODES}/{each}/properties")) for each in nodes)
    names = (checked_gfx_target(int(each[1])) for each in matches if each)
    return tuple(dict.fromkeys(each for each in names if each))


def gfx_target(gfx_target_version: int) -> str:
    """Return LLVM's name for KFD's number: ``gfx90a`` for 90010, ``gfx1101`` for 110001.

    Major, minor and stepping have two decimal digits each (Linux, ``kfd_device.c``); LLVM writes
    the last two as one hexadecimal digit each.
    """
    major, rest = divmod(gfx_target_version, 10_000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}" if major > 0 else ""


def checked_gfx_target(gfx_target_version: int) -> str:
    """Return ``gfx_target`` of a number from the driver; empty if it is not a chip version."""
    minor, stepping = divmod(gfx_target_version % 10_000, 100)
    if gfx_target_version >= 1_000_000 or minor > _MAX_DIGIT or stepping > _MAX_DIGIT:
        return ""
    return gfx_target(gfx_target_version)
