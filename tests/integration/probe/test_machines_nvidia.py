"""Machines with NVIDIA's GPUs: what the detector finds on each, written by hand from its file.

A new machine is one file in ``tests/fixtures/machines`` and its row here. Figures are left out:
they come from tables that have tests of their own.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.machines.umockdev import find_devices

from potluck.types.backend import DeviceKind
from potluck.types.hardware import Device, DeviceMemory, Figures
from potluck.types.unit import Interface

RTX_4090 = Device(
    device_id="pci-0000:01:00.0",
    kind=DeviceKind.GPU,
    make="NVIDIA",
    name="GeForce RTX 4090",
    reported_name="NVIDIA GeForce RTX 4090",
    chip="10de:2684",
    driver="nvidia",
    device_files=("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm"),
    memory=DeviceMemory(
        total_bytes=None,
        free_bytes=None,
        is_shared=False,
        source="only NVML reports it, but it did not",
    ),
    versions=(("driver", "535.129.03"), ("vbios", "95.02.3c.00.01")),
    interfaces=(Interface(api="cuda", address="0000:01:00.0"),),
)
TESLA_T4 = replace(
    RTX_4090,
    device_id="pci-0000:41:00.0",
    name="Tesla T4",
    reported_name="Tesla T4",
    chip="10de:1eb8",
    device_files=("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"),
    versions=(("driver", "535.129.03"), ("vbios", "90.04.96.00.02")),
    interfaces=(Interface(api="cuda", address="0000:41:00.0"),),
)
DRIVERLESS = replace(
    RTX_4090,
    reported_name="AD102 [GeForce RTX 4090]",
    driver="",
    device_files=(),
    versions=(),
    problem="no kernel driver is bound to it",
    interfaces=(),
)
ORIN = Device(
    device_id="of-17000000.gpu",
    kind=DeviceKind.GPU,
    make="NVIDIA",
    name="Jetson AGX Orin Developer Kit",
    reported_name="NVIDIA Jetson AGX Orin Developer Kit",
    chip="tegra234",
    driver="gk20a",
    device_files=("/dev/nvhost-gpu", "/dev/nvmap"),
    memory=DeviceMemory(
        total_bytes=64319384 * 1024,
        free_bytes=60003180 * 1024,
        is_shared=True,
        source="shared system memory (/proc/meminfo)",
    ),
    versions=(("L4T", "36.4.3"),),
    interfaces=(Interface(api="cuda", address=""),),
    compute_capability=(8, 7),
)

FOUND: dict[str, tuple[Device, ...]] = {
    "nvidia-two-cards": (RTX_4090, TESLA_T4),
    "nvidia-container": (
        replace(
            RTX_4090,
            device_files=("/dev/nvidiactl", "/dev/nvidia1"),
            problem="its device files are missing: /dev/nvidiactl, /dev/nvidia1",
        ),
        replace(
            TESLA_T4,
            device_files=("/dev/nvidiactl", "/dev/nvidia0"),
            problem="its device files are missing: /dev/nvidiactl, /dev/nvidia0",
        ),
    ),
    "nvidia-no-driver": (
        DRIVERLESS,
        replace(
            DRIVERLESS,
            device_id="pci-0000:02:00.0",
            name="GeForce GTX 1060",
            reported_name="GP106 [GeForce GTX 1060 6GB]",
            chip="10de:1c03",
            driver="nouveau",
            problem="the driver nouveau is bound to it, but compute requires the driver nvidia",
        ),
        replace(
            DRIVERLESS,
            device_id="pci-0000:03:00.0",
            name="Tesla T4",
            reported_name="TU104GL [Tesla T4]",
            chip="10de:1eb8",
            driver="vfio-pci",
            problem="it is reserved for virtual machines (driver vfio-pci)",
        ),
        replace(
            DRIVERLESS,
            device_id="pci-0000:04:00.0",
            name="NVIDIA 10de:2fff",
            reported_name="",
            chip="10de:2fff",
        ),
    ),
    "jetson-orin": (ORIN,),
    "rk3588-kbase": (),
    "empty-sys": (),
}


@pytest.mark.parametrize("machine", FOUND)
def test_finds_what_the_machine_has(machine: str) -> None:
    report = find_devices(machine, "nvidia")
    assert tuple(replace(device, figures=Figures()) for device in report.devices) == FOUND[machine]
    assert report.problems == ()


def test_cards_whose_files_are_forbidden_cannot_be_used() -> None:
    for device in find_devices("nvidia-two-cards", "nvidia", forbidden=["/dev/nvidiactl"]).devices:
        assert device.problem == "no permission to use /dev/nvidiactl"
