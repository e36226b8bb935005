from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.machines.sysfs_trees import make_system, write_files

from potluck.probe.detectors.amd import KfdNode, gpu_nodes

NODES = "sys/class/kfd/kfd/topology/nodes"

# One of the partitions of a MI300X in ROCm/k8s-device-plugin, testdata/topo-mi300-cpx, shortened.
PARTITION = """\
cpu_cores_count 0
simd_count 152
gfx_target_version 90402
vendor_id 4098
location_id 1281
domain 0
drm_render_minor 129
max_engine_clk_fcompute 2100
fw_version 177
unique_id 16404946649897475633
"""
NODE = KfdNode(
    rank=0,
    num_cpu_cores=0,
    simd_count=152,
    gfx_target_version=90402,
    domain=0,
    location_id=1281,
    render_minor=129,
    max_engine_clock_hz=2_100_000_000,
    memory_bytes=None,
    memory_width_bits=None,
    max_memory_clock_hz=None,
    firmware=177,
)


def test_reads_gpus_in_order_of_number_and_leaves_out_cpus(tmp_path: Path) -> None:
    write_files(
        tmp_path / NODES,
        {
            "0/properties": "cpu_cores_count 96\nsimd_count 0\nvendor_id 0\n",
            "10/properties": PARTITION.replace("minor 129", "minor 130"),
            "2/properties": PARTITION,
        },
    )
    assert gpu_nodes(make_system(tmp_path)) == (NODE, replace(NODE, rank=1, render_minor=130))


def test_memory_is_the_sum_of_the_banks_of_the_gpu(tmp_path: Path) -> None:
    bank = "heap_type {}\nsize_in_bytes {}\nflags 0\nwidth {}\nmem_clk_max {}\n"
    write_files(
        tmp_path / NODES / "1",
        {
            "properties": PARTITION,
            "mem_banks/0/properties": bank.format(1, 268_435_456, 256, 1000),
            "mem_banks/1/properties": bank.format(2, 8_304_721_920, 256, 1000),
            "mem_banks/2/properties": bank.format(0, 1 << 35, 64, 3200),
        },
    )
    (node,) = gpu_nodes(make_system(tmp_path))
    assert node.memory_bytes == 268_435_456 + 8_304_721_920
    assert node.memory_width_bits == 256
    assert node.max_memory_clock_hz == 1_000_000_000


def test_numbers_that_cannot_be_are_not_known(tmp_path: Path) -> None:
    properties = PARTITION.replace("152", "1" * 19).replace("fcompute 2100", "fcompute 99999999")
    write_files(
        tmp_path / NODES,
        {
            "1/properties": properties,
            "2/properties": PARTITION.replace("fcompute 2100", "fcompute 99999999"),
            "2/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {1 << 60}\nwidth x\n",
        },
    )
    assert gpu_nodes(make_system(tmp_path)) == (replace(NODE, max_engine_clock_hz=None),)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90402, "gfx942"),
        (90010, "gfx90a"),
        (90012, "gfx90c"),
        (80003, "gfx803"),
        (100306, "gfx1036"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
        (0, ""),
        (90099, ""),
        (4_294_967_295, ""),
    ],
)
def test_names_the_chip_as_the_compiler_does(version: int, name: str) -> None:
    assert replace(NODE, gfx_target_version=version).gfx_name == name


@pytest.mark.parametrize(
    ("domain", "location_id", "address", "is_there"),
    [
        (0, 1280, "0000:05:00.0", True),
        (0, 1280 + 7, "0000:05:00.0", True),
        (0, 7 << 28 | 1280, "0000:05:00.0", True),
        (0, 50688, "0000:c6:00.0", True),
        (0x10000, 256, "10000:01:00.0", True),
        (0, 1280, "0001:05:00.0", False),
        (0, 1280, "0000:06:00.0", False),
        (0, 1280, "0000:05:01.0", False),
        (0, 1280, "rubbish", False),
        (0, 1280, "0000:zz:00.0", False),
    ],
)
def test_says_where_it_is_on_the_bus(
    domain: int, location_id: int, address: str, is_there: bool
) -> None:
    assert replace(NODE, domain=domain, location_id=location_id).is_at(address) is is_there
