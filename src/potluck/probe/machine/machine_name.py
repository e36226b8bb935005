"""The name of a machine, from its device tree or its firmware's DMI tables.

Sources: the devicetree specification (``model`` of the root), the kernel's
``drivers/firmware/dmi-id.c`` and the DMTF's SMBIOS specification (system and baseboard).
"""

from __future__ import annotations

from potluck.probe.chips.names import printable
from potluck.probe.machine.boards import board_model
from potluck.probe.machine.system import System

_NO_NAMES = frozenset(
    {
        "",
        "default string",
        "none",
        "not applicable",
        "not specified",
        "o.e.m.",
        "oem",
        "system manufacturer",
        "system product name",
        "to be filled by o.e.m.",
        "undefined",
        "unknown",
    }
)
"""Placeholders that mainboard vendors leave in fields that the machine's vendor should fill."""


def machine_name(system: System) -> str:
    """Return the name (``Radxa ROCK 5B``, ``Dell Inc. PowerEdge R740``); empty if unknown."""
    if model := printable(board_model(system)):
        return model
    for maker, product in (("sys_vendor", "product_name"), ("board_vendor", "board_name")):
        if name := _dmi(system, product):
            vendor = _dmi(system, maker)
            is_named_twice = name.lower().startswith(vendor.lower())
            return name if is_named_twice else f"{vendor} {name}"
    return ""


def _dmi(system: System, field: str) -> str:
    text = printable(system.text(system.sys / "class/dmi/id" / field) or "")
    return "" if text.lower() in _NO_NAMES else text
