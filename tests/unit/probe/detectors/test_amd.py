"""The detector of AMD on trees that no fixture of a whole machine has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.machines.sysfs_trees import add_gpu, make_system, write_files

from potluck.probe.detectors.amd import DETECTOR
from potluck.types.hardware import Device

NODE = """\
cpu_cores_count {cores}
simd_count 48
gfx_target_version {version}
vendor_id 4098
location_id {location}
domain 0
drm_render_minor {minor}
max_engine_clk_fcompute 2000
"""
CARD = {"mem_info_vram_total": "8589934592\n", "mem_info_vram_used": "589934592\n"}
APU = {
    "mem_info_vram_total": "536870912\n",
    "mem_info_vram_used": "36870912\n",
    "mem_info_gtt_total": "16000000000\n",
    "mem_info_gtt_used": "1000000000\n",
}
MEMINFO = "MemTotal: 32000000 kB\nMemAvailable: 20000000 kB\n"


def kfd_node(number: int, version: int, *, cores: int = 0, minor: int = 128) -> Mapping[str, str]:
    path = f"sys/class/kfd/kfd/topology/nodes/{number}/properties"
    content = NODE.format(cores=cores, version=version, location=0x300 + minor - 128, minor=minor)
    return {path: content}


def find_one(root: Path) -> Device:
    (device,) = DETECTOR.find(make_system(root)).devices
    return device


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path, {"proc/meminfo": MEMINFO, "dev/kfd": ""})
    return tmp_path


@pytest.mark.parametrize("version", [80001, 90002, 90012, 100303, 100306, 110003, 110501])
def test_chips_of_apus_share_the_machines_memory(root: Path, version: int) -> None:
    write_files(root, kfd_node(1, version))
    add_gpu(root, "0000:03:00.0", "1002:1638", "amdgpu", render="renderD128", files=APU)
    memory = find_one(root).memory
    assert memory.is_shared
    assert memory.total_bytes == 536_870_912 + 16_000_000_000
    assert memory.free_bytes == 500_000_000 + 15_000_000_000


@pytest.mark.parametrize("version", [80003, 90000, 90010, 100300, 110000, 120001])
def test_chips_of_cards_have_memory_of_their_own(root: Path, version: int) -> None:
    write_files(root, kfd_node(1, version))
    add_gpu(root, "0000:03:00.0", "1002:73bf", "amdgpu", render="renderD128", files={**APU, **CARD})
    memory = find_one(root).memory
    assert not memory.is_shared
    assert (memory.total_bytes, memory.free_bytes) == (8 << 30, 8_000_000_000)


def test_a_node_with_cpu_cores_is_an_apu_whatever_its_chip(root: Path) -> None:
    write_files(root, kfd_node(0, 0, cores=8))
    add_gpu(root, "0000:03:00.0", "1002:15dd", "amdgpu", render="renderD128", files=APU)
    assert find_one(root).memory.is_shared


@pytest.mark.parametrize(
    ("resource", "is_shared"),
    [
        ("0x0 0x0 0x0\n0x1000 0x1fff 0x200\n", True),
        ("0x6000000000 0x67ffffffff 0x14220c\n", False),
        ("rubbish\n", False),
    ],
)
def test_a_mi300_without_memory_in_its_first_region_is_the_apu(
    root: Path, resource: str, is_shared: bool
) -> None:
    write_files(root, kfd_node(1, 90402))
    files = {**CARD, "resource": resource}
    add_gpu(root, "0000:03:00.0", "1002:74a0", "amdgpu", render="renderD128", files=files)
    memory = find_one(root).memory
    assert memory.is_shared is is_shared
    assert memory.total_bytes == (32_000_000 * 1024 if is_shared else 8 << 30)


def test_gtt_is_no_more_than_the_machine_has(root: Path) -> None:
    """As where a user had set 105 GiB of GTT beside a set-aside of 96 of 128 GiB
    (GpuZelenograd/memtest_vulkan, issue 66)."""
    write_files(root, kfd_node(1, 110501))
    files = {**APU, "mem_info_gtt_total": "113246208000\n", "mem_info_gtt_used": "0\n"}
    add_gpu(root, "0000:03:00.0", "1002:1586", "amdgpu", render="renderD128", files=files)
    memory = find_one(root).memory
    assert memory.total_bytes == 536_870_912 + 32_000_000 * 1024
    assert memory.free_bytes == 500_000_000 + 20_000_000 * 1024


def test_a_full_card_has_nothing_free_and_an_overfull_one_is_not_believed(root: Path) -> None:
    full = {**CARD, "mem_info_vram_used": CARD["mem_info_vram_total"]}
    overfull = {**CARD, "mem_info_vram_used": "8589934593\n"}
    add_gpu(root, "0000:03:00.0", "1002:73bf", "amdgpu", render="renderD128", files=full)
    add_gpu(root, "0000:04:00.0", "1002:73bf", "amdgpu", render="renderD129", files=overfull)
    free = [device.memory.free_bytes for device in DETECTOR.find(make_system(root)).devices]
    assert free == [0, None]


def test_without_files_of_memory_its_size_is_not_known(root: Path) -> None:
    add_gpu(root, "0000:03:00.0", "1002:73bf", "amdgpu", render="renderD128")
    device = find_one(root)
    assert (device.memory.total_bytes, device.memory.free_bytes) == (None, None)
    assert "mem_info_vram_total" in device.memory.source
    assert device.problem == ""


def test_partitions_of_one_function_are_devices_of_their_own(root: Path) -> None:
    nodes = {**kfd_node(2, 90402), **kfd_node(3, 90402, minor=129)}
    bank = "heap_type 1\nsize_in_bytes 25000000000\n"
    banks = {path.replace("properties", "mem_banks/0/properties"): bank for path in nodes}
    write_files(root, {**nodes, **banks, "dev/dri/renderD129": ""})
    add_gpu(root, "0000:03:00.0", "1002:74a1", "amdgpu", render="renderD128", files=CARD)
    devices = DETECTOR.find(make_system(root)).devices
    assert [(device.device_id, device.device_files[0]) for device in devices] == [
        ("pci-0000:03:00.0-partition-0", str(root / "dev/dri/renderD128")),
        ("pci-0000:03:00.0-partition-1", str(root / "dev/dri/renderD129")),
    ]
    for device in devices:
        assert device.chip == "gfx942"
        assert device.memory.total_bytes == 25_000_000_000
        assert device.memory.free_bytes == 25_000_000_000 - 589_934_592


def test_a_node_is_joined_by_its_render_node_where_the_place_is_not_told(root: Path) -> None:
    (path, content), *_ = kfd_node(1, 110000).items()
    write_files(root, {path: content.replace("location_id 768\n", "")})
    add_gpu(root, "0000:0b:00.0", "1002:744c", "amdgpu", render="renderD128", files=CARD)
    assert find_one(root).chip == "gfx1100"


def test_without_dev_kfd_only_rocm_is_missing(root: Path) -> None:
    (root / "dev/kfd").unlink()
    write_files(root, kfd_node(1, 110000))
    add_gpu(root, "0000:03:00.0", "1002:744c", "amdgpu", render="renderD128", files=CARD)
    report = DETECTOR.find(make_system(root))
    assert [device.problem for device in report.devices] == [""]
    missing = root / "dev/kfd"
    assert report.problems == (f"ROCm cannot be used: its device file {missing} is missing",)


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        ("", "no kernel driver is bound to it"),
        ("vfio-pci", "its driver vfio-pci reserves it for virtual machines"),
        ("amdgpu", "its driver amdgpu has not created a device file"),
    ],
)
def test_says_why_a_gpu_without_render_node_is_of_no_use(
    root: Path, driver: str, problem: str
) -> None:
    add_gpu(root, "0000:03:00.0", "1002:744c", driver)
    assert find_one(root).problem == problem


def test_radeons_cards_are_listed_without_sizes(root: Path) -> None:
    add_gpu(root, "0000:03:00.0", "1002:6798", "radeon", render="renderD128")
    device = find_one(root)
    assert (device.name, device.chip, device.problem) == ("1002:6798", "1002:6798", "")
    assert device.memory.source == "no size reported by radeon"


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"product_name": "Instinct MI210\n", "revision": "0xc8\n"}, "Instinct MI210"),
        ({"product_name": "\n", "revision": "0xc8\n"}, "AMD Radeon RX 7900 XTX"),
        ({"revision": "0xcc\n"}, "AMD Radeon RX 7900 XT"),
        ({"revision": "0x00\n"}, ""),
        ({}, ""),
    ],
)
def test_the_name_is_the_cards_own_and_then_libdrms_by_revision(
    root: Path, files: Mapping[str, str], name: str
) -> None:
    ids = (
        "# comment\n1.0.0\n744C,\tC8,\tAMD Radeon RX 7900 XTX\n744C,\tCC,\tAMD Radeon RX 7900 XT\n"
    )
    write_files(root, {"files/usr/share/libdrm/amdgpu.ids": ids})
    add_gpu(root, "0000:03:00.0", "1002:744c", "amdgpu", files=files)
    assert find_one(root).reported_name == name


def test_amds_own_packages_have_the_list_of_names_too(root: Path) -> None:
    ids = "744C,\tC8,\tAMD Radeon RX 7900 XTX\n"
    write_files(root, {"files/opt/amdgpu/share/libdrm/amdgpu.ids": ids})
    add_gpu(root, "0000:03:00.0", "1002:744c", "amdgpu", files={"revision": "0xc8\n"})
    assert find_one(root).name == "Radeon RX 7900 XTX"


def test_only_amds_displays_and_accelerators_are_its_gpus(root: Path) -> None:
    add_gpu(root, "0000:03:00.0", "1002:740f", "amdgpu", device_class="0x120000")
    add_gpu(root, "0000:03:00.1", "1002:ab30", "snd_hda_intel", device_class="0x040300")
    add_gpu(root, "0000:04:00.0", "10de:2684", "nvidia")
    assert [device.chip for device in DETECTOR.find(make_system(root)).devices] == ["1002:740f"]


def test_a_module_built_apart_tells_its_version(root: Path) -> None:
    files = {**CARD, "vbios_version": "113-EXAMPLE-001\n"}
    write_files(root, {"sys/module/amdgpu/version": "6.12.12\n"})
    add_gpu(root, "0000:03:00.0", "1002:744c", "amdgpu", files=files)
    assert find_one(root).versions == (("driver", "6.12.12"), ("vbios", "113-EXAMPLE-001"))


def test_compute_units_that_an_apus_firmware_counts_are_not_believed(root: Path) -> None:
    """The chip is one that the table knows, so that the rate of another count would be known."""
    write_files(root, kfd_node(1, 110003))
    add_gpu(root, "0000:03:00.0", "1002:15bf", "amdgpu", render="renderD128", files=APU)
    assert find_one(root).figures.f32_operations_per_second.value is not None
    write_files(root, kfd_node(1, 110003, cores=8))
    assert find_one(root).figures.f32_operations_per_second.value is None
