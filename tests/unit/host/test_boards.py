"""What machines are called, from trees with a device tree or DMI tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machines.machine_tree import machine_tree

from potluck.host.boards import machine_name

DMI = "sys/class/dmi/id"


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"proc/device-tree/model": b"Radxa ROCK 5B\0"}, "Radxa ROCK 5B"),
        ({"sys/firmware/devicetree/base/model": b"Raspberry Pi 5\0"}, "Raspberry Pi 5"),
        (
            {f"{DMI}/sys_vendor": "Dell Inc.", f"{DMI}/product_name": "PowerEdge R740"},
            "Dell Inc. PowerEdge R740",
        ),
        (
            {f"{DMI}/sys_vendor": "HP", f"{DMI}/product_name": "HP Z4 G4 Workstation"},
            "HP Z4 G4 Workstation",
        ),
        (
            {
                f"{DMI}/sys_vendor": "System manufacturer",
                f"{DMI}/product_name": "System Product Name",
                f"{DMI}/board_vendor": "ASUSTeK COMPUTER INC.",
                f"{DMI}/board_name": "PRIME B350-PLUS",
            },
            "ASUSTeK COMPUTER INC. PRIME B350-PLUS",
        ),
        ({f"{DMI}/sys_vendor": "", f"{DMI}/product_name": "Standard PC"}, "Standard PC"),
        ({f"{DMI}/product_name": "To Be Filled By O.E.M."}, ""),
        ({f"{DMI}/product_name": "\x1b[31mred\nalert"}, "[31mred alert"),
        ({}, ""),
    ],
)
def test_machine_name(tmp_path: Path, files: dict[str, str | bytes], name: str) -> None:
    assert machine_name(machine_tree(tmp_path, files)) == name
