"""NVIDIA's GPUs: cards on the PCI bus, GPUs of Tegra chips, and GPUs that WSL passes through.

Files show which GPUs exist, their drivers, and whether the device files can be used. Memory, cores
and clocks are known only to NVML; it is queried in a separate process, and only if an NVIDIA driver
is loaded. Sources: the kernel's ``sysfs-bus-pci``; NVIDIA's driver README on
``/proc/driver/nvidia`` and the device files; Microsoft's documentation of GPUs in WSL.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from potluck.host.boards import (
    PlatformDevice,
    board_model,
    device_id,
    device_trees,
    platform_devices,
    shared_memory,
    unknown_memory,
)
from potluck.host.system import Access, PciDevice, System, printable
from potluck.probe.chips.lookup import table_figures
from potluck.probe.chips.names import normalize_name
from potluck.probe.detector import Detector, VendorQuery
from potluck.probe.detectors.nvidia_device import (
    DRIVER,
    PCI_VENDOR,
    TEGRA_DRIVERS,
    WSL_DRIVER,
    cuda,
    files_problem,
    kernel_driver_version,
    shares_memory,
)
from potluck.probe.detectors.nvidia_nvml import merge
from potluck.probe.gpus.pci_gpu import RESERVING_DRIVERS, database_name
from potluck.types.backend import DeviceKind
from potluck.types.hardware import NVIDIA, DetectorReport, Device

_NVML_DRIVERS = frozenset({DRIVER, WSL_DRIVER}) | TEGRA_DRIVERS
"""Drivers that support NVML; Tegra's may not, and does not need it."""

_NOT_REPORTED = "only NVML reports it, but it did not"

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

_NAMES = ("gpu", *_COMPUTE_CAPABILITIES)
"""The names of the platform devices, which follow their address or precede a number."""

_RELEASE = re.compile(r"# R(\d+) \(release\), REVISION: ([\d.]+)")


def tegra_gpus(system: System) -> tuple[Device, ...]:
    """Return the GPUs of this machine if it is a Tegra.

    Sources: the kernel's ``Documentation/devicetree/bindings/gpu/nvidia,gk20a.txt``; NVIDIA's L4T
    kernels, which bind ``nvgpu`` (before: ``gk20a``) to ``17000000.gpu``, ``17000000.ga10b``,
    ``57000000.gpu`` and create ``/dev/nvhost-gpu``, and since L4T 35 also ``/dev/nvgpu/igpu0``.
    Thor's GPU is on the PCI bus.
    """
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
    for tree in device_trees(system):
        data = system.bytes(tree / "compatible") or b""
        for name in data.decode("ascii", errors="replace").split("\0"):
            if match := _CHIP.fullmatch(name):
                return match[1]
    return ""


def _device(system: System, found: PlatformDevice, chip: str) -> Device:
    gpu = next((match[1] for name in found.compatible if (match := _GPU.fullmatch(name))), "")
    reported_name = printable(board_model(system))
    files = _tegra_device_files(system)
    return Device(
        device_id=device_id(system, found.path),
        kind=DeviceKind.GPU,
        make=NVIDIA,
        name=normalize_name(reported_name) or chip or gpu or "Tegra",
        reported_name=reported_name,
        chip=chip or gpu,
        driver=found.driver,
        device_files=tuple(str(file) for file in files),
        memory=shared_memory(system),
        figures=table_figures(reported_name, chip=chip or gpu),
        versions=_tegra_versions(system),
        problem=_problem(system, found.driver, files),
        interfaces=(cuda(""),) if found.driver in TEGRA_DRIVERS else (),
        compute_capability=_COMPUTE_CAPABILITIES.get(gpu),
    )


def _tegra_device_files(system: System) -> tuple[Path, ...]:
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


def _tegra_versions(system: System) -> tuple[tuple[str, str], ...]:
    """Return NVIDIA's release of the board's system (L4T, which JetPack includes)."""
    release = _RELEASE.match(system.text(system.files / "etc/nv_tegra_release") or "")
    return (("L4T", f"{release[1]}.{release[2]}"),) if release else ()


def _find(system: System) -> DetectorReport:
    devices = [
        _pci_device(system, found)
        for found in system.pci_devices()
        if found.vendor == PCI_VENDOR and found.is_display
    ]
    devices += tegra_gpus(system)
    # Tegra also has files with these names, for its display.
    if not any(device.driver in _NVML_DRIVERS for device in devices):
        devices += [*_files_without_bus(system), *_wsl(system)]
    return DetectorReport(detector=DETECTOR.name, devices=_with_plain_address(devices))


def _with_plain_address(devices: list[Device]) -> tuple[Device, ...]:
    """Give CUDA's only device an empty address: it need not be selected, and CUDA does not accept
    PCI addresses.
    """
    if sum(bool(device.interfaces) for device in devices) != 1:
        return tuple(devices)
    return tuple(
        replace(device, interfaces=(cuda(""),)) if device.interfaces else device
        for device in devices
    )


def _pci_device(system: System, found: PciDevice) -> Device:
    information = _information(system, found.address)
    reported_name = printable(information.get("Model", "") or database_name(system, found))
    files = _device_files(system, information.get("Device Minor", ""))
    is_driven = found.driver == DRIVER
    return Device(
        device_id=f"pci-{found.address}",
        kind=DeviceKind.GPU,
        make=NVIDIA,
        name=normalize_name(reported_name) or f"NVIDIA {found.ids}",
        reported_name=reported_name,
        chip=found.ids,
        driver=found.driver,
        device_files=tuple(str(file) for file in files) if is_driven else (),
        memory=(
            shared_memory(system) if shares_memory(found.ids) else unknown_memory(_NOT_REPORTED)
        ),
        figures=table_figures(reported_name, chip=found.ids),
        versions=_versions(system, information) if is_driven else (),
        problem=files_problem(system, files) if is_driven else _driver_problem(found.driver),
        interfaces=(cuda(found.address),) if is_driven else (),
    )


def _information(system: System, address: str) -> dict[str, str]:
    """Return the driver's information about a GPU: ``Model``, ``Video BIOS``, ``Device Minor`` …

    In a container the driver lists the GPUs that were passed in, and perhaps all others.
    """
    text = system.text(system.proc / "driver/nvidia/gpus" / address / "information") or ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _device_files(system: System, minor: str) -> tuple[Path, ...]:
    """Return the device files needed to use a card, including its own if its number is known.

    ``nvidia-uvm`` is created when CUDA first starts, so it is listed only if it exists.
    """
    files = [system.dev / "nvidiactl"]
    if minor.isdecimal():
        files.append(system.dev / f"nvidia{minor}")
    if (uvm := system.dev / "nvidia-uvm").exists():
        files.append(uvm)
    return tuple(files)


def _driver_problem(driver: str) -> str:
    if not driver:
        return "no kernel driver is bound to it"
    if driver in RESERVING_DRIVERS:
        return f"it is reserved for virtual machines (driver {driver})"
    return f"the driver {driver} is bound to it, but compute requires the driver nvidia"


def _versions(system: System, information: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the versions of the driver and of the card's VBIOS (``??.??.…`` before first use)."""
    vbios = information.get("Video BIOS", "")
    found = {"driver": kernel_driver_version(system), "vbios": "" if "?" in vbios else vbios}
    return tuple((name, printable(version)) for name, version in found.items() if version)


def _files_without_bus(system: System) -> list[Device]:
    """Return GPUs that are known only from their device files, in containers without ``/sys``."""
    names = (path.name for path in system.entries(system.dev))
    minors = [match[1] for name in names if (match := re.fullmatch(r"nvidia(\d+)", name))]
    return [
        _stand_in(
            system,
            device_id=f"nvidia-{minor}",
            driver=DRIVER,
            files=_device_files(system, minor),
            name=f"NVIDIA GPU {minor}",
            is_only_one=len(minors) == 1,
        )
        for minor in minors
    ]


def _wsl(system: System) -> list[Device]:
    """Return one device for the GPUs of a Windows host, if the host provides NVIDIA's library.

    All of them are behind one device file.
    """
    file = system.dev / "dxg"
    if not file.exists() or not (system.files / "usr/lib/wsl/lib/libnvidia-ml.so.1").exists():
        return []
    return [
        _stand_in(
            system,
            device_id="nvidia-wsl",
            driver=WSL_DRIVER,
            files=(file,),
            name="NVIDIA GPU of the Windows host",
            is_only_one=True,
        )
    ]


def _stand_in(
    system: System,
    *,
    device_id: str,
    driver: str,
    files: tuple[Path, ...],
    name: str,
    is_only_one: bool,
) -> Device:
    """Return a placeholder for GPUs until NVML identifies them."""
    return Device(
        device_id=device_id,
        kind=DeviceKind.GPU,
        make=NVIDIA,
        name=name,
        reported_name="",
        chip="",
        driver=driver,
        device_files=tuple(str(file) for file in files),
        memory=unknown_memory(_NOT_REPORTED),
        problem=files_problem(system, files),
        interfaces=(cuda(""),) if is_only_one else (),
    )


def _queries(system: System, report: DetectorReport) -> tuple[VendorQuery, ...]:
    is_wanted = any(device.driver in _NVML_DRIVERS for device in report.devices)
    return (_NVML,) if is_wanted else ()


_NVML = VendorQuery(module="potluck.probe.children.nvml", merge=merge)

DETECTOR = Detector(name="nvidia", find=_find, queries=_queries)
