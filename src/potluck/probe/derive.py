"""Figures worked out from what a device tells of itself: how many units, at which clock.

What one unit does per clock stands in ``chips.toml`` with its source. Rates are peaks: a clock is
the highest that the device reports. A figure of which one factor is not known is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.probe.names import search_key
from potluck.types.hardware import Figure, Figures, Origin

if TYPE_CHECKING:
    from potluck.probe.chip_table import ChipTable, MaliCore, Rate


_GEFORCE = "geforce rtx"
"""What the names of consumer cards with matrix units have, those in laptops too."""


def nvidia_figures(
    *,
    num_cores: int | None,
    max_sm_clock_hz: int | None,
    bus_width_bits: int | None,
    max_memory_clock_hz: int | None,
    compute_capability: tuple[int, int] | None = None,
    name: str = "",
) -> Figures:
    """From what NVML tells of a whole GPU (not of a MIG slice); None or 0 is not known.

    The clock of the memory is NVML's, which is half of the data rate. 16-bit and 8-bit rates are
    told where a compute capability settles them, for some together with the product's ``name``.
    """
    from potluck.probe.chip_table import shipped_table

    table = shipped_table()
    f16 = int8 = Figure(source="this compute capability does not settle it, and not measured")
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


def mali_figures(
    product_id: int, num_cores: int, max_clock_hz: int, *, core_features: int | None = None
) -> Figures:
    """From a Mali's product id (the upper half of the register GPU_ID), cores and clock.

    ``core_features`` is the register of that name, which a few models need to tell the size of
    their cores. Float16 is twice float32 (libGPUInfo). The memory is the machine's.
    """
    from potluck.probe.chip_table import shipped_table

    memory = Figure(source="the machine's own memory, not measured")
    int8 = Figure(source="no document gives the rate of 8-bit dot products, and not measured")
    table = shipped_table()
    fitting = [
        core
        for core in table.mali
        if product_id & core.mask == core.product_id and num_cores >= core.min_cores
    ]
    core = max(fitting, key=lambda core: core.min_cores, default=None)
    multiply_adds = None if core is None else _multiply_adds(core, core_features)
    if core is None or multiply_adds is None or max_clock_hz <= 0:
        reason = f"Mali of product id {product_id:#06x}: "
        if core is None:
            reason += f"in no table with {num_cores} cores, and not measured"
        elif multiply_adds is None:
            reason += "comes with cores of several sizes, and it is not told which"
        else:
            reason += "its clock is not told, and not measured"
        unknown = Figure(source=reason)
        return Figures(
            read_bytes_per_second=memory,
            f32_operations_per_second=unknown,
            f16_operations_per_second=unknown,
            int8_operations_per_second=int8,
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
    """From the properties of a node of KFD's topology and its memory bank; None or 0 is not known.

    Dual issue of RDNA 3 is not counted. How often the memory transfers per clock depends on its
    type, which KFD does not tell: bandwidth is known where all chips of a target have one type.
    """
    from potluck.probe.chip_table import shipped_table

    table = shipped_table()
    target = "" if gfx_target_version is None else gfx_target(gfx_target_version)
    unit = next((unit for unit in table.amd if target in unit.targets), None)
    if unit is None:
        unknown = Figure(source=f"{target or 'its target'} is in no table, and not measured")
        return Figures(
            read_bytes_per_second=unknown,
            f32_operations_per_second=unknown,
            f16_operations_per_second=unknown,
            int8_operations_per_second=unknown,
        )
    num_units = _exact_quotient(simd_count, unit.simds)
    what = f"compute units of {target}"
    return Figures(
        read_bytes_per_second=_bandwidth(
            table, unit.memory_transfers, memory_width_bits, max_memory_clock_hz
        ),
        f32_operations_per_second=_unit_rate(
            table, unit.f32_operations, num_units, what, max_engine_clock_hz
        ),
        f16_operations_per_second=_unit_rate(
            table, unit.f16_operations, num_units, what, max_engine_clock_hz
        ),
        int8_operations_per_second=_unit_rate(
            table, unit.int8_operations, num_units, what, max_engine_clock_hz
        ),
    )


def gfx_target(gfx_target_version: int) -> str:
    """LLVM's name for KFD's number: 90010 is ``gfx90a``, 110001 is ``gfx1101``.

    Major, minor and stepping have two decimal digits each (Linux, ``kfd_device.c``); LLVM writes
    the last two as one hexadecimal digit each.
    """
    major, rest = divmod(gfx_target_version, 10_000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}" if major > 0 else ""


def merge_figures(*preferred_first: Figures) -> Figures:
    """Of each figure the first that is known; where none is, all the reasons why not."""
    return Figures(
        read_bytes_per_second=_first_known(
            [figures.read_bytes_per_second for figures in preferred_first]
        ),
        f32_operations_per_second=_first_known(
            [figures.f32_operations_per_second for figures in preferred_first]
        ),
        f16_operations_per_second=_first_known(
            [figures.f16_operations_per_second for figures in preferred_first]
        ),
        int8_operations_per_second=_first_known(
            [figures.int8_operations_per_second for figures in preferred_first]
        ),
        fast_bf16_operations_per_second=_first_known(
            [figures.fast_bf16_operations_per_second for figures in preferred_first]
        ),
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
    """A CUDA core does one float32 multiply-add per clock (CUDA C++ Programming Guide)."""
    if not num_cores or not clock_hz:
        return Figure(source="the number of cores or their clock is not told, and not measured")
    return _derived(2 * num_cores * clock_hz, f"2 × {num_cores} cores × {_gigahertz(clock_hz)}")


def _unit_rate(
    table: ChipTable, rate: Rate | None, num_units: int | None, unit: str, clock_hz: int | None
) -> Figure:
    if rate is None:
        return Figure(source=f"no document that was read says it of {unit}, and not measured")
    if not num_units or not clock_hz:
        return Figure(source=f"the number of {unit} or their clock is not told, and not measured")
    formula = f"{rate.value:g} operations × {num_units} {unit} × {_gigahertz(clock_hz)}"
    return _derived(rate.value * num_units * clock_hz, f"{formula}; {table.source(rate)}")


def _bandwidth(
    table: ChipTable, transfers: Rate | None, width_bits: int | None, clock_hz: int | None
) -> Figure:
    if transfers is None:
        return Figure(source="the type of its memory is not told, and not measured")
    if not width_bits or not clock_hz:
        return Figure(source="the width or clock of its memory is not told, and not measured")
    formula = f"{transfers.value:g} transfers × {width_bits} bits / 8 × {_gigahertz(clock_hz)}"
    return _derived(
        transfers.value * width_bits / 8 * clock_hz, f"{formula}; {table.source(transfers)}"
    )


def _multiply_adds(core: MaliCore, core_features: int | None) -> int | None:
    if core.multiply_adds_per_core is not None:
        return core.multiply_adds_per_core
    if core_features is None:
        return None
    variant = core_features & 0xF
    if core.multiply_adds_per_engine is not None:
        return core.multiply_adds_per_engine * variant or None
    return (core.multiply_adds_by_variant or {}).get(str(variant))


def _exact_quotient(dividend: int | None, divisor: int) -> int | None:
    """None where it is not whole: then the two numbers are not of one device."""
    return dividend // divisor if dividend and dividend % divisor == 0 else None


def _derived(value: float, source: str) -> Figure:
    return Figure(value=float(value), origin=Origin.DERIVED, source=source)


def _gigahertz(hertz: int) -> str:
    return f"{hertz / 1e9:.4g} GHz"
