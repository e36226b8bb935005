"""Look up vendors' specifications of chips in ``chips.toml``.

A chip without a row is unknown. The table is read on first use, so a machine without a GPU never
reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.probe.chips.names import normalize_name, search_key
from potluck.types.hardware import Figure, Figures, Origin

if TYPE_CHECKING:
    from potluck.probe.chips.table import Chip, ChipTable, Rate


def table_figures(name: str, *, chip: str = "") -> Figures:
    """Return the table's figures for a device; unknown if it has no row.

    ``name`` should be the name that the device reports, since a memory size, which normalization
    removes, may distinguish two chips. ``chip`` is as in ``Device.chip``; a row for the chip takes
    precedence over one for the name. A slice of a GPU (MIG) is unknown.
    """
    from potluck.probe.chips.table import shipped_table

    if "mig" in search_key(name).split():
        return unknown_figures("a slice of a GPU, which is in no table; not measured")
    table = shipped_table()
    row = _find(table, name, chip)
    if row is None:
        return unknown_figures("not in any table; not measured")
    return Figures(
        read_bytes_per_second=_figure(table, row, row.read_bytes_per_second),
        f32_operations_per_second=_figure(table, row, row.f32_operations_per_second),
        f16_operations_per_second=_figure(table, row, row.f16_operations_per_second),
        int8_operations_per_second=_figure(table, row, row.int8_operations_per_second),
    )


def _find(table: ChipTable, name: str, chip: str) -> Chip | None:
    by_chip = {known: row for row in table.chip for known in row.chips}
    if chip in by_chip:
        return by_chip[chip]
    by_name = {search_key(known): row for row in table.chip for known in row.names}
    return by_name.get(search_key(name)) or by_name.get(search_key(normalize_name(name)))


def _figure(table: ChipTable, row: Chip, rate: Rate | None) -> Figure:
    if rate is None:
        return Figure(source=f"not in the table's row for {row.names[0]}; not measured")
    clock = f"at {row.boost_clock_mhz} MHz, " if row.boost_clock_mhz else ""
    return Figure(value=rate.value, origin=Origin.TABLE, source=clock + table.source(rate))


def unknown_figures(reason: str) -> Figures:
    """Return rates that are all unknown, and why."""
    figure = Figure(source=reason)
    return Figures(
        read_bytes_per_second=figure,
        f32_operations_per_second=figure,
        f16_operations_per_second=figure,
        int8_operations_per_second=figure,
    )
