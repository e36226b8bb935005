"""Boards: what the detectors find on each, written by hand from the machine's file.

A new board is one file in ``tests/fixtures/machines`` and its rows here. Figures are left out of
the rows: they come from tables that have tests of their own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.machines.umockdev import find_devices

from potluck.types.backend import DeviceKind
from potluck.types.hardware import Device, DeviceMemory, Figures, Origin
from potluck.types.unit import Interface

NO_BACKEND = "Potluck has no backend for it"
UNREPORTED_MEMORY = DeviceMemory(
    total_bytes=None, free_bytes=None, is_shared=False, source="not reported by the kernel"
)


def shared(total_kib: int, free_kib: int) -> DeviceMemory:
    return DeviceMemory(
        total_bytes=total_kib * 1024,
        free_bytes=free_kib * 1024,
        is_shared=True,
        source="shared system memory (/proc/meminfo)",
    )


G610_KBASE = Device(
    device_id="of-fb000000.gpu",
    kind=DeviceKind.GPU,
    make="Arm Mali",
    name="Mali-G610",
    reported_name="Mali-G610",
    chip="mali-a867",
    driver="mali",
    device_files=("/dev/mali0",),
    memory=shared(16237584, 12003180),
    versions=(("kbase", "g18p0-01eac0 (UK version 1.14)"),),
)
G610_PANTHOR = replace(
    G610_KBASE,
    reported_name="",
    driver="panthor",
    device_files=("/dev/dri/renderD128",),
    memory=shared(32614808, 30019204),
    versions=(),
)
ROCKCHIP_NPU = Device(
    device_id="of-fdab0000.npu",
    kind=DeviceKind.NPU,
    make="Rockchip",
    name="Rockchip NPU",
    reported_name="",
    chip="rockchip,rk3588-rknpu",
    driver="RKNPU",
    device_files=("/dev/dri/renderD129",),
    memory=shared(16237584, 12003180),
    problem=NO_BACKEND,
)
ROCKET_NPU = replace(
    ROCKCHIP_NPU,
    chip="rockchip,rk3588-rknn-core",
    driver="rocket",
    device_files=("/dev/accel/accel0",),
    memory=shared(32614808, 30019204),
)
ADRENO_MSM = Device(
    device_id="of-3d00000.gpu",
    kind=DeviceKind.GPU,
    make="Qualcomm Adreno",
    name="Adreno 635",
    reported_name="",
    chip="qcom,adreno-635.0",
    driver="adreno",
    device_files=("/dev/dri/renderD128",),
    memory=shared(5753088, 4200000),
)
V3D = Device(
    device_id="of-1002000000.v3d",
    kind=DeviceKind.GPU,
    make="Broadcom",
    name="VideoCore VII",
    reported_name="",
    chip="brcm,2712-v3d",
    driver="v3d",
    device_files=("/dev/dri/renderD128",),
    memory=shared(8253440, 6000128),
    problem=NO_BACKEND,
)
HAILO = Device(
    device_id="pci-0001:01:00.0",
    kind=DeviceKind.NPU,
    make="Hailo",
    name="Hailo-8",
    reported_name="",
    chip="1e60:2864",
    driver="hailo",
    device_files=("/dev/hailo0",),
    memory=UNREPORTED_MEMORY,
    problem=NO_BACKEND,
)

# What each of the three detectors finds; a detector that a machine's row leaves out finds nothing.
FOUND: dict[str, dict[str, tuple[Device, ...]]] = {
    "rk3588-kbase": {"mali": (G610_KBASE,), "other": (ROCKCHIP_NPU,)},
    "rk3588-panthor": {"mali": (G610_PANTHOR,), "other": (ROCKET_NPU,)},
    "rk3588-no-firmware": {
        "mali": (
            replace(
                G610_PANTHOR,
                driver="",
                device_files=(),
                memory=shared(8123456, 7000000),
                problem="no kernel driver is bound to it",
            ),
        ),
        "other": (
            replace(
                ROCKET_NPU,
                driver="",
                device_files=(),
                memory=shared(8123456, 7000000),
                problem=f"{NO_BACKEND}; no kernel driver is bound to it",
            ),
        ),
    },
    "container-without-devices": {
        "mali": (replace(G610_PANTHOR, problem="its device file /dev/dri/renderD128 is missing"),),
        "other": (
            replace(
                ROCKET_NPU,
                problem=f"{NO_BACKEND}; its device file /dev/accel/accel0 is missing",
            ),
        ),
    },
    "rk3576-rknpu": {
        "mali": (
            replace(
                G610_PANTHOR,
                device_id="of-27800000.gpu",
                name="Mali-G52",
                chip="rockchip,rk3576-mali",
                driver="panfrost",
                device_files=("/dev/dri/renderD130",),
                memory=shared(8123456, 7000000),
            ),
        ),
        "other": (
            replace(
                ROCKCHIP_NPU,
                device_id="of-27700000.npu",
                chip="rockchip,rk3576-rknpu",
                memory=shared(8123456, 7000000),
            ),
        ),
    },
    "rk3399-panfrost": {
        "mali": (
            replace(
                G610_PANTHOR,
                device_id="of-ff9a0000.gpu",
                name="Mali-T860",
                chip="rockchip,rk3399-mali",
                driver="panfrost",
                memory=shared(3888888, 3100000),
            ),
        ),
    },
    "amlogic-lima": {
        "mali": (
            replace(
                G610_PANTHOR,
                device_id="of-d00c0000.gpu",
                name="Mali-450",
                chip="amlogic,meson-gxl-mali",
                driver="lima",
                memory=shared(1990000, 1500000),
                problem="GPUs of its generation (Mali-400 to 470) do not support OpenCL",
            ),
        ),
    },
    "raspberry-pi-5": {"other": (HAILO, V3D)},
    "qualcomm-msm": {"adreno": (ADRENO_MSM,)},
    "qualcomm-kgsl": {
        "adreno": (
            replace(
                ADRENO_MSM,
                device_id="of-3d00000.qcom,kgsl-3d0",
                name="Adreno 650",
                reported_name="Adreno650v2",
                chip="qcom,kgsl-3d0",
                driver="kgsl-3d",
                device_files=("/dev/kgsl-3d0",),
                memory=shared(7700000, 5500000),
                interfaces=(Interface(api="kgsl", address=""),),
            ),
        ),
    },
    "server-with-npus": {
        "other": (
            replace(
                HAILO,
                device_id="pci-0000:00:0b.0",
                make="Intel",
                name="Intel NPU",
                chip="8086:7d1d",
                driver="intel_vpu",
                device_files=("/dev/accel/accel0",),
                memory=shared(16000000, 9000000),
            ),
            replace(
                HAILO,
                device_id="pci-0000:03:00.0",
                make="Google",
                name="Coral Edge TPU",
                chip="1ac1:089a",
                driver="",
                device_files=(),
                problem=f"{NO_BACKEND}; no kernel driver is bound to it",
            ),
        ),
    },
    "virtual-machine": {
        "other": (
            Device(
                device_id="virtio-virtio0",
                kind=DeviceKind.GPU,
                make="",
                name="virtio-gpu",
                reported_name="",
                chip="",
                driver="virtio_gpu",
                device_files=("/dev/dri/renderD128",),
                memory=UNREPORTED_MEMORY,
                problem=NO_BACKEND,
            ),
        ),
    },
    "empty-sys": {},
}


@pytest.mark.parametrize("detector", ["mali", "adreno", "other"])
@pytest.mark.parametrize("machine", FOUND)
def test_what_is_found_is_what_the_machine_has(machine: str, detector: str) -> None:
    report = find_devices(machine, detector)
    assert report.detector == detector
    assert report.problems == ()
    expected = FOUND[machine].get(detector, ())
    assert tuple(replace(device, figures=Figures()) for device in report.devices) == expected


@pytest.mark.parametrize(
    ("machine", "detector", "device_file"),
    [
        ("rk3588-kbase", "mali", "/dev/mali0"),
        ("rk3588-panthor", "mali", "/dev/dri/renderD128"),
        ("qualcomm-msm", "adreno", "/dev/dri/renderD128"),
        ("qualcomm-kgsl", "adreno", "/dev/kgsl-3d0"),
    ],
)
def test_a_device_without_permission_is_listed_with_that_problem(
    machine: str, detector: str, device_file: str
) -> None:
    report = find_devices(machine, detector, forbidden=[device_file])
    (expected,) = FOUND[machine][detector]
    (device,) = report.devices
    assert device.problem == f"no permission to use {device_file}"
    assert replace(device, figures=Figures(), problem="") == expected


def test_a_mali_that_tells_cores_and_clock_has_derived_figures() -> None:
    """Four cores of 64 multiply-adds a cycle at 1 GHz, twice that in 16 bits (libGPUInfo)."""
    (device,) = find_devices("rk3588-kbase", "mali").devices
    figures = device.figures
    assert figures.f32_operations_per_second.value == 512e9
    assert figures.f32_operations_per_second.origin is Origin.DERIVED
    assert figures.f16_operations_per_second.value == 1024e9
    assert figures.f16_operations_per_second.origin is Origin.DERIVED


def test_a_mali_that_tells_no_cores_has_no_derived_figures() -> None:
    (device,) = find_devices("rk3588-panthor", "mali").devices
    assert device.figures.f32_operations_per_second.origin is not Origin.DERIVED
