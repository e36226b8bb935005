"""Which device of OpenCL is which device of the bus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from support.engines.fake_backends.behaviour import device

from potluck.probe.detectors.opencl import match_opencl
from potluck.probe.detectors.other import UNUSED
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory
from potluck.types.unit import Interface

VENDORS = "/etc/OpenCL/vendors"
NO_MEMORY = DeviceMemory(total_bytes=None, free_bytes=None, is_shared=False, source="unknown")


def bus(device_id: str, make: str = "NVIDIA", **more: object) -> Device:
    return replace(device(device_id), make=make, **more)  # type: ignore[arg-type]


def shown(
    icd: str, number: int = 0, *, make: str = "NVIDIA", at: str = "", **more: object
) -> Device:
    device_id = f"pci-{at}" if at else f"opencl-{icd}-{number}"
    interface = Interface(api="opencl", address=f"{VENDORS}/{icd}.icd#0:{number}")
    return bus(device_id, make, interfaces=(interface,), **more)


def match(others: Sequence[Device], found: Sequence[Device]) -> dict[str, list[str]]:
    """The devices that there are, with the files of the drivers that reach them."""
    return {
        each.device_id: [
            interface.address.removeprefix(f"{VENDORS}/") for interface in each.interfaces
        ]
        for report in match_opencl(reports(others, found))
        for each in report.devices
    }


def reports(others: Sequence[Device], found: Sequence[Device]) -> list[DetectorReport]:
    return [
        DetectorReport(detector="nvidia", devices=tuple(others)),
        DetectorReport(detector="opencl", devices=tuple(found), problems=("x.icd: hangs",)),
    ]


def test_by_the_place_on_the_bus() -> None:
    others = [bus("pci-0000:01:00.0"), bus("pci-0000:02:00.0"), bus("pci-0000:03:00.0", "AMD")]
    found = [
        shown("nvidia", 0, at="0000:02:00.0"),
        shown("nvidia", 1, at="0000:01:00.0"),
        shown("amd", 0, make="AMD", at="0000:03:00.0"),
    ]
    assert match(others, found) == {
        "pci-0000:01:00.0": ["nvidia.icd#0:1"],
        "pci-0000:02:00.0": ["nvidia.icd#0:0"],
        "pci-0000:03:00.0": ["amd.icd#0:0"],
    }


def test_by_the_make_where_there_is_one_of_each() -> None:
    mali, intel = bus("of-fb000000.gpu", "Arm Mali"), bus("pci-0000:00:02.0", "Intel")
    found = [shown("mali", make="Arm Mali"), shown("intel", make="Intel")]
    assert match([mali, intel], found) == {
        "of-fb000000.gpu": ["mali.icd#0:0"],
        "pci-0000:00:02.0": ["intel.icd#0:0"],
    }


def test_several_drivers_of_one_device_in_their_order() -> None:
    mali = bus("of-fb000000.gpu", "Arm Mali")
    found = [shown("mali", make="Arm Mali"), shown("rusticl", make="Arm Mali")]
    assert match([mali], found) == {"of-fb000000.gpu": ["mali.icd#0:0", "rusticl.icd#0:0"]}


def test_other_interfaces_stay_first() -> None:
    cuda = Interface(api="cuda", address="GPU-1")
    card = bus("pci-0000:01:00.0", interfaces=(cuda,))
    (report, _) = match_opencl(reports([card], [shown("nvidia", at="0000:01:00.0")]))
    assert [interface.api for interface in report.devices[0].interfaces] == ["cuda", "opencl"]


def test_between_several_no_guess_is_made() -> None:
    cards = [bus("pci-0000:01:00.0", "AMD"), bus("pci-0000:02:00.0", "AMD")]
    one, two = shown("amd", 0, make="AMD"), shown("amd", 1, make="AMD")
    unmatched: dict[str, list[str]] = {"pci-0000:01:00.0": [], "pci-0000:02:00.0": []}
    assert match(cards, [one]) == unmatched | {"opencl-amd-0": ["amd.icd#0:0"]}
    assert match(cards[:1], [one, two]) == {
        "pci-0000:01:00.0": [],
        "opencl-amd-0": ["amd.icd#0:0"],
        "opencl-amd-1": ["amd.icd#0:1"],
    }


def test_the_one_that_is_left() -> None:
    """A card by its place, and so the other, whose place the driver does not tell."""
    cards = [bus("pci-0000:01:00.0", "AMD"), bus("pci-0000:02:00.0", "AMD")]
    found = [shown("amd", 0, make="AMD"), shown("amd", 1, make="AMD", at="0000:01:00.0")]
    assert match(cards, found) == {
        "pci-0000:01:00.0": ["amd.icd#0:1"],
        "pci-0000:02:00.0": ["amd.icd#0:0"],
    }


def test_a_device_that_cannot_be_used_is_not_what_opencl_shows() -> None:
    """The card of a virtual machine beside the one that is used here."""
    kept = bus("pci-0000:01:00.0", "AMD", problem="its driver vfio-pci keeps it")
    used = bus("pci-0000:02:00.0", "AMD")
    assert match([kept, used], [shown("amd", make="AMD")]) == {
        "pci-0000:01:00.0": [],
        "pci-0000:02:00.0": ["amd.icd#0:0"],
    }
    assert match([kept], [shown("amd", make="AMD")]) == {"pci-0000:01:00.0": ["amd.icd#0:0"]}


def test_a_known_place_is_not_another_place() -> None:
    """And where nothing shows the bus, as in WSL, the make decides after all."""
    found = [shown("nvidia", at="0000:07:00.0")]
    assert match([bus("pci-0000:01:00.0")], found) == {
        "pci-0000:01:00.0": [],
        "pci-0000:07:00.0": ["nvidia.icd#0:0"],
    }
    assert match([bus("nvidia-wsl")], found) == {"nvidia-wsl": ["nvidia.icd#0:0"]}


def test_what_no_other_layer_knows_is_one_device_for_all_its_drivers() -> None:
    found = [
        shown("amd", make="AMD", at="0000:03:00.0"),
        shown("rusticl", make="AMD", at="0000:03:00.0"),
    ]
    assert match([], found) == {"pci-0000:03:00.0": ["amd.icd#0:0", "rusticl.icd#0:0"]}


def test_a_card_that_is_cut_into_parts() -> None:
    parts = [bus(f"pci-0000:01:00.0-mig-{n}-0") for n in (7, 8)]
    (nvidia, opencl) = match_opencl(reports(parts, [shown("nvidia", at="0000:01:00.0")]))
    assert nvidia.devices == tuple(parts)
    assert opencl.devices == ()
    assert opencl.problems == (
        "x.icd: hangs",
        f"{VENDORS}/nvidia.icd: RTX 4090 at 0000:01:00.0 is one of 2 devices there, and OpenCL "
        "does not report which",
    )
    assert match(parts[:1], [shown("nvidia", at="0000:01:00.0")]) == {
        "pci-0000:01:00.0-mig-7-0": ["nvidia.icd#0:0"]
    }


def test_software_and_cpus_belong_to_nothing() -> None:
    intel, cpu = bus("pci-0000:00:02.0", "Intel"), bus("cpu", "Intel", kind=DeviceKind.CPU)
    pocl = shown("pocl", make="Intel", is_software=True)
    assert match([intel, cpu], [pocl]) == {
        "pci-0000:00:02.0": [],
        "cpu": [],
        "opencl-pocl-0": ["pocl.icd#0:0"],
    }
    assert match([cpu], [shown("intel", make="Intel")])["cpu"] == []
    assert match([bus("pci-0000:01:00.0", "")], [shown("x", make="")])["pci-0000:01:00.0"] == []


def test_what_opencl_adds_to_a_device() -> None:
    memory = DeviceMemory(total_bytes=8 << 30, free_bytes=None, is_shared=False, source="OpenCL")
    arc = bus("pci-0000:03:00.0", "Intel", memory=NO_MEMORY)
    pi = bus("of-1002000000.v3d", "Broadcom", problem=UNUSED)
    late = bus("of-2.gpu", "Vivante", problem=f"{UNUSED}; no kernel driver is bound to it")
    found = [
        shown("intel", make="Intel", at="0000:03:00.0", memory=memory),
        shown("rusticl", 0, make="Broadcom", memory=memory),
        shown("rusticl", 1, make="Vivante"),
    ]
    (report, _) = match_opencl(reports([arc, pi, late], found))
    assert [each.memory for each in report.devices] == [memory, pi.memory, late.memory]
    assert [each.problem for each in report.devices] == ["", "", late.problem]


def test_without_opencl_nothing_changes() -> None:
    cards = (DetectorReport(detector="nvidia", devices=(bus("pci-0000:01:00.0"),)),)
    assert match_opencl(cards) == cards
