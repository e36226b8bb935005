"""Threads configure tiles only while they use them. The emulator shows it, own tiles do not."""

from __future__ import annotations

import pytest
from support.kernels.instruction_sets import AMX, IS_AMX_TESTED, kernels_to_test, load_perturbed
from support.kernels.linear_case import LinearCase

from potluck.kernels import kernels_for
from potluck.types.tensor import TensorFormat

NUM_ROWS = 20


@pytest.mark.skipif(
    not IS_AMX_TESTED, reason="not shown: this CPU has no AVX-512 BF16, or is none of x86-64"
)
def test_threads_keep_no_tiles() -> None:
    amx, scalar = kernels_to_test(AMX), kernels_for("scalar")
    perturbed = load_perturbed()
    for format in (TensorFormat.Q4_0, TensorFormat.BF16):
        case = LinearCase.make(scalar, format, 256, NUM_ROWS, 16)
        before = perturbed.num_emulated_instructions()
        (case.run_fast if format is TensorFormat.BF16 else case.run)(amx, NUM_ROWS, 16)
        if perturbed.num_emulated_instructions() == before:
            pytest.skip("not shown: these are the CPU's own tiles")
        assert not perturbed.amx_tiles_configured()
