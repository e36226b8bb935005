"""Whole machines: everything that ``potluck probe`` and ``potluck doctor`` say of them.

All detectors look at each machine, so that nothing is listed twice and nothing is lost between
them. What is expected is read off the machines' files by hand; memory, versions and files of single
devices are the detectors' own tests. A new machine is its file and a row here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.machines.fake_nvml import build
from support.machines.whole_machine import Document, examine_machine
from support.schemas import validate_document

from potluck.probe.all_detectors import DETECTORS

CPU_FIRST = ["cpu", *(detector.name for detector in DETECTORS)]
NO_BACKEND = "Potluck has no backend for it"
NO_MEMORY = "/proc/meminfo cannot be read: is /proc mounted?"
NO_DRIVER = "no kernel driver is bound to it"
PREVENTS = "prevents"
FIGURES = ("reads", "f32", "16 bit", "int8")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A device: its id, what the table calls it, its memory there, and its problem."""

    device_id: str
    title: str
    memory: str = "shared with the CPU"
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What the doctor says; with ``severity`` empty it is a note as long as no backend is for it,
    and prevents a unit where one is.
    """

    message: str
    fix: str
    details: str = ""
    severity: str = ""

    def lines(self, *, are_gpus_used: bool) -> Iterator[str]:
        severity = self.severity or (PREVENTS if are_gpus_used else "note")
        yield f"{severity}: {self.message}"
        yield f"  fix: {self.fix}"
        if self.details:
            yield f"       ({self.details})"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """``found`` by detector; ``problems`` are lines of detectors, as the table has them."""

    found: Mapping[str, tuple[Found, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    forbidden: str = ""
    container: str = ""
    has_memory: bool = True


MALI = Found(device_id="of-fb000000.gpu", title="Mali-G610 (GPU)")
NPU = Found(device_id="of-fdab0000.npu", title="Rockchip NPU (NPU)", problem=NO_BACKEND)
RTX_4090 = Found(
    device_id="pci-0000:01:00.0",
    title="GeForce RTX 4090 (GPU)",
    memory="24 GiB, 20 GiB free (NVML)",
)
UNKNOWN = "unknown size (only NVML reports it, but it did not)"
INSTALL = "sudo apt install nvidia-driver"
NO_MEMORY_ADVICE = Advice(
    message=f"no memory is usable: {NO_MEMORY}",
    fix="sudo mount -t proc proc /proc",
    severity=PREVENTS,
)

MACHINES = {
    "rk3588-kbase": Machine(
        found={"mali": (MALI,), "other": (NPU,)},
        advice=(
            Advice(
                message="Arm Mali-G610: there is no OpenCL driver for it",
                fix="apt-cache search libmali",
                details="from the board's vendor; /etc/OpenCL/vendors/mali.icd must then contain "
                "the library's name",
            ),
        ),
    ),
    "rk3588-panthor": Machine(
        found={"mali": (MALI,), "other": (NPU,)},
        advice=(
            Advice(
                message="Arm Mali-G610: there is no OpenCL driver for it",
                fix="sudo apt install mesa-opencl-icd",
                details="and have RUSTICL_ENABLE=panfrost in Potluck's environment",
            ),
        ),
    ),
    "rk3588-panthor, forbidden": Machine(
        forbidden="dri/renderD128",
        found={
            "mali": (
                Found(
                    device_id="of-fb000000.gpu",
                    title="Mali-G610 (GPU)",
                    problem="no permission to use /dev/dri/renderD128",
                ),
            ),
            "other": (NPU,),
        },
        advice=(
            Advice(
                message="Arm Mali-G610: this user does not have permission to open "
                "/dev/dri/renderD128 "
                "(owned by group render)",
                fix="sudo usermod -aG render $USER",
                details="then log in again",
            ),
        ),
    ),
    "container-without-devices": Machine(
        container="docker",
        found={
            "mali": (
                Found(
                    device_id="of-fb000000.gpu",
                    title="Mali-G610 (GPU)",
                    problem="its device file /dev/dri/renderD128 is missing",
                ),
            ),
            "other": (
                Found(
                    device_id="of-fdab0000.npu",
                    title="Rockchip NPU (NPU)",
                    problem=f"{NO_BACKEND}; its device file /dev/accel/accel0 is missing",
                ),
            ),
        },
        advice=(
            Advice(
                message="Arm Mali-G610 is present, but /dev/dri/renderD128 was not passed to "
                "this container",
                fix="docker run --device /dev/dri …",
            ),
        ),
    ),
    "jetson-orin": Machine(
        found={
            "nvidia": (
                Found(device_id="of-17000000.gpu", title="Jetson AGX Orin Developer Kit (GPU)"),
            )
        }
    ),
    "amd-desktop": Machine(
        found={
            "amd": (
                Found(
                    device_id="pci-0000:86:00.0",
                    title="Radeon RX 7900 XTX (GPU)",
                    memory="24 GiB, 23 GiB free (amdgpu (mem_info_vram))",
                ),
            )
        }
    ),
    "pc-two-nvidia-one-amd": Machine(
        found={
            "nvidia": (
                RTX_4090,
                Found(device_id="pci-0000:02:00.0", title=RTX_4090.title, memory=RTX_4090.memory),
            ),
            "amd": (
                Found(
                    device_id="pci-0000:03:00.0",
                    title="Radeon RX 7900 XTX (GPU)",
                    memory="24 GiB, 23.9 GiB free (amdgpu (mem_info_vram))",
                ),
            ),
        }
    ),
    "nvidia-no-driver": Machine(
        has_memory=False,
        found={
            "nvidia": (
                Found(
                    device_id="pci-0000:01:00.0",
                    title="GeForce RTX 4090 (GPU)",
                    memory=UNKNOWN,
                    problem=NO_DRIVER,
                ),
                Found(
                    device_id="pci-0000:02:00.0",
                    title="GeForce GTX 1060 (GPU)",
                    memory=UNKNOWN,
                    problem="the driver nouveau is bound to it, but compute requires the driver "
                    "nvidia",
                ),
                Found(
                    device_id="pci-0000:03:00.0",
                    title="Tesla T4 (GPU)",
                    memory=UNKNOWN,
                    problem="it is reserved for virtual machines (driver vfio-pci)",
                ),
                Found(
                    device_id="pci-0000:04:00.0",
                    title="NVIDIA 10de:2fff (GPU)",
                    memory=UNKNOWN,
                    problem=NO_DRIVER,
                ),
            )
        },
        problems=(f"cpu: {NO_MEMORY}",),
        advice=(
            Advice(
                message="NVIDIA GeForce RTX 4090 is present, but no driver is bound to it",
                fix=INSTALL,
            ),
            Advice(
                message="NVIDIA GeForce GTX 1060 is bound to nouveau, but compute requires "
                "NVIDIA's driver",
                fix=INSTALL,
                details="then reboot",
            ),
            Advice(
                message="NVIDIA Tesla T4 is reserved for virtual machines (vfio-pci)",
                fix="echo 0000:03:00.0 | sudo tee /sys/bus/pci/drivers/vfio-pci/unbind "
                "&& echo 0000:03:00.0 | sudo tee /sys/bus/pci/drivers_probe",
                details="first clear its driver_override, and remove it from the virtual "
                "machine's settings",
            ),
            Advice(
                message="NVIDIA 10de:2fff is present, but no driver is bound to it", fix=INSTALL
            ),
            NO_MEMORY_ADVICE,
        ),
    ),
    "empty-sys": Machine(
        has_memory=False, problems=(f"cpu: {NO_MEMORY}",), advice=(NO_MEMORY_ADVICE,)
    ),
}


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(params=MACHINES)
def examined(
    request: pytest.FixtureRequest, nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Machine, Document]:
    """A machine, and what is said of it. NVML knows two cards wherever it is asked but on Tegra."""
    name = request.param.partition(",")[0]
    if "nvidia" in MACHINES[request.param].found and name != "jetson-orin":
        monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
        monkeypatch.setenv("FAKE_NVML_CARDS", "2")
    machine = MACHINES[request.param]
    return machine, examine_machine(name, forbidden=machine.forbidden)


def test_everything_that_is_said_of_a_machine(examined: tuple[Machine, Document]) -> None:
    machine, document = examined
    check_whole(machine, document["probe"])
    check_table(machine, document["table"])
    for build_of, are_gpus_used in (("doctor", False), ("doctor_with_gpus", True)):
        check_doctor(machine, document[build_of], are_gpus_used=are_gpus_used)


def check_whole(machine: Machine, document: Document) -> None:
    validate_document(document)
    assert document["is_complete"]
    assert document["container"] == machine.container
    assert [detector["detector"] for detector in document["detectors"]] == CPU_FIRST
    found = {
        detector["detector"]: [
            (device["device_id"], device["problem"]) for device in detector["devices"]
        ]
        for detector in document["detectors"]
        if detector["devices"]
    }
    expected = {
        detector: [(each.device_id, each.problem) for each in devices]
        for detector, devices in machine.found.items()
    }
    assert found == {"cpu": [("cpu", "")], **expected}
    assert [unit["unit_id"] for unit in document["units"]] == ["cpu/native"]
    assert [trial["device_id"] for trial in document["trials"]] == ["cpu"]
    assert (document["memory"]["total_bytes"] > 0) is machine.has_memory


def check_table(machine: Machine, lines: list[str]) -> None:
    blocks = "\n".join(lines).split("\n\n")
    devices = [each for devices in machine.found.values() for each in devices]
    node, cpu, *others = blocks[: 2 + len(devices)]
    assert node.startswith("node ")
    assert node.splitlines()[0].endswith(f" in {machine.container}") is bool(machine.container)
    assert cpu.startswith("cpu: ")
    assert "memory" not in row_texts(cpu)
    assert re.search(r"^  native +works: scalar", cpu, re.MULTILINE)
    by_id = {block.partition(": ")[0]: block for block in others}
    assert list(by_id) == [
        each.device_id for detector in CPU_FIRST for each in listed(machine, detector)
    ]
    for each in devices:
        rows = row_texts(by_id[each.device_id])
        assert by_id[each.device_id].splitlines()[0] == f"{each.device_id}: {each.title}"
        assert rows["memory"] == each.memory
        assert rows.get("problem", "") == each.problem
        unused = "" if each.problem else "unused: no backend in this build supports it"
        assert rows.get("backend", "") == unused
        named = sorted(name for row in rows for name in row.split(", "))
        assert set(FIGURES) <= set(named)
        assert len(named) == len(set(named))
    units, *problems = blocks[2 + len(devices) :]
    assert [line.split() for line in units.splitlines()] == [
        ["UNIT", "ROLE", "REASON"],
        ["cpu/native", "serves", "not", "measured", "yet"],
    ]
    assert "\n".join(problems) == "\n".join(machine.problems)
    assert [line for line in lines if len(line) > 200 or "://" in line] == []


def listed(machine: Machine, detector: str) -> tuple[Found, ...]:
    return machine.found.get(detector, ())


def row_texts(block: str) -> dict[str, str]:
    """The rows below a device's title, by their first column."""
    rows = (re.split(r"  +", line.strip(), maxsplit=1) for line in block.splitlines()[1:])
    return {row[0]: row[-1] for row in rows}


def check_doctor(machine: Machine, document: Document, *, are_gpus_used: bool) -> None:
    lines = [[*each.lines(are_gpus_used=are_gpus_used)] for each in machine.advice]
    lines.sort(key=lambda each: not each[0].startswith(PREVENTS))  # what costs most comes first
    expected = [line for each in lines for line in each]
    assert document["lines"] == (expected or ["no problems found"])
    assert document["exit_code"] == any(line.startswith(PREVENTS) for line in expected)
