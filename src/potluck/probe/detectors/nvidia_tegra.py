"""GPUs of Tegra chips (Jetson): platform devices of the device tree that use the machine's memory.

Sources: the kernel's ``Documentation/devicetree/bindings/gpu/nvidia,gk20a.txt``; NVIDIA's L4T
kernels, which bind ``nvgpu`` (before: ``gk20a``) to ``17000000.gpu``, ``17000000.ga10b``,
``57000000.gpu`` and create ``/dev/nvhost-gpu``, and since L4T 35 also ``/dev/nvgpu/igpu0``.
Thor's GPU is on the PCI bus.
"""

from __future__ import annotations

import re
from pathlib import Path

from potluck.probe.chips.lookup import table_figures
from potluck.probe.chips.names import normalize_name, printable
from potluck.probe.detectors.nvidia_device import MAKE, TEGRA_DRIVERS, cuda, files_problem
from potluck.probe.machine.boards import PlatformDevice, device_id, platform_devices, shared_memory
from potluck.probe.machine.system import Access, System
from potluck.types.backend import DeviceKind
from potluck.types.hardware import Device

_CHIP = re.compile(r"nvidia,(tegra\d+)")
_GPU = re.compile(r"nvidia,(?:tegra\d+-)?(g[a-z]\d\d[a-z])")
"""``nvidia,gm20b``, ``nvidia,tegra210-gm20b``, ``nvidia,gv11b``, ``nvidia,ga10b``."""

_COMPUTE_CAPABILITIES = {
    "gk20a": (3, 2),
    "gm20b": (5, 3),
    "gp10b": (6, 2),
    "gv11b": (7, 2),
    "ga10b": (8, 7),
}
"""From NVIDIA's lists "CUDA GPU Compute Capability" and "Legacy CUDA GPUs" (developer.nvidia.com),
under the boards' names: TK1, TX1 and Nano, TX2, Xavier, Orin."""

_NAMES = ("gpu", "gk20a", "gm20b", "gp10b", "gv11b", "ga10b")
"""The names of the platform devices, which follow their address or precede a number."""

_RELEASE = re.compile(r"# R(\d+) \(release\), REVISION: ([\d.]+)")


def tegra_gpus(system: System) -> tuple[Device, ...]:
    """Return the GPUs of this machine if it is a Tegra."""
    chip = _chip(system)
    return tuple(
        _device(system, found, chip)
        for found in platform_devices(system, *_NAMES)
        if found.driver in TEGRA_DRIVERS or any(_GPU.fullmatch(name) for name in found.compatible)
    )


def _chip(system: System) -> str:
    """Return the chip's name (``tegra234``) from the board's names, the most specific of which
    comes first.
    """
    for tree in _device_trees(system):
        data = system.bytes(tree / "compatible") or b""
        for name in data.decode("ascii", errors="replace").split("\0"):
            if match := _CHIP.fullmatch(name):
                return match[1]
    return ""


def _device_trees(system: System) -> tuple[Path, ...]:
    """Return the two paths of the device tree; containers often lack one of them."""
    return system.proc / "device-tree", system.sys / "firmware/devicetree/base"


def _device(system: System, found: PlatformDevice, chip: str) -> Device:
    model = next(
        (text for tree in _device_trees(system) if (text := system.text(tree / "model"))), ""
    )
    gpu = next((match[1] for name in found.compatible if (match := _GPU.fullmatch(name))), "")
    reported_name = printable(model)
    files = _device_files(system)
    return Device(
        device_id=device_id(system, found.path),
        kind=DeviceKind.GPU,
        make=MAKE,
        name=normalize_name(reported_name) or chip or gpu or "Tegra",
        reported_name=reported_name,
        chip=chip or gpu,
        driver=found.driver,
        device_files=tuple(str(file) for file in files),
        memory=shared_memory(system),
        figures=table_figures(reported_name, chip=chip or gpu),
        versions=_versions(system),
        problem=_problem(system, found.driver, files),
        interfaces=(cuda(""),) if found.driver in TEGRA_DRIVERS else (),
        compute_capability=_COMPUTE_CAPABILITIES.get(gpu),
    )


def _device_files(system: System) -> tuple[Path, ...]:
    """Return the device files of the GPU and of the memory allocator.

    If neither of the GPU's two possible files exists, the older one is returned.
    """
    old, new = system.dev / "nvhost-gpu", system.dev / "nvgpu/igpu0/ctrl"
    only_new = system.access(old) is Access.ABSENT and system.access(new) is not Access.ABSENT
    return (new if only_new else old, system.dev / "nvmap")


def _problem(system: System, driver: str, files: tuple[Path, ...]) -> str:
    if not driver:
        return "no kernel driver is bound to it"
    if driver not in TEGRA_DRIVERS:
        return f"the driver {driver} is bound to it, but compute requires NVIDIA's nvgpu"
    return files_problem(system, files)


def _versions(system: System) -> tuple[tuple[str, str], ...]:
    """Return NVIDIA's release of the board's system (L4T, which JetPack includes)."""
    release = _RELEASE.match(system.text(system.files / "etc/nv_tegra_release") or "")
    return (("L4T", f"{release[1]}.{release[2]}"),) if release else ()
