"""What tinygrad's devices for tests need of a machine."""

from __future__ import annotations

import shutil
from pathlib import Path


def what_is_missing(device: str) -> str:
    """For ``DEV=CPU``, ``DEV=CL`` or ``DEV=CUDA``; nothing where all is there."""
    if device == "CPU" and shutil.which("clang") is None:
        return "clang is not installed"
    if device == "CL" and not any(Path("/etc/OpenCL/vendors").glob("*.icd")):
        return "no OpenCL driver is installed"
    if device == "CUDA" and not Path("/dev/nvidiactl").exists():
        return "this machine has no NVIDIA GPU"
    return ""
