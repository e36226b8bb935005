"""Names of ARM cores, from the table ``arm_cores.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCore:
    """A kind of core, identified by fields of its MIDR_EL1 register."""

    implementer: int
    part: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmCoreNames:
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


def arm_core_names() -> ArmCoreNames:
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
    return ArmCoreNames(makes=makes, names=names)
