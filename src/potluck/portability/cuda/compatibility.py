"""Which GPU code runs on which GPU, as far as NVIDIA guarantees it."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from potluck.portability.cuda.fat_binary import CodeKind, GpuCode, GpuModule
from potluck.portability.cuda.table import CudaTable


class GpuCompatibility(enum.IntEnum):
    """Whether code can run on a GPU, worst first."""

    NO = 0
    NOT_GUARANTEED = 1
    """Not guaranteed by NVIDIA: machine code for a Tegra on another chip, or the reverse."""
    YES = 2


def module_compatibility(
    module: GpuModule, capability: tuple[int, int], cuda: tuple[int, int] | None, table: CudaTable
) -> GpuCompatibility:
    """Return whether one of its codes runs on a GPU of ``capability`` with a driver that supports
    ``cuda``.
    """
    return max(code_compatibility(code, capability, cuda, table) for code in module.codes)


def code_compatibility(
    code: GpuCode, capability: tuple[int, int], cuda: tuple[int, int] | None, table: CudaTable
) -> GpuCompatibility:
    """Return the same for one code. PTX is not guaranteed to work if the driver's version is
    unknown.
    """
    if code.kind is CodeKind.PTX:
        if code.capability > capability:
            return GpuCompatibility.NO
        compiles = table.compiles(cuda, code.version) if cuda is not None else None
        return {
            True: GpuCompatibility.YES,
            False: GpuCompatibility.NO,
            None: GpuCompatibility.NOT_GUARANTEED,
        }[compiles]
    if code.kind is not CodeKind.SASS:
        return GpuCompatibility.NO
    if code.capability == capability:
        return GpuCompatibility.YES
    if code.capability[0] != capability[0] or code.capability[1] > capability[1]:
        return GpuCompatibility.NO
    if table.is_tegra(code.capability) or table.is_tegra(capability):
        return GpuCompatibility.NOT_GUARANTEED
    return GpuCompatibility.YES


def code_names(modules: Iterable[GpuModule]) -> str:
    """Return the codes as NVIDIA's tools name them: ``compute_90 (PTX), sm_90``."""
    codes = sorted({code for module in modules for code in module.codes})
    return ", ".join(dict.fromkeys(map(_code_name, codes)))


def _code_name(code: GpuCode) -> str:
    number = "{}{}".format(*code.capability)
    if code.kind is CodeKind.PTX:
        return f"compute_{number} (PTX)"
    return f"sm_{number}" if code.kind is CodeKind.SASS else f"intermediate code for {number}"
