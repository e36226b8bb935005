"""Arm's GPUs, Mali and Immortalis, with the vendor's driver (kbase) or one of the kernel's own.

kbase creates a misc device ``mali0``, and reports product, cores and id in ``gpuinfo`` (its
``mali_kbase_core_linux.c``). panthor, panfrost and lima create DRM render nodes and report the id
only in the kernel log, so the device tree is used instead; the number of cores is then unknown.
This detector does not check for an OpenCL library.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from potluck.host.boards import (
    device_id,
    max_clock_hz,
    platform_devices,
    problem,
    shared_memory,
)
from potluck.host.system import System, printable, resolve
from potluck.probe.chips.derive import mali_figures, merge_figures
from potluck.probe.chips.lookup import table_figures, unknown_figures
from potluck.probe.chips.names import normalize_name
from potluck.probe.detector import Detector
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, Figures

RENDER_DRIVERS = frozenset({"panthor", "panfrost", "lima"})

_NODE_WORDS = ("gpu", "mali", "bifrost", "midgard", "valhall")
"""Names of the node in device trees: usually ``gpu@…``, and other names in vendors' trees."""

_KBASE_MODULES = ("mali_kbase", "bifrost_kbase", "midgard_kbase")
"""Arm's name of the module, and the names in Rockchip's kernels."""

_GPUINFO = re.compile(
    r"(?P<name>.+) (?P<cores>[0-9]{1,6}) cores r\d+p\d+ 0x(?P<id>[0-9A-Fa-f]{4,8})"
)

_MAX_CORES = 128
"""Four times the most that any Mali has (Mali-G71, 32); higher numbers, and 0, are invalid."""

_COMPATIBLE = re.compile(r"arm,mali-.*|arm,mali[tg]\d.*|[^,]+,[^,]+-mali")

_MODEL = re.compile(r"arm,mali-?(t?\d{3})")
"""Older trees name the model: ``arm,mali-t860`` (bindings ``arm,mali-midgard``, ``-utgard``)."""

_UTGARD = re.compile(r"arm,mali-(300|400|450|470)\b")
_DRAWS_ONLY = "GPUs of its generation (Mali-400 to 470) do not support OpenCL"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """The properties of a GPU; ``num_cores`` is known only if its driver reports it."""

    name: str
    reported_name: str = ""
    id: int | None = None
    num_cores: int | None = None


# Newer trees name only the architecture (arm,mali-bifrost, arm,mali-valhall-csf) and the system on
# chip. The rows are from kernel logs of such boards, in which panfrost and panthor print the id.
_SYSTEMS_ON_CHIP = {
    # "panthor fb000000.gpu: mali-g610 id 0xa867": HeyMeco/Rockchip-pcie-devices, issue 4
    "rockchip,rk3588-mali": _Product(name="Mali-G610", id=0xA867),
    # "panfrost fde60000.gpu: mali-g52 id 0x7402": armbian/linux-rockchip, pull request 103
    "rockchip,rk3568-mali": _Product(name="Mali-G52", id=0x7402),
    # "Mali-G52 (Bifrost)", without its id: armbian/build, pull request 10517
    "rockchip,rk3576-mali": _Product(name="Mali-G52"),
}


def _find(system: System) -> DetectorReport:
    files: dict[Path, Path | None] = {}
    for entry in system.entries(system.sys / "class/misc"):
        if re.fullmatch(r"mali\d+", entry.name):
            files[resolve(entry / "device")] = system.dev / entry.name
    for node in system.render_nodes():
        if node.driver in RENDER_DRIVERS:
            files[node.device] = node.device_file
    for found in platform_devices(system, *_NODE_WORDS):
        if any(_COMPATIBLE.fullmatch(name) for name in found.compatible):
            files.setdefault(found.path, None)
    devices = tuple(_device(system, path, file) for path, file in sorted(files.items()))
    return DetectorReport(detector=DETECTOR.name, devices=devices)


def _device(system: System, path: Path, file: Path | None) -> Device:
    compatible = system.compatible(path)
    product = _product(system.text(path / "gpuinfo") or "", compatible)
    chip = next(iter(compatible), "") if product.id is None else f"mali-{product.id:04x}"
    driver = system.driver(path)
    is_utgard = any(_UTGARD.match(name) for name in compatible)
    return Device(
        device_id=device_id(system, path),
        kind=DeviceKind.GPU,
        make="Arm Mali",
        name=product.name,
        reported_name=product.reported_name,
        chip=chip,
        driver=driver,
        device_files=() if file is None else (str(file),),
        memory=shared_memory(system),
        figures=_figures(product, chip, max_clock_hz(system, path)),
        versions=_kbase_versions(system) if driver and driver not in RENDER_DRIVERS else (),
        problem=_DRAWS_ONLY if is_utgard else problem(system, driver, file),
    )


def _product(gpuinfo: str, compatible: tuple[str, ...]) -> _Product:
    known = _product_by_compatible(compatible)
    match = _GPUINFO.fullmatch(gpuinfo)
    if match is None:
        return known
    # "(Unknown Mali GPU)" is newer than its driver's table, but cores and id are correct.
    is_named = not match["name"].startswith("(")
    return _Product(
        name=normalize_name(match["name"]) if is_named else known.name,
        reported_name=printable(match["name"]),
        id=int(match["id"], 16),
        num_cores=int(match["cores"]),
    )


def _product_by_compatible(compatible: tuple[str, ...]) -> _Product:
    for name in compatible:
        if product := _SYSTEMS_ON_CHIP.get(name):
            return product
        if model := _MODEL.match(name):
            return _Product(name=f"Mali-{model[1].upper()}")
    return _Product(name=next(iter(compatible), "Mali"))


def _figures(product: _Product, chip: str, clock_hz: int | None) -> Figures:
    table = table_figures(product.name, chip=chip)
    if product.id is None or product.num_cores is None or clock_hz is None:
        return table
    if not 0 < product.num_cores <= _MAX_CORES:
        reason = f"its driver reports {product.num_cores} cores, which no Mali has; not measured"
        return merge_figures(table, unknown_figures(reason))
    return merge_figures(mali_figures(product.id, product.num_cores, clock_hz), table)


def _kbase_versions(system: System) -> tuple[tuple[str, str], ...]:
    for module in _KBASE_MODULES:
        if version := system.text(system.sys / "module" / module / "version"):
            return (("kbase", version),)
    return ()


DETECTOR = Detector(name="mali", find=_find)
