"""What the parts of the NVIDIA layer agree on."""

from __future__ import annotations

from pathlib import Path

from potluck.probe.system import Access, System
from potluck.types.hardware import DeviceMemory, Interface

MAKE = "NVIDIA"

PCI_VENDOR = 0x10DE

DRIVER = "nvidia"
"""NVIDIA's own kernel driver, closed or open."""

TEGRA_DRIVERS = frozenset({"nvgpu", "gk20a"})
"""NVIDIA's own for the GPUs inside Tegra; older kernels of boards name it after the first one."""

WSL_DRIVER = "dxgkrnl"

_SHARED_MEMORY_CHIPS = {
    "10de:2e12": "GB10 (DGX Spark)",
    "10de:2b00": "GB10B (Jetson Thor)",
}
"""GPUs that look like cards on the PCI bus and use the machine's memory; NVML tells no size of it
(kubernetes-sigs/dra-driver-nvidia-gpu, issues 1073 and 1115; nvidia-cosmos/cosmos-reason1, 61)."""


def shares_memory(chip: str) -> bool:
    """Whether a GPU on the PCI bus, by its ids, has no memory of its own."""
    return chip in _SHARED_MEMORY_CHIPS


def cuda(address: str, *, version: str = "") -> Interface:
    """How CUDA's programs reach a device; ``version`` is the latest of CUDA that its driver can."""
    return Interface(api="cuda", address=address, description=f"CUDA {version}" if version else "")


def unknown_memory(reason: str) -> DeviceMemory:
    """The memory of a card that nobody told of."""
    return DeviceMemory(total_bytes=None, free_bytes=None, is_shared=False, source=reason)


def files_problem(system: System, files: tuple[Path, ...]) -> str:
    """Why device files cannot be used, the absent before the forbidden; empty if they can."""
    access = {file: system.access(file) for file in files}
    absent = [str(file) for file in files if access[file] is Access.ABSENT]
    if absent:
        return f"its device files are missing: {', '.join(absent)}"
    forbidden = next((file for file in files if access[file] is Access.FORBIDDEN), None)
    return "" if forbidden is None else f"no permission to use {forbidden}"
