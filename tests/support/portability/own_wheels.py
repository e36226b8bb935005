"""Our own wheels, unpacked for a Python of a root."""

from __future__ import annotations

from pathlib import Path

from packaging.utils import parse_wheel_filename
from support.portability.wheel_build import built_wheels

from tools.roots.wheel_site import SITE, unzip_wheel


def own_wheel(machine: str, python: str, folder: Path) -> Path:
    """Where the wheel lies that pip would take for Python ``python`` (``3.11``), in ``folder``."""
    interpreter = "cp311" if python == "3.11" else "cp312"
    wheel = next(
        wheel
        for wheel in built_wheels()
        if any(
            tag.interpreter == interpreter and tag.platform.endswith(machine)
            for tag in parse_wheel_filename(wheel.name)[3]
        )
    )
    unzip_wheel(wheel, folder)
    return folder / SITE
