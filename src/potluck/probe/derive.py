"""Figures worked out from what a device tells of itself."""

from __future__ import annotations

from potluck.types.hardware import Figure, Figures, Origin


def nvidia_figures(
    *,
    num_cores: int | None,
    max_sm_clock_hz: int | None,
    bus_width_bits: int | None,
    max_memory_clock_hz: int | None,
    compute_capability: tuple[int, int] | None = None,
) -> Figures:
    """From what NVML tells of a GPU; None or 0 is not known."""
    return Figures()


def mali_figures(
    product_id: int, num_cores: int, max_clock_hz: int, *, core_features: int | None = None
) -> Figures:
    """From a Mali's product id (the upper half of GPU_ID), its number of cores and its clock."""
    return Figures()


def amd_figures(
    *,
    simd_count: int | None,
    gfx_target_version: int | None,
    max_engine_clock_hz: int | None,
    memory_width_bits: int | None = None,
    max_memory_clock_hz: int | None = None,
) -> Figures:
    """From the properties of a node of KFD's topology; None or 0 is not known."""
    return Figures()


def merge_figures(*preferred_first: Figures) -> Figures:
    """Of each figure the first that is known; where none is, the last reason why not."""

    def first_known(figures: list[Figure]) -> Figure:
        known = (figure for figure in figures if figure.origin is not Origin.UNKNOWN)
        return next(known, figures[-1] if figures else Figure())

    return Figures(
        read_bytes_per_second=first_known(
            [figures.read_bytes_per_second for figures in preferred_first]
        ),
        f32_operations_per_second=first_known(
            [figures.f32_operations_per_second for figures in preferred_first]
        ),
        f16_operations_per_second=first_known(
            [figures.f16_operations_per_second for figures in preferred_first]
        ),
        int8_operations_per_second=first_known(
            [figures.int8_operations_per_second for figures in preferred_first]
        ),
    )
