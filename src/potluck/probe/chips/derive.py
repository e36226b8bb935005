"""Derive figures from what a device reports: the number of units and their clock.

The work of one unit per clock is in ``chips.toml``, with its source. Rates are peaks, computed with
the highest clock that the device reports. If a factor is unknown, so is the figure.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

from potluck.portability.hosts.amd_architectures import gfx_target
from potluck.probe.chips.lookup import unknown_figures
from potluck.probe.chips.names import search_key
from potluck.types.hardware import Figure, Figures, Origin

if TYPE_CHECKING:
    from potluck.probe.chips.table import ChipTable, Rate


_GEFORCE = "geforce rtx"
"""A part of the names of consumer cards with matrix units, including those in laptops."""


def nvidia_figures(
    *,
    num_cores: int | None,
    max_sm_clock_hz: int | None,
    bus_width_bits: int | None,
    max_memory_clock_hz: int | None,
    compute_capability: tuple[int, int] | None = None,
    name: str = "",
) -> Figures:
    """Derive figures from NVML's data on a whole GPU (not a MIG slice); None or 0 means unknown.

    The memory clock is NVML's, which is half the data rate. 16-bit and 8-bit rates are known if the
    compute capability determines them, for some capabilities together with the product's ``name``.
    """
    from potluck.probe.chips.table import shipped_table

    table = shipped_table()
    f16 = int8 = Figure(source="not determined by the compute capability; not measured")
    if compute_capability and num_cores:
        capability = "{}.{}".format(*compute_capability)
        for sm in (row for row in table.nvidia if row.capability == capability):
            per_sm = f"multiprocessors of compute capability {capability}"
            num_sms = _exact_quotient(num_cores, sm.cores)
            f16_rate, int8_rate = sm.f16_operations, sm.int8_operations
            if _GEFORCE in search_key(name):
                f16_rate = f16_rate or sm.geforce_f16_operations
                int8_rate = int8_rate or sm.geforce_int8_operations
            f16 = _unit_rate(table, f16_rate, num_sms, per_sm, max_sm_clock_hz)
            int8 = _unit_rate(table, int8_rate, num_sms, per_sm, max_sm_clock_hz)
    return Figures(
        read_bytes_per_second=_bandwidth(
            table, table.nvidia_memory, bus_width_bits, max_memory_clock_hz
        ),
        f32_operations_per_second=_f32_of_cores(num_cores, max_sm_clock_hz),
        f16_operations_per_second=f16,
        int8_operations_per_second=int8,
    )


def mali_figures(product_id: int, num_cores: int, max_clock_hz: int) -> Figures:
    """Derive figures from a Mali's product id (the upper half of the register GPU_ID), cores and
    clock.

    Float16 is twice float32 (libGPUInfo). The memory is the machine's.
    """
    from potluck.probe.chips.table import shipped_table

    memory = Figure(source="shared system memory; not measured")
    int8 = Figure(source="no document gives the rate of 8-bit dot products; not measured")
    table = shipped_table()
    fitting = [
        core
        for core in table.mali
        if product_id & core.mask == core.product_id and num_cores >= core.min_cores
    ]
    core = max(fitting, key=lambda core: core.min_cores, default=None)
    multiply_adds = None if core is None else core.multiply_adds_per_core
    if core is None or multiply_adds is None or max_clock_hz <= 0:
        reason = f"Mali of product id {product_id:#06x}: "
        if core is None:
            reason += f"in no table with {num_cores} cores; not measured"
        elif multiply_adds is None:
            reason += "has cores of several sizes, and the driver does not report which"
        else:
            reason += "its clock is unknown; not measured"
        return replace(
            unknown_figures(reason), read_bytes_per_second=memory, int8_operations_per_second=int8
        )
    document = table.documents[table.mali_document]
    formula = (
        f"2 × {multiply_adds} multiply-adds × {num_cores} cores of {core.name}"
        f" × {_gigahertz(max_clock_hz)}; {document.title} ({document.url})"
    )
    f32 = 2 * multiply_adds * num_cores * max_clock_hz
    return Figures(
        read_bytes_per_second=memory,
        f32_operations_per_second=_derived(f32, formula),
        f16_operations_per_second=_derived(2 * f32, f"2 (float16) × {formula}"),
        int8_operations_per_second=int8,
    )


def amd_figures(
    *,
    simd_count: int | None,
    gfx_target_version: int | None,
    max_engine_clock_hz: int | None,
    memory_width_bits: int | None = None,
    max_memory_clock_hz: int | None = None,
) -> Figures:
    """Derive figures from a node of KFD's topology and its memory bank; None or 0 means unknown.

    Dual issue of RDNA 3 is not counted. The number of memory transfers per clock depends on the
    memory type, which KFD does not report: the bandwidth is known only if all chips of a target
    have the same type.
    """
    from potluck.probe.chips.table import shipped_table

    table = shipped_table()
    target = "" if gfx_target_version is None else gfx_target(gfx_target_version)
    unit = next((unit for unit in table.amd if target in unit.targets), None)
    if unit is None:
        return unknown_figures(f"{target or 'its target'} is not in any table; not measured")
    rate = partial(
        _unit_rate,
        table,
        num_units=_exact_quotient(simd_count, unit.simds),
        unit=f"compute units of {target}",
        clock_hz=max_engine_clock_hz,
    )
    return Figures(
        read_bytes_per_second=_bandwidth(
            table, unit.memory_transfers, memory_width_bits, max_memory_clock_hz
        ),
        f32_operations_per_second=rate(unit.f32_operations),
        f16_operations_per_second=rate(unit.f16_operations),
        int8_operations_per_second=rate(unit.int8_operations),
    )


def merge_figures(*preferred_first: Figures) -> Figures:
    """Return the first known value of each figure, or else all reasons why it is unknown."""
    return Figures(
        **{
            field.name: _first_known([getattr(each, field.name) for each in preferred_first])
            for field in fields(Figures)
        }
    )


def _first_known(figures: list[Figure]) -> Figure:
    for figure in figures:
        if figure.origin is not Origin.UNKNOWN:
            return figure
    if not figures:
        return Figure()
    reasons = dict.fromkeys(figure.source for figure in figures)
    return Figure(source="; ".join(reasons))


def _f32_of_cores(num_cores: int | None, clock_hz: int | None) -> Figure:
    """Return the float32 rate: a CUDA core does one multiply-add per clock (CUDA C++ Programming
    Guide).
    """
    if not num_cores or not clock_hz:
        return Figure(source="the number of cores or their clock is unknown; not measured")
    return _derived(2 * num_cores * clock_hz, f"2 × {num_cores} cores × {_gigahertz(clock_hz)}")


def _unit_rate(
    table: ChipTable, rate: Rate | None, num_units: int | None, unit: str, clock_hz: int | None
) -> Figure:
    if rate is None:
        return Figure(source=f"no document gives it for {unit}; not measured")
    if not num_units or not clock_hz:
        return Figure(source=f"the number of {unit} or their clock is unknown; not measured")
    formula = f"{rate.value:g} operations × {num_units} {unit} × {_gigahertz(clock_hz)}"
    return _derived(rate.value * num_units * clock_hz, f"{formula}; {table.source(rate)}")


def _bandwidth(
    table: ChipTable, transfers: Rate | None, width_bits: int | None, clock_hz: int | None
) -> Figure:
    if transfers is None:
        return Figure(source="the type of its memory is unknown; not measured")
    if not width_bits or not clock_hz:
        return Figure(source="the width or clock of its memory is unknown; not measured")
    formula = f"{transfers.value:g} transfers × {width_bits} bits / 8 × {_gigahertz(clock_hz)}"
    return _derived(
        transfers.value * width_bits / 8 * clock_hz, f"{formula}; {table.source(transfers)}"
    )


def _exact_quotient(dividend: int | None, divisor: int) -> int | None:
    """Return the quotient; None if it is not an integer, as the numbers are then inconsistent."""
    return dividend // divisor if dividend and dividend % divisor == 0 else None


def _derived(value: float, source: str) -> Figure:
    return Figure(value=float(value), origin=Origin.DERIVED, source=source)


def _gigahertz(hertz: int) -> str:
    return f"{hertz / 1e9:.4g} GHz"
