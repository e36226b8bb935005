"""The detector of Intel on trees that no fixture of a whole machine has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.machines.sysfs_trees import add_gpu, make_system, write_files

from potluck.host.child import ChildAnswer, ChildFailure, ChildOutcome, Failure
from potluck.probe.detectors.intel import DETECTOR, merge
from potluck.types.hardware import Device, DeviceMemory


def find_one(root: Path) -> Device:
    (device,) = DETECTOR.find(make_system(root)).devices
    return device


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_files(tmp_path, {"proc/meminfo": "MemTotal: 32000000 kB\nMemAvailable: 20000000 kB\n"})
    return tmp_path


def test_tiles_are_added_up(root: Path) -> None:
    files = {f"tile{number}/physical_vram_size_bytes": "68719476736\n" for number in (0, 1)}
    add_gpu(root, "0000:3a:00.0", "8086:0bd5", "xe", render="renderD128", files=files)
    assert find_one(root).memory.total_bytes == 137_438_953_472


def test_intels_own_build_of_i915_tells_the_size_at_the_card(root: Path) -> None:
    files = {"drm/card1/lmem_total_bytes": "17179869184\n"}
    add_gpu(root, "0000:03:00.0", "8086:56a0", "i915", render="renderD128", files=files)
    memory = find_one(root).memory
    assert (memory.total_bytes, memory.is_shared) == (16 << 30, False)
    assert memory.source == "i915 (lmem_total_bytes), which does not report free memory"


@pytest.mark.parametrize(
    ("address", "is_shared"),
    [
        ("0000:00:02.0", True),
        ("0000:00:02.1", True),
        ("0000:00:06.0", False),
        ("0000:03:00.0", False),
        ("0001:00:02.0", False),
    ],
)
def test_the_place_tells_integrated_from_card(root: Path, address: str, is_shared: bool) -> None:
    add_gpu(root, address, "8086:46a6", "i915", render="renderD128")
    memory = find_one(root).memory
    assert memory.is_shared is is_shared
    assert memory.total_bytes == (32_000_000 * 1024 if is_shared else None)
    assert memory.free_bytes == (20_000_000 * 1024 if is_shared else None)


@pytest.mark.parametrize("size", ["0\n", "-1\n", "\n", "rubbish\n", f"{1 << 62}\n"])
def test_a_size_that_cannot_be_is_not_known(root: Path, size: str) -> None:
    files = {"tile0/physical_vram_size_bytes": size}
    add_gpu(root, "0000:03:00.0", "8086:e20b", "xe", render="renderD128", files=files)
    assert find_one(root).memory.total_bytes is None


def test_processing_accelerators_are_another_layers(root: Path) -> None:
    add_gpu(root, "0000:00:0b.0", "8086:7d1d", "intel_vpu", device_class="0x120000")
    add_gpu(root, "0000:3a:00.0", "8086:0bd5", "i915", device_class="0x038000")
    assert find_one(root).chip == "8086:0bd5"


@pytest.mark.parametrize(
    ("driver", "problem"),
    [
        ("", "no kernel driver is bound to it"),
        ("vfio-pci", "its driver vfio-pci reserves it for virtual machines"),
        ("xe", "its driver xe has not created a device file"),
    ],
)
def test_says_why_a_gpu_without_render_node_is_of_no_use(
    root: Path, driver: str, problem: str
) -> None:
    add_gpu(root, "0000:03:00.0", "8086:e20b", driver)
    assert find_one(root).problem == problem


def test_a_missing_device_file_is_the_problem(root: Path) -> None:
    add_gpu(root, "0000:03:00.0", "8086:e20b", "xe", render="renderD128")
    file = root / "dev/dri/renderD128"
    file.unlink()
    assert find_one(root).problem == f"its device file {file} is missing"


def answer(**card: object) -> ChildAnswer:
    row = {"address": "0000:03:00.0", "total_bytes": 12 << 30, "free_bytes": None, **card}
    return ChildAnswer(document={"cards": [row], "problems": []}, seconds=0.1)


def test_only_cards_that_can_be_opened_are_asked_about(root: Path) -> None:
    def queries() -> int:
        system = make_system(root)
        return len(DETECTOR.queries(system, DETECTOR.find(system)))

    add_gpu(root, "0000:00:02.0", "8086:9bc5", "i915", render="renderD128")
    add_gpu(root, "0000:04:00.0", "8086:56a0", "vfio-pci")
    assert queries() == 0
    add_gpu(root, "0000:03:00.0", "8086:e20b", "xe", render="renderD129")
    assert queries() == 1


@pytest.mark.parametrize(
    ("card", "memory"),
    [
        (
            {"free_bytes": 9 << 30},
            DeviceMemory(
                total_bytes=12 << 30,
                free_bytes=9 << 30,
                is_shared=False,
                source="xe (memory regions)",
            ),
        ),
        (
            {},
            DeviceMemory(
                total_bytes=12 << 30,
                free_bytes=None,
                is_shared=False,
                source="xe (memory regions), which reports free memory to administrators only",
            ),
        ),
        (
            {"total_bytes": 0},
            DeviceMemory(
                total_bytes=None,
                free_bytes=None,
                is_shared=True,
                source="xe reports that it has no memory of its own",
            ),
        ),
    ],
)
def test_what_the_driver_says_of_a_cards_memory_counts(
    root: Path, card: dict[str, object], memory: DeviceMemory
) -> None:
    add_gpu(root, "0000:03:00.0", "8086:e20b", "xe", render="renderD128")
    before = DETECTOR.find(make_system(root))
    after = merge(before, answer(**card))
    assert after == replace(before, devices=(replace(before.devices[0], memory=memory),))


@pytest.mark.parametrize("card", [{"total_bytes": 1 << 62}, {"total_bytes": -1}, {"address": "x"}])
def test_an_absurd_answer_changes_nothing(root: Path, card: dict[str, object]) -> None:
    add_gpu(root, "0000:03:00.0", "8086:e20b", "xe", render="renderD128")
    before = DETECTOR.find(make_system(root))
    assert merge(before, answer(**card)).devices == before.devices


def test_why_there_is_no_answer_is_a_problem_of_the_layer(root: Path) -> None:
    add_gpu(root, "0000:03:00.0", "8086:e20b", "xe", render="renderD128")
    before = DETECTOR.find(make_system(root))
    hung = ChildFailure(failure=Failure.HUNG, reason="did not respond within 20 s", seconds=20.0)
    rubbish = ChildAnswer(document={"cards": 3}, seconds=0.1)
    refused = ChildAnswer(document={"cards": [], "problems": ["xe: \x1b[31mno"]}, seconds=0.1)
    start = "the drivers do not report the memory size of the cards: "
    cases: list[tuple[ChildOutcome, str]] = [
        (hung, "did not respond within 20 s"),
        (rubbish, "the answer is invalid: Expected `array`, got `int` - at `$.cards`"),
        (refused, "xe: [31mno"),
    ]
    for outcome, reason in cases:
        after = merge(before, outcome)
        assert after.devices == before.devices
        assert after.problems == (start + reason,)
