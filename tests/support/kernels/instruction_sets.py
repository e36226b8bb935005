"""The instruction sets that kernels are tested for: this CPU's, and AMX by emulation.

What tests build has the row ``amx`` wherever AVX-512 BF16 is: the CPU's own tiles, or those of
``cpp/check/amx_emulator.h``. The machine code is that of the product.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

from support.kernels.build import built_for_this_cpu, load_extension, not_shown

from potluck.kernels import Kernels, available_isas, kernels_for

AMX = "amx"

IS_AMX_TESTED = "avx512_bf16" in available_isas()

TESTED_ISAS = tuple(available_isas())
if IS_AMX_TESTED and AMX not in TESTED_ISAS:
    TESTED_ISAS = (*TESTED_ISAS, AMX)


@cache
def load_perturbed() -> ModuleType:
    """``_perturbed``: the product's kernels, and those of AMX."""
    return load_extension(built_for_this_cpu("_perturbed*.so"))


def kernels_to_test(isa: str) -> Kernels:
    """The kernels of one of ``TESTED_ISAS``."""
    if isa in available_isas():
        return kernels_for(isa)
    if isa not in load_perturbed().available_isas():
        not_shown("this compiler does not know AMX")
    kernels: Kernels = load_perturbed().kernels_for(isa)
    return kernels
