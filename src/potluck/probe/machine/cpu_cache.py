"""The size of the CPU's last-level caches."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from potluck.probe.machine.cores import affine_cores
from potluck.probe.machine.regular_file import read_regular_file

_MAX_BYTES = 4096
"""A file of sysfs has one page."""


def last_level_cache_bytes() -> int | None:
    """Return the total size for all cores that this process may use; None if it is not reported."""
    return cache_bytes(Path("/sys"), affine_cores())


def cache_bytes(sys: Path, cores: Iterable[int]) -> int | None:
    """Return the total size of the last-level caches of ``cores``; shared caches count once.

    ``Documentation/ABI/testing/sysfs-devices-system-cpu``: ``cache/index*`` has ``level``,
    ``type``, ``size`` (``32768K``) and ``shared_cpu_map``. Many device trees of boards omit the
    sizes.
    """
    caches: dict[str, int] = {}
    for core in cores:
        folder = sys / f"devices/system/cpu/cpu{core}/cache"
        found = [
            (int(level), size, _text(index / "shared_cpu_map") or str(core))
            for index in folder.glob("index*")
            if (level := _text(index / "level")).isdecimal()
            and (size := _size(_text(index / "size")))
            and _text(index / "type") != "Instruction"
        ]
        if found:
            _, size, shared = max(found)
            caches[shared] = size
    return sum(caches.values()) or None


def _size(text: str) -> int:
    digits, unit = text[:-1], text[-1:]
    factor = {"K": 1 << 10, "M": 1 << 20}.get(unit)
    return int(digits) * factor if factor and digits.isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return read_regular_file(path, _MAX_BYTES).decode("ascii").strip()
    except (OSError, ValueError):
        return ""
