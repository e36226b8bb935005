"""Read a CPU's description from ``/proc/cpuinfo``, whose layout depends on the architecture.

Sources: the kernel's ``arch/{x86,arm64,riscv,s390}/kernel`` (``show_cpuinfo``, ``c_show``), its
``Documentation/ABI/testing/sysfs-devices-system-cpu`` for ``cpu_capacity``, and for the names of
ARM cores ``arm_cores.toml``.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from potluck.host.system import System

_X86_MAKES = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
"""Vendors by the 12 characters that CPUID returns; others are shown unchanged."""

Block = Mapping[str, str]
"""The fields of one core (or of all), by name in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCore:
    """A kind of core, identified by fields of its MIDR_EL1 register."""

    implementer: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArmCoreNames:
    """The table of names; cores that are not in it are shown by their numbers."""

    makes: Mapping[int, str]
    names: Mapping[ArmCore, str]

    def make(self, core: ArmCore) -> str:
        """Return the designer of the core; empty if unknown."""
        return self.makes.get(core.implementer, "")

    def name(self, core: ArmCore) -> str:
        """Return the core's name (``Cortex-A76``), or ``Arm core 0xd99`` or ``core 0x12:0x345`` if
        it is unknown.
        """
        known = self.names.get(core)
        if known is not None:
            return known
        make = self.make(core)
        if make:
            return f"{make} core 0x{core.part:03x}"
        return f"core 0x{core.implementer:02x}:0x{core.part:03x}"


def arm_core_names() -> _ArmCoreNames:
    """Read the table. It takes about a millisecond, and only machines with ARM cores need it."""
    file = resources.files(__package__).joinpath("arm_cores.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    makes: dict[int, str] = {}
    names: dict[ArmCore, str] = {}
    for implementer in table["implementer"]:
        number = implementer["id"]
        makes[number] = implementer["make"]
        for source in ("linux", "util-linux"):
            for part, name in implementer.get(source, {}).items():
                names[ArmCore(implementer=number, part=int(part, 16))] = name
    return _ArmCoreNames(makes=makes, names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuDescription:
    """A CPU; fields that the layout does not contain are empty.

    ``family`` is the recognized layout: ``x86``, ``arm``, ``riscv`` or ``s390``. ``name`` is for
    display, ``reported_name`` as the CPU reports it. ``chip`` identifies the model by numbers:
    ``GenuineIntel-6-A7-1`` (vendor, family, model, stepping), ``41:d0b+41:d05`` (implementers and
    parts of ARM), ``sifive,u74-mc``.
    """

    family: str = ""
    make: str = ""
    name: str = ""
    reported_name: str = ""
    chip: str = ""
    microcode: str = ""


def describe_cpu(system: System) -> CpuDescription:
    """Read ``/proc/cpuinfo``; fields that are missing or in an unknown form are left empty."""
    blocks = _blocks(system.text(system.proc / "cpuinfo") or "")
    if any("cpu implementer" in block for block in blocks):
        return _arm(system, blocks)
    first: Block = blocks[0] if blocks else {}
    if "vendor_id" in first and "cpu family" in first:
        return _x86(first)
    if "hart" in first:
        return CpuDescription(family="riscv", chip=first.get("uarch", ""))
    if first.get("vendor_id") == "IBM/S390":
        return CpuDescription(family="s390", make="IBM")
    return CpuDescription()


def _blocks(cpuinfo: str) -> list[Block]:
    blocks: list[Block] = []
    for paragraph in re.split(r"\n\s*\n", cpuinfo):
        pairs = (line.partition(":") for line in paragraph.splitlines())
        block = {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}
        if block:
            blocks.append(block)
    return blocks


def _x86(block: Block) -> CpuDescription:
    vendor, reported = block["vendor_id"], block.get("model name", "")
    numbers = [block.get(name, "") for name in ("cpu family", "model", "stepping")]
    chip = ""
    if all(re.fullmatch(r"[0-9]{1,5}", number) for number in numbers):
        chip = "-".join([vendor, *(f"{int(number):X}" for number in numbers)])
    return CpuDescription(
        family="x86",
        make=_X86_MAKES.get(vendor, vendor),
        name=_tidy(reported),
        reported_name=reported,
        chip=chip,
        microcode=block.get("microcode", ""),
    )


def _tidy(model_name: str) -> str:
    """Return a model name without marks, clock rate and filler words; empty if it is unknown.

    ``Intel(R) Core(TM) i7-9700K CPU @ 3.60GHz`` becomes ``Intel Core i7-9700K``, and
    ``AMD Ryzen 9 5950X 16-Core Processor`` becomes ``AMD Ryzen 9 5950X``.
    """
    name = re.sub(r"\((R|TM)\)", " ", model_name, flags=re.IGNORECASE)
    name = re.sub(r"@ *[0-9.]+ *[GM]Hz", " ", name)
    name = re.sub(r"\b([0-9]+-Core|Eight-Core|Six-Core|Quad-Core|Dual-Core) Processor\b", " ", name)
    name = " ".join(re.sub(r"\bCPU\b", " ", name).split())
    return "" if name.lower() == "unknown" else name


def _arm(system: System, blocks: Sequence[Block]) -> CpuDescription:
    """Describe cores by kind, the fastest kind first: ``4× Cortex-A76 + 4× Cortex-A55``."""
    counts: Counter[ArmCore] = Counter()
    speeds: dict[ArmCore, tuple[int, int]] = {}
    for block in blocks:
        core = _arm_core(block)
        if core is not None:
            counts[core] += 1
            speeds[core] = max(speeds.get(core, (0, 0)), _speed(system, block))
    # Old kernels list a kind only once, after all cores: the kind of the other cores is unknown.
    is_listed_per_core = counts.total() == sum("processor" in block for block in blocks)
    kinds = sorted(counts, key=lambda core: speeds[core], reverse=True)
    names = arm_core_names()
    return CpuDescription(
        family="arm",
        make=names.make(kinds[0]) if kinds else "",
        name=" + ".join(
            f"{counts[core]}× {names.name(core)}" if is_listed_per_core else names.name(core)
            for core in kinds
        ),
        chip="+".join(f"{core.implementer:02x}:{core.part:03x}" for core in kinds),
    )


def _arm_core(block: Block) -> ArmCore | None:
    numbers = [block.get(name, "") for name in ("cpu implementer", "cpu part")]
    if not all(re.fullmatch(r"0x[0-9a-f]{1,3}", number) for number in numbers):
        return None
    implementer, part = (int(number, 16) for number in numbers)
    return ArmCore(implementer=implementer, part=part)


def _speed(system: System, block: Block) -> tuple[int, int]:
    """Return a sort key for kinds: the capacity (1024 for the fastest), or else the core's number.

    Fast cores usually have the higher numbers.
    """
    number = block.get("processor", "")
    if not re.fullmatch(r"[0-9]{1,6}", number):
        return 0, 0
    capacity = system.number(system.sys / f"devices/system/cpu/cpu{number}/cpu_capacity")
    return capacity or 0, int(number)
