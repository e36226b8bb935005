"""How large the CPU's last-level caches are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from potluck.probe.cores import affine_cores
from potluck.probe.regular_file import read_regular_file

_MAX_BYTES = 4096
"""A file of sysfs has one page."""


def last_level_cache_bytes() -> int | None:
    """Of all cores that this process may use, together; None where the kernel does not say."""
    return cache_bytes(Path("/sys"), affine_cores())


def cache_bytes(sys: Path, cores: Iterable[int]) -> int | None:
    """The last-level caches that ``cores`` have, each counted once however many share it.

    ``Documentation/ABI/testing/sysfs-devices-system-cpu``: ``cache/index*`` has ``level``,
    ``type``, ``size`` (``32768K``) and ``shared_cpu_map``. Many device trees of boards leave
    the sizes out.
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
