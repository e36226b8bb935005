from __future__ import annotations

import pytest

from potluck.host.cpuinfo import ArmCore, arm_core_names


# Numbers from the technical reference manuals of some cores (MIDR_EL1).
@pytest.mark.parametrize(
    ("implementer", "part", "make", "name"),
    [
        (0x41, 0xC07, "Arm", "Cortex-A7"),
        (0x41, 0xD03, "Arm", "Cortex-A53"),
        (0x41, 0xD0B, "Arm", "Cortex-A76"),
        (0x41, 0xD4F, "Arm", "Neoverse-V2"),
        (0x4E, 0x004, "NVIDIA", "Carmel"),
        (0x61, 0x023, "Apple", "M1 Firestorm"),
        (0x61, 0x999, "Apple", "Apple core 0x999"),
        (0x01, 0x002, "", "core 0x01:0x002"),
    ],
)
def test_names(implementer: int, part: int, make: str, name: str) -> None:
    names = arm_core_names()
    core = ArmCore(implementer=implementer, part=part)
    assert (names.make(core), names.name(core)) == (make, name)


def test_the_table_is_whole() -> None:
    names = arm_core_names()
    assert all(names.makes.values())
    assert all(names.names.values())
    assert all(0 <= core.part <= 0xFFF and core.implementer in names.makes for core in names.names)
