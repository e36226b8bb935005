"""CPUs of all sorts, as their trees show them. Expected by hand from the trees."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree

from potluck.host.system import System
from potluck.probe.detectors.cpu import DETECTOR, cpu_facts, cpu_report
from potluck.types.backend import DeviceKind

MEMINFO = "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB"

INTEL = """processor\t: {number}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 158
model name\t: Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz
stepping\t: 13
microcode\t: 0xfa
flags\t\t: fpu avx2
address sizes\t: 39 bits physical, 48 bits virtual
power management:
"""

AMD = """processor\t: {number}
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 33
model name\t: AMD Ryzen 9 5950X 16-Core Processor
stepping\t: 0
microcode\t: 0xa201016
flags\t\t: fpu avx2
"""

RISCV = """processor\t: {number}
hart\t\t: {number}
isa\t\t: rv64imafdc_zicsr
mmu\t\t: sv39
uarch\t\t: sifive,u74-mc
"""

S390 = """vendor_id       : IBM/S390
# processors    : 2
bogomips per cpu: 3033.00
max thread id   : 0
features\t: esan3 zarch stfle msa ldisp eimm dfp edat etf3eh highgprs te vx
processor 0: version = FF,  identification = 0133E8,  machine = 2964
processor 1: version = FF,  identification = 0133E8,  machine = 2964

cpu number      : 0
cpu MHz dynamic : 5000
"""

OLD_ARM = """Processor\t: ARMv7 Processor rev 3 (v7l)
processor\t: 0
BogoMIPS\t: 1992.29

processor\t: 1
BogoMIPS\t: 1992.29

Features\t: swp half thumb fastmult vfp edsp neon vfpv3
CPU implementer\t: 0x41
CPU architecture: 7
CPU variant\t: 0x3
CPU part\t: 0xc09
CPU revision\t: 0

Hardware\t: Some Board
"""


def arm(*cores: tuple[str, str]) -> str:
    """As 64-bit kernels write it, of cores given by implementer and part."""
    return "\n".join(
        f"processor\t: {number}\nBogoMIPS\t: 48.00\nFeatures\t: fp asimd\n"
        f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU variant\t: 0x4\n"
        f"CPU part\t: {part}\nCPU revision\t: 1\n"
        for number, (implementer, part) in enumerate(cores)
    )


def cores(template: str, num_cores: int) -> str:
    return "\n".join(template.format(number=number) for number in range(num_cores))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A machine: its files, and what is to be found in them."""

    architecture: str
    cpuinfo: str | bytes
    present: str
    num_cores: int
    name: str
    make: str
    chip: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    board: str = ""
    versions: tuple[tuple[str, str], ...] = ()


A53, A55, A76 = ("0x41", "0xd03"), ("0x41", "0xd05"), ("0x41", "0xd0b")
A72, A73, A78AE = ("0x41", "0xd08"), ("0x41", "0xd09"), ("0x41", "0xd42")

CASES = {
    "an Intel desktop": Case(
        architecture="x86_64",
        cpuinfo=cores(INTEL, 8),
        present="0-7",
        num_cores=8,
        name="Intel Core i7-9700K",
        make="Intel",
        chip="GenuineIntel-6-9E-D",
        versions=(("microcode", "0xfa"),),
    ),
    "an AMD desktop": Case(
        architecture="x86_64",
        cpuinfo=cores(AMD, 32),
        present="0-31",
        num_cores=32,
        name="AMD Ryzen 9 5950X",
        make="AMD",
        chip="AuthenticAMD-19-21-0",
        versions=(("microcode", "0xa201016"),),
    ),
    "32-bit programs on it": Case(
        architecture="i686",
        cpuinfo=cores(AMD, 1),
        present="0",
        num_cores=1,
        name="AMD Ryzen 9 5950X",
        make="AMD",
        chip="AuthenticAMD-19-21-0",
        versions=(("microcode", "0xa201016"),),
    ),
    "a virtual machine that names no CPU": Case(
        architecture="x86_64",
        cpuinfo="processor: 0\nvendor_id: OddCPUMaker0\ncpu family: x\nmodel name: unknown",
        present="0",
        num_cores=1,
        name="x86_64",
        make="OddCPUMaker0",
        chip="",
    ),
    # The four A55 come first, and the device tree's string ends with a zero byte.
    "RK3588": Case(
        architecture="aarch64",
        cpuinfo=arm(*[A55] * 4, *[A76] * 4),
        present="0-7",
        num_cores=8,
        files={"proc/device-tree/model": b"Radxa ROCK 5B\0"},
        name="4× Cortex-A76 + 4× Cortex-A55",
        board="Radxa ROCK 5B",
        make="Arm",
        chip="41:d0b+41:d05",
    ),
    "fast cores first, by their capacity": Case(
        architecture="aarch64",
        cpuinfo=arm(*[A72] * 2, *[A53] * 4),
        present="0-5",
        num_cores=6,
        files={
            f"sys/devices/system/cpu/cpu{number}/cpu_capacity": "1024" if number < 2 else "485"
            for number in range(6)
        },
        name="2× Cortex-A72 + 4× Cortex-A53",
        make="Arm",
        chip="41:d08+41:d03",
    ),
    "Raspberry Pi 5": Case(
        architecture="aarch64",
        cpuinfo=arm(*[A76] * 4)
        + "\nRevision\t: d04170\nSerial\t\t: 0\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n",
        present="0-3",
        num_cores=4,
        files={"sys/firmware/devicetree/base/model": b"Raspberry Pi 5 Model B Rev 1.0\0"},
        name="4× Cortex-A76",
        board="Raspberry Pi 5 Model B Rev 1.0",
        make="Arm",
        chip="41:d0b",
    ),
    "Raspberry Pi with a 32-bit system": Case(
        architecture="armv8l",
        cpuinfo=arm(*[A53] * 4).replace(
            "BogoMIPS", "model name\t: ARMv8 Processor rev 4 (v8l)\nBogoMIPS"
        ),
        present="0-3",
        num_cores=4,
        name="4× Cortex-A53",
        make="Arm",
        chip="41:d03",
    ),
    "Jetson Orin": Case(
        architecture="aarch64",
        cpuinfo=arm(*[A78AE] * 12),
        present="0-11",
        num_cores=12,
        files={"proc/device-tree/model": b"NVIDIA Jetson AGX Orin Developer Kit\0"},
        name="12× Cortex-A78AE",
        board="NVIDIA Jetson AGX Orin Developer Kit",
        make="Arm",
        chip="41:d42",
    ),
    "Amlogic S905": Case(
        architecture="aarch64",
        cpuinfo=arm(*[A53] * 4),
        present="0-3",
        num_cores=4,
        name="4× Cortex-A53",
        make="Arm",
        chip="41:d03",
    ),
    "Amlogic A311D": Case(
        architecture="aarch64",
        cpuinfo=arm(*[A53] * 2, *[A73] * 4),
        present="0-5",
        num_cores=6,
        name="4× Cortex-A73 + 2× Cortex-A53",
        make="Arm",
        chip="41:d09+41:d03",
    ),
    "Ampere Altra": Case(
        architecture="aarch64",
        cpuinfo=arm(*[("0x41", "0xd0c")] * 80),
        present="0-79",
        num_cores=80,
        name="80× Neoverse-N1",
        make="Arm",
        chip="41:d0c",
    ),
    "AmpereOne": Case(
        architecture="aarch64",
        cpuinfo=arm(*[("0xc0", "0xac3")] * 2),
        present="0-1",
        num_cores=2,
        name="2× Ampere1",
        make="Ampere",
        chip="c0:ac3",
    ),
    "Graviton 3": Case(
        architecture="aarch64",
        cpuinfo=arm(*[("0x41", "0xd40")] * 2),
        present="0-1",
        num_cores=2,
        name="2× Neoverse-V1",
        make="Arm",
        chip="41:d40",
    ),
    "an unknown part": Case(
        architecture="aarch64",
        cpuinfo=arm(("0x41", "0xdff"), ("0x41", "0xdff")),
        present="0-1",
        num_cores=2,
        name="2× Arm core 0xdff",
        make="Arm",
        chip="41:dff",
    ),
    "an unknown implementer": Case(
        architecture="aarch64",
        cpuinfo=arm(("0x12", "0x345")),
        present="0",
        num_cores=1,
        name="1× core 0x12:0x345",
        make="",
        chip="12:345",
    ),
    "numbers that are none": Case(
        architecture="aarch64",
        cpuinfo=arm(("0xzz", "0xd0b"), ("41", ""), ("0x" + "9" * 5000, "0xd0b")),
        present="0-2",
        num_cores=3,
        name="aarch64",
        make="",
        chip="",
    ),
    # It tells the kind once, so nobody says how many there are of it.
    "a kernel of long ago": Case(
        architecture="armv7l",
        cpuinfo=OLD_ARM,
        present="0-1",
        num_cores=2,
        name="Cortex-A9",
        make="Arm",
        chip="41:c09",
    ),
    "RISC-V": Case(
        architecture="riscv64",
        cpuinfo=cores(RISCV, 4),
        present="0-3",
        num_cores=4,
        files={"proc/device-tree/model": b"StarFive VisionFive 2 v1.3B\0"},
        name="riscv64",
        board="StarFive VisionFive 2 v1.3B",
        make="",
        chip="sifive,u74-mc",
    ),
    "s390x": Case(
        architecture="s390x",
        cpuinfo=S390,
        present="0-1",
        num_cores=2,
        name="s390x",
        make="IBM",
        chip="",
    ),
    "an unknown layout": Case(
        architecture="ppc64le",
        cpuinfo="processor : 0\ncpu : POWER9, altivec supported\nclock : 2166.0MHz",
        present="0",
        num_cores=1,
        name="ppc64le",
        make="",
        chip="",
    ),
    "an empty file": Case(
        architecture="aarch64",
        cpuinfo="",
        present="0-3",
        num_cores=4,
        name="aarch64",
        make="",
        chip="",
    ),
    "binary rubbish everywhere": Case(
        architecture="aarch64",
        cpuinfo=bytes(range(255, -1, -1)) * 40,
        present="\x00\x01",
        num_cores=1,
        files={"proc/device-tree/model": b"\0\xff", "proc/self/cgroup": bytes(range(256))},
        name="aarch64",
        make="",
        chip="",
    ),
}


def tree(root: Path, case: Case) -> System:
    files: dict[str, str | bytes | Path] = {
        "proc/meminfo": MEMINFO,
        "proc/cpuinfo": case.cpuinfo,
        "sys/devices/system/cpu/present": case.present,
        **case.files,
    }
    return machine_tree(root, files)


@pytest.mark.parametrize("name", CASES)
def test_facts(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    facts = cpu_facts(tree(tmp_path, case), num_affine_cores=1, architecture=case.architecture)
    assert facts.name == (f"{case.name} ({case.board})" if case.board else case.name)
    assert facts.architecture == case.architecture
    assert facts.num_cores == case.num_cores
    assert facts.num_usable_cores == 1
    assert facts.usable_reason == ("all" if case.num_cores == 1 else "affinity")


@pytest.mark.parametrize("name", CASES)
def test_device(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    report = cpu_report(tree(tmp_path, case), architecture=case.architecture)
    assert (report.detector, report.problems) == ("cpu", ())
    (device,) = report.devices
    assert (device.device_id, device.kind) == ("cpu", DeviceKind.CPU)
    assert (device.name, device.make, device.chip) == (case.name, case.make, case.chip)
    assert device.versions == case.versions
    assert (device.driver, device.device_files, device.problem) == ("", (), "")
    assert device.memory.total_bytes == 4 * 2**30
    assert device.memory.free_bytes == 2 * 2**30
    assert device.memory.is_shared
    assert device.figures.f32_operations_per_second.value is None


def test_what_the_cpu_itself_reports(tmp_path: Path) -> None:
    desktop = tree(tmp_path / "desktop", CASES["an Intel desktop"])
    (device,) = cpu_report(desktop, architecture="x86_64").devices
    assert device.reported_name == "Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz"
    board = tree(tmp_path / "board", CASES["RK3588"])
    (device,) = cpu_report(board, architecture="aarch64").devices
    assert device.reported_name == "Radxa ROCK 5B"


@pytest.mark.parametrize(
    ("case", "architecture", "name"),
    [
        ("an Intel desktop", "aarch64", "aarch64 emulated on Intel Core i7-9700K"),
        ("an AMD desktop", "loongarch64", "loongarch64 emulated on AMD Ryzen 9 5950X"),
        ("Ampere Altra", "x86_64", "x86_64 emulated on 80× Neoverse-N1"),
        ("s390x", "aarch64", "aarch64 emulated on s390"),
    ],
)
def test_the_host_shows_through_an_emulator(
    tmp_path: Path, case: str, architecture: str, name: str
) -> None:
    system = tree(tmp_path, CASES[case])
    assert cpu_facts(system, num_affine_cores=1, architecture=architecture).name == name
    report = cpu_report(system, architecture=architecture)
    assert [device.name for device in report.devices] == [name]
    (problem,) = report.problems
    assert problem.startswith("this process is emulated")
    assert architecture in problem


def test_an_empty_machine_still_has_a_cpu(tmp_path: Path) -> None:
    system = machine_tree(tmp_path, {})
    facts = cpu_facts(system, num_affine_cores=3, architecture="aarch64")
    assert (facts.name, facts.num_cores, facts.num_usable_cores) == ("aarch64", 3, 3)
    report = cpu_report(system, architecture="aarch64")
    (device,) = report.devices
    assert (device.name, device.memory.total_bytes, device.memory.free_bytes) == (
        "aarch64",
        None,
        None,
    )
    assert report.problems == ("/proc/meminfo cannot be read: is /proc mounted?",)


def test_this_machine() -> None:
    (device,) = DETECTOR.find(System()).devices
    assert device.memory.total_bytes
    assert cpu_facts(System(), num_affine_cores=1).num_usable_cores == 1
