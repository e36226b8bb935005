"""Qualcomm's Adreno GPUs, with the vendor's driver (kgsl) or the kernel's own (msm).

kgsl has its own class with one GPU, ``kgsl-3d0``, and reports the model in ``gpu_model``. msm
creates one render node for the display controller and the GPU together, whose parent in sysfs is
the display controller; the GPU is a platform device of its own with the driver ``adreno`` (bindings
``display/msm/gpu.yaml``). A render node without such a GPU cannot compute and is not listed.
"""

from __future__ import annotations

import re
from pathlib import Path

from potluck.host.boards import (
    device_id,
    platform_devices,
    problem,
    shared_memory,
)
from potluck.host.system import System, printable, resolve
from potluck.probe.chips.lookup import table_figures
from potluck.probe.chips.names import normalize_name
from potluck.probe.detector import Detector
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device
from potluck.types.unit import Interface

RENDER_DRIVERS = frozenset({"msm", "msm_dpu", "msm_mdp", "mdp4", "msm_drm", "adreno"})
"""Display controllers of the kernel's msm and the vendor's msm_drm, and msm without a display."""

_KGSL = "kgsl-3d0"

_REPORTED = re.compile(r"Adreno(\d{3})(v\d+)?")
"""Model and revision (``Adreno650v2``). Newer GPUs report a number that is not a model name."""

_COMPATIBLE = re.compile(r"qcom,adreno-(\d{3})\.\d+")
"""``qcom,adreno-635.0``. Eight hexadecimal digits instead do not identify the model."""


def _find(system: System) -> DetectorReport:
    devices: dict[Path, Device] = {}
    kgsl = system.sys / "class/kgsl" / _KGSL
    model = system.text(kgsl / "gpu_model")
    if model is not None:
        path = resolve(kgsl / "device")
        devices[path] = _device(system, path, model, system.dev / _KGSL)
    render_node = next(
        (node.device_file for node in system.render_nodes() if node.driver in RENDER_DRIVERS), None
    )
    for found in platform_devices(system, "gpu", "adreno"):
        is_adreno = any(name.startswith("qcom,adreno") for name in found.compatible)
        if is_adreno and found.path not in devices:
            devices[found.path] = _device(system, found.path, "", render_node)
    return DetectorReport(detector=DETECTOR.name, devices=tuple(devices.values()))


def _device(system: System, path: Path, model: str, file: Path | None) -> Device:
    chip = next(iter(system.compatible(path)), "")
    driver = system.driver(path)
    is_kgsl = file is not None and file.name == _KGSL
    name = _name(model, chip)
    return Device(
        device_id=device_id(system, path),
        kind=DeviceKind.GPU,
        make="Qualcomm Adreno",
        name=name,
        reported_name=printable(model),
        chip=chip,
        driver=driver,
        device_files=() if file is None else (str(file),),
        memory=shared_memory(system),
        figures=table_figures(name, chip=chip),
        problem=problem(system, driver, file),
        interfaces=(Interface(api="kgsl", address=""),) if is_kgsl else (),
    )


def _name(model: str, chip: str) -> str:
    number = _REPORTED.fullmatch(model) or _COMPATIBLE.fullmatch(chip)
    return f"Adreno {number[1]}" if number else normalize_name(model) or chip


DETECTOR = Detector(name="adreno", find=_find)
