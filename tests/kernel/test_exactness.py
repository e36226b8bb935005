"""An output element has the same bits however the work is cut."""

from __future__ import annotations

from itertools import pairwise, product

import gguf
import numpy as np
import pytest
from support.kernels.checks import kernel_names
from support.kernels.inputs import (
    FORMATS,
    QUANTIZED_FORMATS,
    StoredWeights,
    make_weights,
    same_bits,
    scale_bytes,
)
from support.kernels.instruction_sets import AMX, TESTED_ISAS, kernels_to_test
from support.kernels.linear_case import LinearCase

from potluck.kernels import available_isas, fast_formats, kernels_for, pack_rows, panel_bytes
from potluck.types.arithmetic import arithmetics_with
from potluck.types.tensor import TensorFormat

NUM_ROWS = 70


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)
@pytest.mark.parametrize("isa", TESTED_ISAS)
def test_a_token_is_the_same_alone_and_among_others(isa: str, format: TensorFormat) -> None:
    kernels, scalar = kernels_to_test(isa), kernels_for("scalar")
    case = LinearCase.make(scalar, format, 256, num_rows=NUM_ROWS, num_tokens=512)
    whole = case.run(kernels, NUM_ROWS, 512)
    assert same_bits(whole, case.run(scalar, NUM_ROWS, 512))  # on every instruction set
    assert len(np.unique(whole)) > 0.9 * whole.size  # no degenerate inputs
    for num_tokens in (*range(1, 14), 64):
        made = case.run(kernels, NUM_ROWS, num_tokens)
        assert same_bits(made, np.ascontiguousarray(whole[:num_tokens]))


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)
@pytest.mark.parametrize("isa", TESTED_ISAS)
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_panel_ranges_make_up_the_whole(isa: str, format: TensorFormat, num_tokens: int) -> None:
    kernels, scalar = kernels_to_test(isa), kernels_for("scalar")
    case = LinearCase.make(scalar, format, 256, num_rows=NUM_ROWS, num_tokens=num_tokens)
    whole = case.run(kernels, NUM_ROWS, num_tokens)
    for ranges in (((3, 5), (0, 1), (1, 3)), ((0, 4), (4, 4), (4, 5))):
        assert same_bits(case.run(kernels, NUM_ROWS, num_tokens, panel_ranges=ranges), whole)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)
def test_without_bias_nothing_is_added(format: TensorFormat) -> None:
    for isa in TESTED_ISAS:
        case = LinearCase.make(kernels_for("scalar"), format, 256, num_rows=17, num_tokens=3)
        plain = case.run(kernels_to_test(isa), 17, 3, with_bias=False)
        with_bias = case.run(kernels_to_test(isa), 17, 3)
        assert same_bits(plain + case.bias, with_bias)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)
def test_rows_can_be_packed_in_any_pieces(format: TensorFormat) -> None:
    weights = make_weights(format, 37, 512, np.random.default_rng(11))
    whole = weights.panels(37)
    for cuts in ((0, 1, 2, 3, 37), (0, 15, 31, 33, 37), (0, 16, 32, 37)):
        panels = np.zeros(3 * panel_bytes(format.label, 512), np.uint8)
        for start, end in pairwise(cuts):
            rows = np.ascontiguousarray(weights.stored[start:end]).reshape(-1)
            pack_rows(format.label, 512, rows, start, end - start, panels)
        assert same_bits(panels, whole)


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.label)
def test_panels_take_the_bytes_of_the_file(format: TensorFormat) -> None:
    assert panel_bytes(format.label, 512) == 16 * format.row_bytes(512)


@pytest.mark.parametrize("format", QUANTIZED_FORMATS, ids=lambda format: format.label)
@pytest.mark.parametrize("isa", TESTED_ISAS)
def test_largest_sums_do_not_overflow(isa: str, format: TensorFormat) -> None:
    """Every integer the same extreme (sub-scales too), all activations -127 or all 127."""
    weights = make_weights(format, 16, 256, np.random.default_rng(12))
    for sign, fill in product((-1, 1), (0x00, 0x7F, 0x80, 0xFF)):
        check_largest_sums(isa, format, weights, sign=sign, fill=fill)


def check_largest_sums(
    isa: str, format: TensorFormat, weights: StoredWeights, *, sign: int, fill: int
) -> None:
    keep = scale_bytes(format)
    stored = np.full_like(weights.stored, fill)
    blocks = stored.reshape(16, -1, format.block_bytes)
    blocks[:, :, keep] = weights.stored.reshape(blocks.shape)[:, :, keep]
    values = gguf.dequantize(stored, gguf.GGMLQuantizationType[format.name]).astype(np.float64)

    q = np.full((1, 256), sign * 127, np.int8)
    scales = np.ones((1, 8), np.float32)
    sums = np.full((1, 8), sign * 127 * 32, np.int32)
    panels = np.zeros(panel_bytes(format.label, 256), np.uint8)
    pack_rows(format.label, 256, stored.reshape(-1), 0, 16, panels)
    out = np.empty((1, 16), np.float32)
    kernels_to_test(isa).linear_quantized(format.label, panels, q, scales, sums, None, out, 0, 1)

    expected = values.sum(axis=1) * sign * 127
    # Eight groups with two fma each. A saturated sum would be off by a hundredth or more.
    norms = (np.abs(values) + 2 * weights.minimums).sum(axis=1) * 127
    assert (np.abs(out[0] - expected) <= 32 * 2.0**-24 * norms).all(), (sign, fill)


@pytest.mark.parametrize("isa", TESTED_ISAS)
def test_a_token_has_the_same_fast_bits_alone_and_among_others(isa: str) -> None:
    """Of BF16 weights decode and prefill agree in every arithmetic, also in a last odd column."""
    if "linear_fast.bf16" not in kernel_names(isa):
        return  # it has exact products only
    kernels, scalar = kernels_to_test(isa), kernels_for("scalar")
    case = LinearCase.make(scalar, TensorFormat.BF16, 257, NUM_ROWS, 512)
    whole = case.run_fast(kernels, NUM_ROWS, 512)
    for num_tokens in (1, 7, 64):
        made = case.run_fast(kernels, NUM_ROWS, num_tokens)
        assert same_bits(made, np.ascontiguousarray(whole[:num_tokens]))


@pytest.mark.skipif("avx512_bf16" not in TESTED_ISAS, reason="not shown: no products of bf16 here")
def test_fast_arithmetics_do_not_agree() -> None:
    """If they did they would be one arithmetic, and a deployment could have CPUs of both kinds."""
    case = LinearCase.make(kernels_for("scalar"), TensorFormat.BF16, 256, NUM_ROWS, 8)
    exact = case.with_bf16_activations().run(kernels_for("scalar"), NUM_ROWS, 8)
    of_pairs = case.run_fast(kernels_to_test("avx512_bf16"), NUM_ROWS, 8)
    assert not same_bits(exact, of_pairs)
    if AMX in TESTED_ISAS:
        assert not same_bits(of_pairs, case.run_fast(kernels_to_test(AMX), NUM_ROWS, 8))


@pytest.mark.parametrize("isa", available_isas())
def test_the_core_has_the_fast_products_that_planners_count_on(isa: str) -> None:
    *_, arithmetic = arithmetics_with((isa,))
    assert set(fast_formats(isa)) == {each.label for each in arithmetic.fast_formats}
