"""The table of chips: what makers' documents say of chips, each row with its source."""

from __future__ import annotations

from potluck.types.hardware import Figures


def table_figures(name: str, *, chip: str = "") -> Figures:
    """What the table says of a device; unknown where it has no row.

    ``name`` is the name as the device reports it (a memory size may be what tells two chips
    apart), ``chip`` as in ``Device.chip``: a row for the chip is preferred to one for the name.
    """
    return Figures()
