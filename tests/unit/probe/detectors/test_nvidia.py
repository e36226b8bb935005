"""What machines with NVIDIA's GPUs may hold besides ``tests/fixtures/machines``, in small trees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree

from potluck.host.system import System
from potluck.probe.detectors.nvidia import DETECTOR
from potluck.types.hardware import DetectorReport
from potluck.types.unit import Interface

MEMINFO = "MemTotal:       65536 kB\nMemAvailable:   32768 kB"
INFORMATION = "proc/driver/nvidia/gpus/0000:01:00.0/information"


def card(address: str = "0000:01:00.0", device: str = "0x2684", **more: str) -> dict[str, str]:
    """The files of a card that NVIDIA's driver runs."""
    values = {
        "vendor": "0x10de",
        "device": device,
        "class": "0x030000",
        "uevent": "DRIVER=nvidia",
        **more,
    }
    return {f"sys/bus/pci/devices/{address}/{name}": text for name, text in values.items()}


def find(root: Path, files: Mapping[str, str | bytes | Path]) -> DetectorReport:
    return DETECTOR.find(machine_tree(root, files))


def is_queried(report: DetectorReport) -> bool:
    return bool(DETECTOR.queries(System(), report))


def test_nothing_is_nothing(tmp_path: Path) -> None:
    report = find(tmp_path, {})
    assert report == DetectorReport(detector="nvidia")
    assert not is_queried(report)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"class": "0x040300"}, "its sound function"),
        ({"class": "0x068000"}, "an NVSwitch"),
        ({"vendor": "0x1002"}, "a card of AMD"),
    ],
)
def test_lists_gpus_of_nvidia_only(tmp_path: Path, other: dict[str, str], reason: str) -> None:
    assert find(tmp_path, card(**other)).devices == (), reason


@pytest.mark.parametrize("driver", ["", "nouveau", "vfio-pci"])
def test_nvml_is_not_asked_without_its_driver(tmp_path: Path, driver: str) -> None:
    report = find(tmp_path, card(uevent=f"DRIVER={driver}"))
    assert report.devices[0].problem
    assert not is_queried(report)


def test_nvml_is_asked_though_device_files_are_missing(tmp_path: Path) -> None:
    # Its library makes them, if it can.
    report = find(tmp_path, card())
    assert report.devices[0].problem.startswith("its device files are missing: ")
    assert is_queried(report)


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"sys/module/nvidia/version": "550.54.14"}, "550.54.14"),
        (
            {
                "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for "
                "x86_64  550.54.14  Release Build  (dvs-builder@U16)\nGCC version:  12.2.0"
            },
            "550.54.14",
        ),
        (
            {
                "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX aarch64 Kernel Module  "
                "470.256.02  Thu May  2 14:37:44 UTC 2024"
            },
            "470.256.02",
        ),
        ({"proc/driver/nvidia/version": "something else"}, None),
        ({}, None),
    ],
)
def test_tells_the_version_of_the_driver(
    tmp_path: Path, files: dict[str, str], version: str | None
) -> None:
    (device,) = find(tmp_path, {**card(), **files}).devices
    assert dict(device.versions).get("driver") == version


def test_a_vbios_that_was_not_read_yet_is_no_version(tmp_path: Path) -> None:
    files = {INFORMATION: "Model: \t\t Tesla T4\nVideo BIOS: \t ??.??.??.??.??"}
    assert find(tmp_path, {**card(), **files}).devices[0].versions == ()


def test_a_name_from_the_driver_is_safe_to_print(tmp_path: Path) -> None:
    files = {INFORMATION: b"Model: \t\t NVIDIA\x1b[2J T4\xff\x07\nDevice Minor: \x1b\n"}
    (device,) = find(tmp_path, {**card(), **files}).devices
    assert device.reported_name == "NVIDIA [2J T4"
    assert device.name.isprintable()
    assert device.device_files == (str(tmp_path / "dev/nvidiactl"),)


def test_a_gpu_of_dgx_spark_uses_the_machines_memory(tmp_path: Path) -> None:
    files = {**card("000f:01:00.0", "0x2e12"), "proc/meminfo": MEMINFO}
    (device,) = find(tmp_path, files).devices
    assert device.device_id == "pci-000f:01:00.0"
    assert device.memory.is_shared
    assert device.memory.free_bytes == 32 * 1024**2


def test_device_files_stand_for_cards_where_the_bus_cannot_be_seen(tmp_path: Path) -> None:
    files = {f"dev/{name}": "" for name in ("nvidiactl", "nvidia0", "nvidia10", "nvidia-uvm")}
    report = find(tmp_path, files)
    assert [device.device_id for device in report.devices] == ["nvidia-0", "nvidia-10"]
    assert report.devices[1].device_files == tuple(
        str(tmp_path / "dev" / name) for name in ("nvidiactl", "nvidia10", "nvidia-uvm")
    )
    assert is_queried(report)


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        (("dev/dxg", "usr/lib/wsl/lib/libnvidia-ml.so.1"), ["nvidia-wsl"]),
        (("dev/dxg",), []),  # another maker's GPU
        (("usr/lib/wsl/lib/libnvidia-ml.so.1",), []),
    ],
)
def test_wsl_passes_through_what_nvml_will_name(
    tmp_path: Path, files: tuple[str, ...], ids: list[str]
) -> None:
    report = find(tmp_path, dict.fromkeys(files, ""))
    assert [device.device_id for device in report.devices] == ids
    assert is_queried(report) == bool(ids)


def jetson(name: str, driver: str, *compatible: str) -> dict[str, str | bytes | Path]:
    """A Tegra whose GPU is the platform device ``name``."""
    lines = [f"DRIVER={driver}"] if driver else []
    lines += [f"OF_COMPATIBLE_{number}={text}" for number, text in enumerate(compatible)]
    return {
        f"sys/devices/{name}/uevent": "\n".join(lines),
        f"sys/bus/platform/devices/{name}": Path(f"../../../devices/{name}"),
    }


@pytest.mark.parametrize(
    ("board", "gpu", "driver", "compatible", "chip"),
    [
        (
            "nvidia,jetson-nano\0nvidia,tegra210",
            "57000000.gpu",
            "gk20a",
            "nvidia,gm20b",
            "tegra210",
        ),
        (
            "nvidia,p2771-0000\0nvidia,tegra186",
            "17000000.gp10b",
            "gk20a",
            "nvidia,gp10b",
            "tegra186",
        ),
        (
            "nvidia,p2972-0000\0nvidia,tegra194",
            "17000000.gv11b",
            "gk20a",
            "nvidia,gv11b",
            "tegra194",
        ),
        ("nvidia,tegra234\0nvidia,tegra23x", "17000000.ga10b", "nvgpu", "nvidia,ga10b", "tegra234"),
        ("nvidia,tegra234", "gpu.0", "nvgpu", "", "tegra234"),
        ("acme,board", "57000000.gpu", "gk20a", "nvidia,tegra210-gm20b", "gm20b"),
    ],
)
@pytest.mark.parametrize("tree", ["proc/device-tree", "sys/firmware/devicetree/base"])
def test_finds_the_gpu_of_every_jetson(
    tmp_path: Path, tree: str, board: str, gpu: str, driver: str, compatible: str, chip: str
) -> None:
    files = jetson(gpu, driver, *filter(None, [compatible]))
    files |= {f"{tree}/compatible": f"{board}\0".encode(), "proc/meminfo": MEMINFO}
    files |= {"dev/nvhost-gpu": "", "dev/nvmap": ""}
    report = find(tmp_path, files)
    (device,) = report.devices
    assert (device.chip, device.driver, device.problem) == (chip, driver, "")
    assert device.name == chip
    assert device.memory.is_shared
    assert is_queried(report)


@pytest.mark.parametrize(
    ("compatible", "capability"),
    [
        ("nvidia,tegra210-gm20b", (5, 3)),
        ("nvidia,gp10b", (6, 2)),
        ("nvidia,gv11b", (7, 2)),
        ("nvidia,ga10b", (8, 7)),
        ("nvidia,gz99z", None),
    ],
)
def test_the_compute_capability_of_a_jetson_is_its_chips(
    tmp_path: Path, compatible: str, capability: tuple[int, int] | None
) -> None:
    (device,) = find(tmp_path, jetson("17000000.gpu", "gk20a", compatible)).devices
    assert device.compute_capability == capability


def test_a_jetson_of_newer_releases_has_its_file_elsewhere(tmp_path: Path) -> None:
    files = jetson("17000000.gpu", "gk20a", "nvidia,ga10b")
    (device,) = find(tmp_path, {**files, "dev/nvgpu/igpu0/ctrl": "", "dev/nvmap": ""}).devices
    assert device.device_files[0] == str(tmp_path / "dev/nvgpu/igpu0/ctrl")
    assert device.problem == ""


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        ("", "no kernel driver is bound to it"),
        ("nouveau", "the driver nouveau is bound to it, but compute requires NVIDIA's nvgpu"),
        ("gk20a", "its device files are missing: {0}/dev/nvhost-gpu, {0}/dev/nvmap"),
    ],
)
def test_says_why_a_jetson_cannot_compute(tmp_path: Path, driver: str, problem: str) -> None:
    (device,) = find(tmp_path, jetson("17000000.gpu", driver, "nvidia,ga10b")).devices
    assert device.problem == problem.format(tmp_path)


def test_other_boards_have_no_gpu_of_nvidia(tmp_path: Path) -> None:
    files = jetson("fb000000.gpu", "panthor", "rockchip,rk3588-mali", "arm,mali-valhall-csf")
    assert find(tmp_path, files).devices == ()


def test_one_card_needs_no_address(tmp_path: Path) -> None:
    one: dict[str, str | bytes | Path] = {**card()}
    (device,) = find(tmp_path / "one", one).devices
    assert device.interfaces == (Interface(api="cuda", address=""),)
    reserved = card("0000:02:00.0", uevent="DRIVER=vfio-pci")
    first, second = find(tmp_path / "reserved", one | reserved).devices
    assert (first.interfaces, second.interfaces) == (device.interfaces, ())
    both = find(tmp_path / "two", one | card("0000:02:00.0", "0x2684")).devices
    assert [each.interfaces[0].address for each in both] == ["0000:01:00.0", "0000:02:00.0"]
