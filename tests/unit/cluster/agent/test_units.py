"""How a worker reaches a unit, in the arithmetic of its deployment."""

from __future__ import annotations

import pytest
from support.machines import hardware

from potluck.cluster.agent.units import NodeUnits
from potluck.engines.backends import BACKENDS
from potluck.errors import EngineError
from potluck.types.arithmetic import Arithmetic
from potluck.types.hardware import Trial

WITH_TILES = ("scalar", "avx2", "avx512", "avx512_bf16", "amx")


def units(variants: tuple[str, ...], isa: str | None = None) -> NodeUnits:
    trial = Trial(device_id="cpu", backend="native", works=True, variants=variants)
    report = hardware.report(trials=(trial,))
    return NodeUnits(lambda: report, backends=BACKENDS, isa=isa)


@pytest.mark.parametrize(
    ("variants", "isa", "arithmetic", "variant"),
    [
        (WITH_TILES, None, Arithmetic.EXACT, "amx"),
        (WITH_TILES, None, Arithmetic.AMX, "amx"),
        (WITH_TILES, None, Arithmetic.AVX512_BF16, "avx512_bf16"),
        (WITH_TILES, "avx2", Arithmetic.EXACT, "avx2"),
        (("scalar", "neon"), None, Arithmetic.EXACT, "neon"),
    ],
)
def test_an_arithmetic_takes_its_instruction_set(
    variants: tuple[str, ...], isa: str | None, arithmetic: Arithmetic, variant: str
) -> None:
    node = units(variants, isa)
    assert node.address(node.require("cpu/native"), arithmetic).variant == variant


@pytest.mark.parametrize(
    ("variants", "isa"), [(("scalar", "avx2"), None), (WITH_TILES, "avx512"), (WITH_TILES, "amx")]
)
def test_a_stage_in_an_arithmetic_that_a_unit_lacks_is_refused(
    variants: tuple[str, ...], isa: str | None
) -> None:
    node = units(variants, isa)
    unit = node.require("cpu/native")
    with pytest.raises(EngineError, match="cpu/native does not compute in avx512_bf16") as raised:
        node.address(unit, Arithmetic.AVX512_BF16)
    assert raised.value.hint.startswith("it computes in exact")
