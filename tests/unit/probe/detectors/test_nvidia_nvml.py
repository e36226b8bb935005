"""How what NVML told is joined with what the files told. Its errors: ``test_nvml_child.py``."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from potluck.host.child import ChildAnswer, ChildFailure, Failure
from potluck.probe.children.documents import NvmlCard, NvmlDocument, NvmlInstance, NvmlMemory
from potluck.probe.detectors.nvidia_nvml import merge
from potluck.types.backend import DeviceKind
from potluck.types.hardware import DetectorReport, Device, DeviceMemory

GIB = 1024**3
UNREPORTED_MEMORY = DeviceMemory(
    total_bytes=None,
    free_bytes=None,
    is_shared=False,
    source="only NVML reports it, but it did not",
)
MACHINES_OWN = DeviceMemory(
    total_bytes=8 * GIB, free_bytes=6 * GIB, is_shared=True, source="shared system memory"
)
FIRST = Device(
    device_id="pci-0000:01:00.0",
    kind=DeviceKind.GPU,
    make="NVIDIA",
    name="Tesla T4",
    reported_name="Tesla T4",
    chip="10de:1eb8",
    driver="nvidia",
    device_files=("/dev/nvidiactl", "/dev/nvidia0"),
    memory=UNREPORTED_MEMORY,
)
SECOND = replace(FIRST, device_id="pci-0000:02:00.0")
ORIN = replace(
    FIRST,
    device_id="of-17000000.gpu",
    name="Jetson AGX Orin",
    reported_name="Jetson AGX Orin",
    driver="gk20a",
    memory=MACHINES_OWN,
)
STAND_IN = replace(FIRST, device_id="nvidia-0", name="NVIDIA GPU 0", reported_name="", chip="")
WSL = replace(STAND_IN, device_id="nvidia-wsl", driver="dxgkrnl", device_files=("/dev/dxg",))
NO_LIBRARY = ChildAnswer(
    document={"cards": None, "problems": ["libnvidia-ml.so.1 is not installed"]}, seconds=0.1
)


def make_card(index: int, address: str | None, **more: object) -> NvmlCard:
    card = NvmlCard(
        index=index,
        address=address,
        chip="10de:1eb8",
        name="Tesla T4",
        memory=NvmlMemory(total_bytes=15 * GIB, free_bytes=14 * GIB),
    )
    return msgspec.structs.replace(card, **more)


def merged(devices: tuple[Device, ...], *cards: NvmlCard) -> DetectorReport:
    document = NvmlDocument(cards=cards, driver_version="535.1", cuda_version=12020)
    builtins = msgspec.json.decode(msgspec.json.encode(document))
    answer = ChildAnswer(document=builtins, seconds=0.1)
    return merge(DetectorReport(detector="nvidia", devices=devices), answer)


def ids(report: DetectorReport) -> list[str]:
    return [device.device_id for device in report.devices]


def test_cards_are_joined_by_address_in_any_order() -> None:
    small = NvmlMemory(total_bytes=8 * GIB, free_bytes=GIB)
    report = merged(
        (FIRST, SECOND), make_card(0, "0000:02:00.0", memory=small), make_card(1, "0000:01:00.0")
    )
    assert ids(report) == ["pci-0000:01:00.0", "pci-0000:02:00.0"]
    assert [device.memory.total_bytes for device in report.devices] == [15 * GIB, 8 * GIB]
    assert report.devices[0].versions == (("driver", "535.1"), ("CUDA", "12.2"))
    assert report.problems == ()


@pytest.mark.parametrize(
    ("reported", "known"),
    [((7, 5), (7, 5)), ((12, 0), (12, 0)), (None, None), ((0, 0), None), ((4096, -1), None)],
)
def test_a_card_has_the_compute_capability_that_can_be_one(
    reported: tuple[int, int] | None, known: tuple[int, int] | None
) -> None:
    (card,) = merged((FIRST,), make_card(0, "0000:01:00.0", compute_capability=reported)).devices
    assert card.compute_capability == known
    by_chip = replace(ORIN, compute_capability=(8, 7))
    (orin,) = merged((by_chip,), make_card(0, None, compute_capability=reported)).devices
    assert orin.compute_capability == (known or (8, 7))


def test_device_files_that_were_missing_are_no_problem_once_nvml_made_them() -> None:
    missing = replace(FIRST, problem="its device files are missing: /dev/nvidia0")
    assert merged((missing,), make_card(0, "0000:01:00.0")).devices[0].problem == ""


def test_a_card_that_nvml_does_not_list_cannot_be_used() -> None:
    first, second = merged((FIRST, SECOND), make_card(0, "0000:01:00.0")).devices
    assert first.problem == ""
    assert second.problem.startswith("NVML does not list it: ")


def test_a_card_of_another_driver_stays_as_it_is() -> None:
    aside = replace(SECOND, driver="vfio-pci", problem="it is reserved for virtual machines")
    assert merged((FIRST, aside), make_card(0, "0000:01:00.0")).devices[1] == aside


def test_of_two_cards_without_addresses_nobody_knows_which_is_which() -> None:
    report = merged((FIRST, SECOND), make_card(0, None), make_card(1, None, problem="it is lost"))
    assert report.devices == (FIRST, SECOND)
    assert report.problems == (
        "NVIDIA GPU 0: it has no PCI address",
        "NVIDIA GPU 1: it is lost",
    )


@pytest.mark.parametrize("address", [None, "0000:00:00.0", "ffffffff:ffffffff:1.0"])
def test_orin_keeps_its_name_and_its_memory(address: str | None) -> None:
    memory = NvmlMemory(error="not supported")
    report = merged((ORIN,), make_card(0, address, name="Orin (nvgpu)", memory=memory))
    (device,) = report.devices
    assert (device.device_id, device.reported_name) == ("of-17000000.gpu", "Jetson AGX Orin")
    assert device.memory == MACHINES_OWN
    assert device.problem == ""


def test_orin_needs_no_nvml() -> None:
    report = DetectorReport(detector="nvidia", devices=(ORIN,))
    assert merge(report, NO_LIBRARY) == report
    refused = ChildFailure(failure=Failure.REFUSED, reason="no", seconds=0.1)
    assert merge(report, refused) == report
    assert merged((ORIN,)).devices == (ORIN,)


def test_a_card_beside_orin_needs_nvml() -> None:
    answered = merge(DetectorReport(detector="nvidia", devices=(ORIN, FIRST)), NO_LIBRARY)
    assert answered.problems == ("libnvidia-ml.so.1 is not installed",)


def test_a_card_beside_orin_is_joined_by_its_address() -> None:
    orin, card = merged((ORIN, FIRST), make_card(0, None), make_card(1, "0000:01:00.0")).devices
    assert orin.memory == MACHINES_OWN
    assert orin.versions  # and so it was joined too
    assert card.memory.total_bytes == 15 * GIB


def test_cards_that_no_file_told_of_are_added() -> None:
    report = merged((WSL,), make_card(0, "0000:01:00.0"), make_card(1, "0000:02:00.0"))
    assert ids(report) == ["pci-0000:01:00.0", "pci-0000:02:00.0"]
    first = report.devices[0]
    assert (first.driver, first.device_files) == ("dxgkrnl", ("/dev/dxg",))
    assert (first.name, first.chip, first.problem) == ("Tesla T4", "10de:1eb8", "")


def test_cards_without_bus_and_address_are_known_by_their_place() -> None:
    assert ids(merged((STAND_IN,), make_card(0, None), make_card(1, None))) == [
        "nvidia-0",
        "nvidia-1",
    ]


def test_what_stood_for_cards_says_so_when_there_are_none() -> None:
    (device,) = merged((STAND_IN,)).devices
    assert device.problem.startswith("NVML does not list it: ")


def test_two_cards_of_one_address_are_two_devices() -> None:
    report = merged((FIRST,), make_card(0, "0000:01:00.0"), make_card(1, "0000:01:00.0"))
    assert len(set(ids(report))) == len(report.devices) == 2


def test_an_unnamed_mig_instance_is_named_after_its_card() -> None:
    instance = NvmlInstance(
        gpu_instance=3,
        compute_instance=1,
        name=None,
        memory=NvmlMemory(error="not supported"),
        num_multiprocessors=None,
        num_slices=2,
    )
    (device,) = merged(
        (FIRST,),
        make_card(0, "0000:01:00.0", is_mig=True, instances=(instance,), compute_capability=(9, 0)),
    ).devices
    assert device.device_id == "pci-0000:01:00.0-mig-3-1"
    assert device.compute_capability == (9, 0)
    assert device.name == "Tesla T4 MIG 2g"
    assert device.memory.total_bytes is None
    # The whole card's figures are not the instance's.
    assert device.figures.f32_operations_per_second.value is None
    assert device.figures.read_bytes_per_second.value is None


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"cards": 3},
        {"cards": [{"index": "zero"}]},
        {"cards": [], "\x1b[2J": 1},
        {"cards": [{"index": 0, "memory": {"total_bytes": "much"}}]},
    ],
)
def test_rubbish_is_one_line(document: dict[str, object]) -> None:
    report = DetectorReport(detector="nvidia", devices=(FIRST,))
    answered = merge(report, ChildAnswer(document=document, seconds=0.1))
    assert answered.devices == (FIRST,)
    (problem,) = answered.problems
    assert problem.startswith("NVML's answer is invalid: ")
    assert problem.isprintable()


@pytest.mark.parametrize("failure", [each for each in Failure if each is not Failure.REFUSED])
def test_a_child_that_fails_proves_nothing_about_the_card(failure: Failure) -> None:
    report = DetectorReport(detector="nvidia", devices=(FIRST,))
    answered = merge(report, ChildFailure(failure=failure, reason="it died", seconds=0.1))
    assert answered.devices == (FIRST,)
    assert answered.problems == ("NVML: it died",)


def test_a_driver_that_refuses_leaves_a_known_problem() -> None:
    forbidden = replace(SECOND, problem="no permission to use /dev/nvidia1")
    report = DetectorReport(detector="nvidia", devices=(FIRST, forbidden))
    refusal = ChildFailure(failure=Failure.REFUSED, reason="the driver is odd", seconds=0.1)
    first, second = merge(report, refusal).devices
    assert first.problem == "the driver is odd"
    assert second == forbidden
