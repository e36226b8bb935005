"""Reject CPUs that the installed NumPy does not support, before NumPy ends the process.

NumPy 2.4 and newer are compiled for x86-64-v2: on an older CPU, importing them raises an error, or
ends the process with SIGILL and no message. All other compiled dependencies, and Potluck's own
core, run on every x86-64 CPU.
"""

from __future__ import annotations

import os
from pathlib import Path

from potluck.errors import PotluckError

_CPUINFO = Path("/proc/cpuinfo")
_CPUINFO_BYTES = 16 * 1024
"""The entry of the first CPU is a tenth of that; there may be hundreds."""

_X86_64_V2 = frozenset({"cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"})
"""Flags of ``/proc/cpuinfo`` that the level has and x86-64 itself lacks (x86-64 psABI 1.0, table
3.1; SSE3 is ``pni``)."""

_FIRST_VERSION = (2, 4)
"""The first version of NumPy that requires them."""


def require_supported_cpu(
    cpuinfo: Path = _CPUINFO, *, numpy_version: str | None = None, machine: str | None = None
) -> None:
    """Raise ``PotluckError`` if the installed NumPy does not run on this machine's CPU.

    ``numpy_version`` is that of the installed one by default.
    """
    if (machine or os.uname().machine) != "x86_64":
        return
    missing = _X86_64_V2 - _flags(cpuinfo)
    if not missing or missing == _X86_64_V2:  # unreadable or masked: let NumPy decide
        return
    version = _installed_version() if numpy_version is None else numpy_version
    if not _requires_v2(version):
        return
    raise PotluckError(
        f"this CPU is older than x86-64-v2, which NumPy {version} requires: it lacks "
        f"{', '.join(sorted(missing))}",
        hint="install an older NumPy: python3 -m pip install 'numpy<2.4'",
    )


def _flags(cpuinfo: Path) -> frozenset[str]:
    """Return the flags of the first CPU; none if they cannot be read."""
    try:
        with cpuinfo.open("rb") as file:
            text = file.read(_CPUINFO_BYTES).decode("ascii", "replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def _installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("numpy")
    except PackageNotFoundError:
        return "0"


def _requires_v2(version: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).release >= _FIRST_VERSION
    except InvalidVersion:
        return False
