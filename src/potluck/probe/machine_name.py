"""What a machine is called: by its device tree, or by its firmware's DMI tables.

Sources: the devicetree specification (``model`` of the root), the kernel's
``drivers/firmware/dmi-id.c`` and the DMTF's SMBIOS specification (system and baseboard).
"""

from __future__ import annotations

from potluck.probe.boards import board_model
from potluck.probe.names import printable
from potluck.probe.system import System

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
"""What makers of mainboards leave in the fields that the maker of the machine was to fill."""


def machine_name(system: System) -> str:
    """``Radxa ROCK 5B``, ``Dell Inc. PowerEdge R740``; empty where nothing tells it."""
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
