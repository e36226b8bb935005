"""The limits of this machine: plausible, and of the instructions that are there."""

from __future__ import annotations

import platform

import pytest
from support.engines.pools import pool_of

from potluck.engines.native.engine import available_isas
from potluck.engines.native.products import Operands
from potluck.engines.native.roofline import Limits, Roofline
from potluck.errors import EngineError
from potluck.kernels import runner

INSTRUCTIONS = {
    "avx2": {Operands.INT8: "vpmaddubsw ymm", Operands.F32: "vfmadd231ps ymm"},
    "avx512": {Operands.INT8: "vpdpbusd zmm", Operands.F32: "vfmadd231ps zmm"},
    "avx512_bf16": {
        Operands.INT8: "vpdpbusd zmm",
        Operands.BF16: "vdpbf16ps zmm",
        Operands.F32: "vfmadd231ps zmm",
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("isa", available_isas())
def test_limits(isa: str) -> None:
    """Between what no machine is slower than and what no core comes to."""
    roofline = Roofline(pool_of(1), isa, Operands)
    if platform.machine() == "x86_64" and isa != "amx":
        assert roofline.instructions == INSTRUCTIONS.get(isa, {})
    limits = roofline.sample()
    assert 1e8 < limits.read_bytes_per_second < 1e12
    assert limits.multiply_adds_per_second.keys() == roofline.instructions.keys()
    assert all(1e8 < rate < 1e13 for rate in limits.multiply_adds_per_second.values())


def test_wider_registers_do_more() -> None:
    """A round of a wider instruction takes no longer: a loop that were left out would show."""
    if platform.machine() != "x86_64" or "avx512" not in available_isas():
        pytest.skip("not shown: this CPU has no AVX-512")

    def best(isa: str, arithmetic: Operands) -> float:
        pool = pool_of(1)
        return max(
            runner.measure_peak(
                pool=pool, isa=isa, operands=arithmetic.value, num_chunks=1, num_rounds=20000
            )
            for _ in range(20)
        )

    assert best("avx512", Operands.INT8) > 2.5 * best("avx512", Operands.F32)
    assert best("avx2", Operands.INT8) > 2.5 * best("avx2", Operands.F32)


def test_the_better_of_two_samples() -> None:
    one = Limits(
        read_bytes_per_second=3.0,
        multiply_adds_per_second={Operands.INT8: 1.0, Operands.F32: 5.0},
    )
    other = Limits(
        read_bytes_per_second=2.0,
        multiply_adds_per_second={Operands.INT8: 4.0, Operands.F32: 2.0},
    )
    assert one.better(other) == Limits(
        read_bytes_per_second=3.0,
        multiply_adds_per_second={Operands.INT8: 4.0, Operands.F32: 5.0},
    )


def test_refusals() -> None:
    pool = pool_of(1)
    assert runner.peak_instruction("scalar", "int8") is None
    with pytest.raises(runner.Error, match="no int8 of its own"):
        runner.measure_peak(pool=pool, isa="scalar", operands="int8", num_chunks=1, num_rounds=1)
    with pytest.raises(runner.Error, match="are no operands 'int9'"):
        runner.peak_instruction("scalar", "int9")
    with pytest.raises(EngineError, match="no kernels for 'sse9'"):
        Roofline(pool, "sse9", [Operands.F32])
