"""The self-test that a node runs on itself catches a small mistake in a kernel of its products."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from support.engines.fake_backends.behaviour import right_results
from support.kernels.build import built_for_this_cpu, load_extension

from potluck.kernels import Kernels, available_isas, pack_rows, panel_bytes
from potluck.probe.cases import self_test as case
from potluck.types.tensor import TensorFormat

KERNELS = {
    "quantize": TensorFormat.Q8_0,
    "linear.q8_0": TensorFormat.Q8_0,
    "linear.q4_0": TensorFormat.Q4_0,
}


@pytest.fixture(scope="module")
def perturbed() -> ModuleType:
    return load_extension(built_for_this_cpu("_perturbed*.so"))


def deviation_of(kernels: Kernels, fmt: TensorFormat) -> str:
    """Of right results with the products of ``kernels`` among them."""
    num_tokens, num_groups = case.NUM_TOKENS, case.NUM_COLUMNS // 32
    q = np.empty((num_tokens, case.NUM_COLUMNS), dtype=np.int8)
    scales = np.empty((num_tokens, num_groups), dtype=np.float32)
    sums = np.empty((num_tokens, num_groups), dtype=np.int32)
    kernels.quantize(np.array(case.activations(), dtype=np.float32), q, scales, sums)
    num_panels = -(-case.NUM_ROWS // 16)
    panels = np.zeros(num_panels * panel_bytes(fmt.label, case.NUM_COLUMNS), dtype=np.uint8)
    stored = np.frombuffer(case.stored_weights(fmt), dtype=np.uint8)
    pack_rows(fmt.label, case.NUM_COLUMNS, stored, 0, case.NUM_ROWS, panels)
    out = np.empty((num_tokens, case.NUM_ROWS), dtype=np.float32)
    kernels.linear_quantized(fmt.label, panels, q, scales, sums, None, out, 0, num_panels)
    return case.deviation({**right_results(), fmt.label: out.astype(float).tolist()})


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("name", KERNELS)
def test_a_spoilt_kernel_is_caught(perturbed: ModuleType, isa: str, name: str) -> None:
    fmt = KERNELS[name]
    kernels = perturbed.kernels_for(isa)
    assert deviation_of(kernels, fmt) == ""
    perturbed.set_perturbation(f"{isa}.{name}")
    try:
        assert f"the {fmt.label} product[" in deviation_of(kernels, fmt)
    finally:
        perturbed.set_perturbation("")
