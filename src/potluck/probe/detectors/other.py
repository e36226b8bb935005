"""GPUs and NPUs that no backend supports: listed as unused.

These are all DRM render nodes and accelerator nodes that no other detector claims, and NPUs whose
drivers create other kinds of device files. Displays without a render node (ast, mgag200, simpledrm)
cannot compute and are not listed, nor are software devices.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from potluck.host.boards import (
    device_id,
    platform_devices,
    problem,
    shared_memory,
    unknown_memory,
)
from potluck.host.system import PciDevice, System, resolve
from potluck.probe.detector import Detector
from potluck.probe.detectors import adreno, mali
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device

_CLAIMED = (
    mali.RENDER_DRIVERS
    | adreno.RENDER_DRIVERS
    | {"amdgpu", "radeon", "i915", "xe", "nvidia", "nouveau"}
    # Tegra's nvgpu, and host1x, whose DRM device (driver "drm") is for display and decoding.
    | {"nvgpu", "gk20a", "host1x", "tegra-host1x", "drm", "tegra-drm"}
)
"""Drivers whose render nodes belong to other detectors."""

_NOT_COMPUTING = frozenset({"rockchip-drm", "exynos-drm", "omapdrm", "vgem", "vkms"})
"""Drivers whose render nodes are display controllers or software."""

UNUSED = "Potluck has no backend for it"

_UNKNOWN_MEMORY = unknown_memory("not reported by the kernel")


_VENDOR = 0x19E5
_PROCESSING_ACCELERATORS = 0x12
"""The PCI base class, which distinguishes NPUs from Huawei's network cards."""

_NAMES = {
    "19e5:d100": "Ascend 310",
    "19e5:d500": "Ascend 310P",
    "19e5:d801": "Ascend 910",
    "19e5:d802": "Ascend 910B",
    "19e5:d803": "Ascend 910_93",
}

_FILE = re.compile(r"davinci([0-9]{1,4})")


def _ascend_npus(
    system: System, known: Collection[Path]
) -> tuple[tuple[Device, ...], frozenset[Path]]:
    """Return Ascend NPUs that are not at one of the paths ``known``, and their paths in sysfs.

    If there are as many device files as NPUs, they are assumed to be in the same order, since no
    file shows which belongs to which.

    Sources: Huawei's script that collects its driver's logs, for the PCI ids; and the device files
    that Huawei's documentation passes to containers (``--device /dev/davinci0``), one for each NPU.
    """
    functions = [each for each in system.pci_devices() if _is_ascend(each)]
    found = [each for each in functions if each.path not in known]
    numbered = [
        (int(match[1]), path)
        for path in system.entries(system.dev)
        if (match := _FILE.fullmatch(path.name)) is not None
    ]
    files = [path for _, path in sorted(numbered)]
    if not functions:
        return tuple(_on_chip(system, file) for file in files), frozenset()
    is_paired = len(files) == len(found)
    devices = tuple(
        _on_bus(
            system,
            function,
            files[index] if is_paired else None,
            is_file_known=is_paired or not files,
        )
        for index, function in enumerate(found)
    )
    return devices, frozenset(each.path for each in found)


def _is_ascend(function: PciDevice) -> bool:
    is_accelerator = function.device_class >> 16 == _PROCESSING_ACCELERATORS
    return function.vendor == _VENDOR and (is_accelerator or function.ids in _NAMES)


def _on_bus(
    system: System, function: PciDevice, file: Path | None, *, is_file_known: bool
) -> Device:
    trouble = problem(system, function.driver, file) if is_file_known else ""
    return Device(
        device_id=device_id(system, function.path),
        kind=DeviceKind.NPU,
        make="Huawei",
        name=_NAMES.get(function.ids, "Ascend NPU"),
        reported_name="",
        chip=function.ids,
        driver=function.driver,
        device_files=() if file is None else (str(file),),
        memory=_UNKNOWN_MEMORY,
        problem=_unused(trouble),
    )


def _on_chip(system: System, file: Path) -> Device:
    """Return an NPU that is known only from its device file: part of a board's chip, or in a
    container.
    """
    return Device(
        device_id=file.name,
        kind=DeviceKind.NPU,
        make="Huawei",
        name="Ascend NPU",
        reported_name="",
        chip="",
        driver="davinci",
        device_files=(str(file),),
        memory=shared_memory(system),
        problem=UNUSED,
    )


def _unused(trouble: str) -> str:
    return f"{UNUSED}; {trouble}" if trouble else UNUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Make:
    """The properties of a device that follow from its driver or its PCI id."""

    kind: DeviceKind
    make: str
    name: str = ""
    has_own_memory: bool = False


_ROCKCHIP = _Make(kind=DeviceKind.NPU, make="Rockchip", name="Rockchip NPU")
_VIRTUAL = _Make(kind=DeviceKind.GPU, make="", name="virtio-gpu", has_own_memory=True)
_HAILO_8 = _Make(kind=DeviceKind.NPU, make="Hailo", name="Hailo-8", has_own_memory=True)
_CORAL = _Make(kind=DeviceKind.NPU, make="Google", name="Coral Edge TPU", has_own_memory=True)

_BY_DRIVER = {
    "etnaviv": _Make(kind=DeviceKind.GPU, make="Vivante"),
    "v3d": _Make(kind=DeviceKind.GPU, make="Broadcom", name="VideoCore"),
    "vc4-drm": _Make(kind=DeviceKind.GPU, make="Broadcom", name="VideoCore IV"),
    "powervr": _Make(kind=DeviceKind.GPU, make="Imagination"),
    "pvrsrvkm": _Make(kind=DeviceKind.GPU, make="Imagination"),
    "intel_vpu": _Make(kind=DeviceKind.NPU, make="Intel", name="Intel NPU"),
    "amdxdna": _Make(kind=DeviceKind.NPU, make="AMD", name="AMD XDNA NPU"),
    "ethosu": _Make(kind=DeviceKind.NPU, make="Arm", name="Arm Ethos-U NPU"),
    "qaic": _Make(
        kind=DeviceKind.NPU, make="Qualcomm", name="Qualcomm Cloud AI", has_own_memory=True
    ),
    "habanalabs": _Make(kind=DeviceKind.NPU, make="Intel", name="Gaudi", has_own_memory=True),
    "virtio_gpu": _VIRTUAL,
    "virtio-pci": _VIRTUAL,
    "hailo": replace(_HAILO_8, name="Hailo NPU"),
    "apex": _CORAL,
}

_BY_PCI_IDS = {"1e60:2864": _HAILO_8, "1ac1:089a": _CORAL}
"""Ids from the PCI ID database, so that the devices are found without their drivers too."""

_BY_COMPATIBLE = {
    "brcm,2711-v3d": "VideoCore VI",
    "brcm,2712-v3d": "VideoCore VII",
}
"""Names by device tree, from the Raspberry Pi's documentation (BCM2711, BCM2712)."""

_CLASSES = {"accel": "accel", "hailo_chardev": "", "apex": ""}
"""Classes of device files for NPUs, and their folders in /dev.

They are the kernel's own, that of Hailo's driver, and that of Google's driver (gasket).
"""

_ROCKCHIP_NPU = re.compile(r"rockchip,.*-(rknpu|rknn-core)")
"""Device-tree names in the vendor's kernels and in the mainline bindings, one per core."""


def _find(system: System) -> DetectorReport:
    files: dict[Path, list[Path]] = defaultdict(list)
    rockchip_cores = _rockchip_cores(system)
    for path, file in _device_files(system):
        is_made_up = not system.driver(path) and not system.compatible(path)
        is_rockchip = path in rockchip_cores or (is_made_up and rockchip_cores)
        files[rockchip_cores[0] if is_rockchip else path].append(file)
    if rockchip_cores:
        files[rockchip_cores[0]] += _rockchip_misc(system)
    pci_ids: dict[Path, str] = {}
    for function in system.pci_devices():
        if function.path in files or function.ids in _BY_PCI_IDS:
            pci_ids[function.path] = function.ids
    npus, places = _ascend_npus(system, pci_ids.keys())
    devices = tuple(
        _device(system, path, tuple(files[path]), pci_ids.get(path, ""))
        for path in sorted({*files, *pci_ids} - places)
    )
    return DetectorReport(detector=DETECTOR.name, devices=devices + npus)


def _device_files(system: System) -> Iterator[tuple[Path, Path]]:
    """Yield each device that no other detector claims, and its device file."""
    for node in system.render_nodes():
        name = node.device.name
        # A partition of an MI300 has a render node on a virtual device that amdgpu creates for it.
        is_claimed = node.driver in _CLAIMED or name.startswith("amdgpu_xcp")
        if not is_claimed and node.driver not in _NOT_COMPUTING and name not in _NOT_COMPUTING:
            yield node.device, node.device_file
    for kind, folder in _CLASSES.items():
        for entry in system.entries(system.sys / "class" / kind):
            yield resolve(entry / "device"), system.dev / folder / entry.name


def _rockchip_cores(system: System) -> list[Path]:
    """Return the nodes of Rockchip's NPU in the device tree, which together are one device.

    Drivers with one node per core attach their device file to a virtual device, which has neither a
    driver nor a node in the device tree.
    """
    return [
        found.path
        for found in platform_devices(system, "npu")
        if any(_ROCKCHIP_NPU.fullmatch(name) for name in found.compatible)
    ]


def _rockchip_misc(system: System) -> list[Path]:
    """Return the file that Rockchip's driver creates instead of a render node if it is built for
    DMA heaps.
    """
    names = (entry.name for entry in system.entries(system.sys / "class/misc"))
    return [system.dev / name for name in names if name == "rknpu"]


def _device(system: System, path: Path, files: tuple[Path, ...], pci_ids: str) -> Device:
    driver, compatible = system.driver(path), system.compatible(path)
    make = _make(driver, compatible, files, pci_ids)
    chip = pci_ids or next(iter(compatible), "")
    trouble = problem(system, driver, next(iter(files), None))
    return Device(
        device_id=device_id(system, path),
        kind=make.kind,
        make=make.make,
        name=make.name or chip or driver or path.name,
        reported_name="",
        chip=chip,
        driver=driver,
        device_files=tuple(str(file) for file in files),
        memory=_UNKNOWN_MEMORY if make.has_own_memory else shared_memory(system),
        problem=_unused(trouble),
    )


def _make(driver: str, compatible: tuple[str, ...], files: tuple[Path, ...], pci_ids: str) -> _Make:
    if pci_ids in _BY_PCI_IDS:
        return _BY_PCI_IDS[pci_ids]
    if any(_ROCKCHIP_NPU.fullmatch(name) for name in compatible):
        return _ROCKCHIP
    is_npu = any(file.name.startswith("accel") for file in files)
    unknown = _Make(
        kind=DeviceKind.NPU if is_npu else DeviceKind.GPU, make="", has_own_memory=bool(pci_ids)
    )
    make = _BY_DRIVER.get(driver, unknown)
    names = [_BY_COMPATIBLE[name] for name in compatible if name in _BY_COMPATIBLE]
    return replace(make, name=names[0]) if names else make


DETECTOR = Detector(name="other", find=_find)
