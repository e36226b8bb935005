"""Shared parts of the NVIDIA detector."""

from __future__ import annotations

import re
from pathlib import Path

from potluck.host.system import Access, System
from potluck.types.unit import Interface

PCI_VENDOR = 0x10DE

DRIVER = "nvidia"
"""NVIDIA's own kernel driver, proprietary or open."""

TEGRA_DRIVERS = frozenset({"nvgpu", "gk20a"})
"""NVIDIA's own driver for the GPUs of Tegra; older board kernels name it after the first one."""

WSL_DRIVER = "dxgkrnl"

_SHARED_MEMORY_CHIPS = {
    "10de:2e12": "GB10 (DGX Spark)",
    "10de:2b00": "GB10B (Jetson Thor)",
}
"""GPUs that appear as cards on the PCI bus but use the machine's memory; NVML does not report its
size (kubernetes-sigs/dra-driver-nvidia-gpu, issues 1073 and 1115; nvidia-cosmos/cosmos-reason1,
61)."""


_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)")
"""``NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 …``; the open one says
``NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build …``."""


def kernel_driver_version(system: System) -> str:
    """Return the version of the loaded kernel driver; empty if it is unknown."""
    version = system.text(system.sys / "module/nvidia/version")
    if version is None:
        match = _VERSION.search(system.text(system.proc / "driver/nvidia/version") or "")
        version = match[1] if match else ""
    return version


def shares_memory(chip: str) -> bool:
    """Return whether a GPU on the PCI bus has no memory of its own, according to its ids."""
    return chip in _SHARED_MEMORY_CHIPS


def cuda(address: str, *, version: str = "") -> Interface:
    """Return the CUDA interface of a device; ``version`` is the latest CUDA that its driver
    supports.
    """
    return Interface(api="cuda", address=address, description=f"CUDA {version}" if version else "")


def files_problem(system: System, files: tuple[Path, ...]) -> str:
    """Return why device files cannot be used, missing ones before inaccessible ones; empty if they
    can.
    """
    access = {file: system.access(file) for file in files}
    absent = [str(file) for file in files if access[file] is Access.ABSENT]
    if absent:
        return f"its device files are missing: {', '.join(absent)}"
    forbidden = next((file for file in files if access[file] is Access.FORBIDDEN), None)
    return "" if forbidden is None else f"no permission to use {forbidden}"
