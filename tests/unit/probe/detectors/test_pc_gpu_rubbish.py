"""Whatever is in one of the files: no exception, and no absurd size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.machines.sysfs_trees import add_gpu, make_system, write_files

from potluck.probe.detectors import amd, intel
from potluck.types.hardware import Device

MACHINE_BYTES = 32_000_000 * 1024
LARGEST_BYTES = (16 << 40) + MACHINE_BYTES

NODE = """\
cpu_cores_count 0
simd_count 48
gfx_target_version {version}
vendor_id 4098
location_id {location}
domain 0
drm_render_minor {minor}
max_engine_clk_fcompute 2000
fw_version 100
"""
MEMORY = {
    "mem_info_vram_total": "8589934592\n",
    "mem_info_vram_used": "589934592\n",
    "mem_info_gtt_total": "16000000000\n",
    "mem_info_gtt_used": "1000000000\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A card and an APU of AMD, one GPU of AMD in partitions, a card and an integrated of Intel."""
    nodes = {
        "1": (110000, 0x300, 128),
        "2": (110003, 0x400, 129),
        "3": (90402, 0x500, 130),
        "4": (90402, 0x501, 131),
    }
    for name, (version, location, minor) in nodes.items():
        properties = NODE.format(version=version, location=location, minor=minor)
        bank = "heap_type 1\nsize_in_bytes 8589934592\nflags 0\nwidth 256\nmem_clk_max 1000\n"
        directory = tmp_path / "sys/class/kfd/kfd/topology/nodes" / name
        write_files(directory, {"properties": properties, "mem_banks/0/properties": bank})
    write_files(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 32000000 kB\nMemAvailable: 20000000 kB\n",
            "files/usr/share/libdrm/amdgpu.ids": "744C,\tC8,\tAMD Radeon RX 7900 XTX\n",
            "sys/module/amdgpu/version": "6.12.12\n",
            "dev/kfd": "",
        },
    )
    texts = {
        "product_name": "Instinct MI300X\n",
        "resource": "0x6000000000 0x67ffffffff 0x14220c\n",
        "revision": "0xc8\n",
        "uevent": "ID_MODEL_FROM_DATABASE=Navi 31\n",
        "vbios_version": "113-EXAMPLE-001\n",
    }
    files = {**MEMORY, **texts}
    add_gpu(tmp_path, "0000:03:00.0", "1002:744c", "amdgpu", render="renderD128", files=files)
    add_gpu(tmp_path, "0000:04:00.0", "1002:15bf", "amdgpu", render="renderD129", files=files)
    add_gpu(tmp_path, "0000:05:00.0", "1002:74a1", "amdgpu", render="renderD130", files=files)
    arc = {"tile0/physical_vram_size_bytes": "8589934592\n", "uevent": "PCI_ID=8086:E20B\n"}
    add_gpu(tmp_path, "0000:06:00.0", "8086:e20b", "xe", render="renderD132", files=arc)
    old_arc = {"drm/card4/lmem_total_bytes": "8589934592\n"}
    add_gpu(tmp_path, "0000:07:00.0", "8086:56a0", "i915", render="renderD133", files=old_arc)
    add_gpu(tmp_path, "0000:00:02.0", "8086:9bc5", "i915", render="renderD134")
    return tmp_path


def remove(path: Path) -> None:
    path.unlink()


def replace_with_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


CORRUPTIONS = {
    "missing": remove,
    "a directory": replace_with_directory,
    "empty": write(b""),
    "binary": write(bytes(range(256)) * 16),
    "huge": write(b"9" * 5000),
    "large": write(b"18446744073709551615\n"),
    "negative": write(b"-1\n"),
    "hexadecimal": write(b"0xffffffffffffffff\n"),
    "many lines": write(b"size_in_bytes 18446744073709551615\nsimd_count 9\n:,=\n" * 2000),
}


def find_all(root: Path) -> list[Device]:
    system = make_system(root)
    return [*amd.DETECTOR.find(system).devices, *intel.DETECTOR.find(system).devices]


def test_the_machine_is_whole_before_it_is_spoilt(root: Path) -> None:
    """Otherwise the other tests would show nothing."""
    found = {device.device_id: device for device in find_all(root)}
    assert sorted(found) == [
        "pci-0000:00:02.0",
        "pci-0000:03:00.0",
        "pci-0000:04:00.0",
        "pci-0000:05:00.0-partition-0",
        "pci-0000:05:00.0-partition-1",
        "pci-0000:06:00.0",
        "pci-0000:07:00.0",
    ]
    for device in found.values():
        assert device.memory.total_bytes is not None
        assert device.driver


@pytest.mark.slow
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_no_file_that_is_spoilt_stops_a_layer_or_makes_it_absurd(
    root: Path, corruption: str
) -> None:
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    assert len(files) > 40
    for file in files:
        content = file.read_bytes()
        CORRUPTIONS[corruption](file)
        for device in find_all(root):
            assert_is_plausible(device)
        if file.is_dir():
            file.rmdir()
        file.write_bytes(content)


def assert_is_plausible(device: Device) -> None:
    total, free = device.memory.total_bytes, device.memory.free_bytes
    assert total is None or 0 < total <= LARGEST_BYTES
    assert free is None or 0 <= free <= LARGEST_BYTES
    assert total is None or free is None or free <= total
    texts = [device.name, device.reported_name, device.chip, *dict(device.versions).values()]
    assert all(text.isprintable() and len(text) <= 100 for text in texts)
    assert device.name
