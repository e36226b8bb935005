"""Which arithmetic a choice stands for, and what of a step has fast products."""

from __future__ import annotations

import logging
from unittest.mock import patch

import pytest
from support.engines.pools import pool_of
from support.kernels import cpp_checks

from potluck import kernels
from potluck.engines.arithmetic_choice import arithmetic_of_weights, arithmetic_on
from potluck.engines.backends import native_unit
from potluck.engines.native import engine as native
from potluck.engines.native.backend import COST
from potluck.errors import ParameterError
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.choices import ArithmeticChoice
from potluck.types.unit import UnitAddress

GPU = UnitAddress(
    unit_id="x/tinygrad:CL", backend="tinygrad:CL", engine="potluck.engines.tinygrad.backend"
)


def test_what_no_kernel_computes_faster_is_exact_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fast = ArithmeticChoice.FAST
    with caplog.at_level(logging.WARNING):
        assert arithmetic_on(native_unit("scalar"), fast) is Arithmetic.EXACT
        assert arithmetic_on(GPU, fast) is Arithmetic.EXACT
    assert caplog.messages == [
        "using exact arithmetic: the instruction set scalar has no fast kernels",
        "tinygrad:CL has only one arithmetic, so the setting has no effect",
    ]
    caplog.clear()
    assert arithmetic_on(native_unit("amx"), ArithmeticChoice.EXACT) is Arithmetic.EXACT
    assert not caplog.messages


@pytest.mark.parametrize("arithmetic", [Arithmetic.AVX512_BF16, Arithmetic.AMX, Arithmetic.I8MM])
def test_fast_is_that_of_the_instruction_set(arithmetic: Arithmetic) -> None:
    assert arithmetic.isa is not None
    with patch.object(native, "choose_isa", lambda isa: isa):
        assert arithmetic_on(native_unit(arithmetic.isa), ArithmeticChoice.FAST) is arithmetic


def test_a_cpu_with_tiles_has_the_arithmetic_of_those_without() -> None:
    isas = ("scalar", "avx2", "avx512", "avx512_bf16", "amx")
    assert arithmetics_with(isas) == (Arithmetic.EXACT, Arithmetic.AVX512_BF16, Arithmetic.AMX)
    assert arithmetics_with(("scalar", "neon", "dotprod")) == (Arithmetic.EXACT,)


def test_weights_without_fast_products_are_computed_exactly_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pairs, tiles, exact = Arithmetic.AVX512_BF16, Arithmetic.AMX, Arithmetic.EXACT
    with caplog.at_level(logging.WARNING):
        assert arithmetic_of_weights(tiles, {"f32", "q8_0"}) is tiles
        assert arithmetic_of_weights(pairs, {"f32", "bf16"}) is pairs
        assert arithmetic_of_weights(exact, {"f32"}) is exact
        assert not caplog.messages
        assert arithmetic_of_weights(pairs, {"f32", "q8_0"}) is exact
    assert caplog.messages == [
        "using exact arithmetic: avx512_bf16 has no fast kernels for f32, q8_0"
    ]


def test_an_engine_refuses_the_arithmetic_of_another_instruction_set() -> None:
    from support.engines.native_pipeline import make_program, small_config

    from potluck.types.program import Shard

    program = make_program(small_config(1), Shard.whole(1))
    with pytest.raises(ParameterError, match="scalar does not support avx512_bf16"):
        native.NativeEngine(
            program,
            num_blocks=1,
            max_step_tokens=1,
            pool=pool_of(1),
            isa="scalar",
            arithmetic=Arithmetic.AVX512_BF16,
        )


@pytest.mark.slow
def test_the_rows_of_a_step_that_have_fast_products() -> None:
    """Of ragged steps, by a program with kernels that mark what they computed."""
    cpp_checks.run("fast_products_check")


def test_the_scalar_kernels_have_no_fast_products() -> None:
    assert kernels.fast_formats("scalar") == []


def test_fast_arithmetic_takes_room_for_activations_in_bf16() -> None:
    from support.engines.native_pipeline import make_program, small_config

    from potluck.types.program import Shard

    program = make_program(small_config(1), Shard.whole(1))
    exact, fast = (
        COST.scratch_bytes(program, 48, num_threads=1, arithmetic=each)
        for each in (Arithmetic.EXACT, Arithmetic.AVX512_BF16)
    )
    widest = max(register.width for register in program.registers)
    assert 48 * widest <= fast - exact <= 48 * widest * 2
