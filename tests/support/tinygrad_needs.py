"""What tinygrad's two devices for tests need of a machine."""

from __future__ import annotations

import shutil
from pathlib import Path


def what_is_missing(device: str) -> str:
    """For ``DEV=CPU`` or ``DEV=CL``; nothing where all is there."""
    if device == "CPU" and shutil.which("clang") is None:
        return "clang is not installed"
    if device == "CL" and not any(Path("/etc/OpenCL/vendors").glob("*.icd")):
        return "no OpenCL driver is installed"
    return ""
