"""Sizes of last-level caches, from trees as kernels show them."""

from __future__ import annotations

from pathlib import Path

from potluck.host.cores import cache_bytes
from potluck.host.system import System

MIB = 1 << 20


def add(sys: Path, core: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
    folder = sys / f"devices/system/cpu/cpu{core}/cache/index{index}"
    folder.mkdir(parents=True)
    for name, text in (
        ("level", str(level)),
        ("type", kind),
        ("size", size),
        ("shared_cpu_map", shared),
    ):
        (folder / name).write_text(text + "\n")


def test_one_cache_for_all_cores(tmp_path: Path) -> None:
    for core in range(4):
        add(tmp_path, core, 0, 1, "Data", "32K", f"{1 << core:x}")
        add(tmp_path, core, 1, 1, "Instruction", "64K", f"{1 << core:x}")
        add(tmp_path, core, 2, 3, "Unified", "32768K", "f")
    assert cache_bytes(System(sys=tmp_path), range(4)) == 32 * MIB


def test_a_cache_per_cluster_of_which_only_some_cores_may_be_used(tmp_path: Path) -> None:
    for core in range(8):
        add(tmp_path, core, 0, 2, "Unified", "512K", f"{1 << core:x}")
        add(tmp_path, core, 1, 3, "Unified", "16M", "0f" if core < 4 else "f0")
    assert cache_bytes(System(sys=tmp_path), range(8)) == 32 * MIB
    assert cache_bytes(System(sys=tmp_path), [5, 6]) == 16 * MIB


def test_big_and_little_cores_without_a_common_cache(tmp_path: Path) -> None:
    add(tmp_path, 0, 0, 2, "Unified", "512K", "3")
    add(tmp_path, 1, 0, 2, "Unified", "512K", "3")
    add(tmp_path, 4, 0, 2, "Unified", "1024K", "30")
    assert cache_bytes(System(sys=tmp_path), [0, 1, 4, 5]) == MIB + MIB // 2


def test_a_kernel_that_does_not_say(tmp_path: Path) -> None:
    assert cache_bytes(System(sys=tmp_path), range(4)) is None
    add(tmp_path, 0, 0, 2, "Unified", "", "3")
    add(tmp_path, 1, 0, 2, "Unified", "unknown", "3")
    assert cache_bytes(System(sys=tmp_path), range(4)) is None
