"""Products by AMX tiles where they are cut: tiles, blocks of tokens and blocks of columns."""

from __future__ import annotations

import numpy as np
import pytest
from support.kernels.inputs import QUANTIZED_FORMATS, U, same_bits
from support.kernels.instruction_sets import AMX, IS_AMX_TESTED, kernels_to_test
from support.kernels.linear_case import LinearCase

from potluck.kernels import kernels_for
from potluck.types.tensor import TensorFormat

pytestmark = [
    pytest.mark.skipif(
        not IS_AMX_TESTED, reason="not shown: this CPU has no AVX-512 BF16, or is none of x86-64"
    ),
]

NUM_ROWS = 20
TOKENS = (7, 8, 11, 12, 13, 14, 15, 16, 17, 33)


@pytest.mark.parametrize("format", QUANTIZED_FORMATS, ids=lambda format: format.label)
def test_quantized_products_have_the_bits_of_scalar(format: TensorFormat) -> None:
    amx, scalar = kernels_to_test(AMX), kernels_for("scalar")
    case = LinearCase.make(scalar, format, 768, num_rows=NUM_ROWS, num_tokens=TOKENS[-1])
    expected = case.run(scalar, NUM_ROWS, TOKENS[-1])
    for num_tokens in TOKENS:
        made = case.run(amx, NUM_ROWS, num_tokens)
        assert same_bits(made, np.ascontiguousarray(expected[:num_tokens]))


# More columns than are packed at once: for 16 tokens 16384, for 129 (two blocks of them) 2048.
@pytest.mark.parametrize(("num_tokens", "num_columns"), [(16, 16384 + 256), (129, 2048 + 256)])
@pytest.mark.parametrize("format", [TensorFormat.Q4_0, TensorFormat.Q4_K, TensorFormat.Q6_K])
def test_sums_wait_between_blocks(format: TensorFormat, num_tokens: int, num_columns: int) -> None:
    amx, scalar = kernels_to_test(AMX), kernels_for("scalar")
    case = LinearCase.make(scalar, format, num_columns, num_rows=NUM_ROWS, num_tokens=num_tokens)
    expected = case.run(scalar, NUM_ROWS, num_tokens)
    assert same_bits(case.run(amx, NUM_ROWS, num_tokens), expected)


def in_order_of_tiles(case: LinearCase) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """BF16 products as TDPBF16PS adds them: 32 columns in two chains, even and odd, then the sum.

    Products of two bf16 are exact in float64 and so is a sum with a float32 that is not far below
    it, so that one rounding to float32 is that of an fma; numbers are far from subnormal.
    """
    x, w = case.x.astype(np.float64), case.weights.values.astype(np.float64)
    pad = -x.shape[1] % 32
    x, w = np.pad(x, ((0, 0), (0, pad))), np.pad(w, ((0, 0), (0, pad)))
    sums = np.zeros((x.shape[0], w.shape[0]), np.float32)
    for step in range(0, x.shape[1], 32):
        chains = []
        for odd in (0, 1):
            chain = np.zeros_like(sums)
            for k in range(step + odd, step + 32, 2):
                chain = (chain + np.outer(x[:, k], w[:, k])).astype(np.float32)
            chains.append(chain)
        sums += chains[0] + chains[1]
    return sums + case.bias


@pytest.mark.parametrize(
    ("num_tokens", "num_columns"), [(1, 96), (3, 33), (17, 31), (33, 65), (16, 1), (258, 512 + 40)]
)
def test_bf16_products_are_added_in_the_order_of_tiles(num_tokens: int, num_columns: int) -> None:
    amx = kernels_to_test(AMX)
    case = LinearCase.make(
        kernels_for("scalar"), TensorFormat.BF16, num_columns, NUM_ROWS, num_tokens
    ).with_bf16_activations()
    assert same_bits(case.run_fast(amx, NUM_ROWS, num_tokens), in_order_of_tiles(case))


def test_a_token_has_the_same_fast_bits_alone_and_among_others() -> None:
    amx = kernels_to_test(AMX)
    for format in (TensorFormat.BF16, TensorFormat.Q8_0, TensorFormat.Q6_K):
        case = LinearCase.make(kernels_for("scalar"), format, 1024 + 256, NUM_ROWS, 258)
        whole = case.run_fast(amx, NUM_ROWS, 258)
        for num_tokens in (1, 17):
            made = case.run_fast(amx, NUM_ROWS, num_tokens)
            assert same_bits(made, np.ascontiguousarray(whole[:num_tokens]))


def test_fast_products_err_by_the_rounding_to_bf16() -> None:
    """Of independent errors of at most 2^-8 in weight and activation: not less, or they are not
    rounded, and not more."""
    amx, scalar = kernels_to_test(AMX), kernels_for("scalar")
    case = LinearCase.make(scalar, TensorFormat.Q4_K, 2048, NUM_ROWS, 16)
    values = case.weights.values.astype(np.float64)
    exact = case.x.astype(np.float64) @ values.T + case.bias
    norms = np.sqrt((case.x.astype(np.float64) ** 2) @ (values**2).T)
    error = np.sqrt((((case.run_fast(amx, NUM_ROWS, 16) - exact) / norms) ** 2).mean())
    # A number's error is spread evenly over a step of 2^-7 of its power of two: 0.74 of itself.
    expected = 0.74 * 2.0**-7 / np.sqrt(12) * np.sqrt(2)
    assert 0.7 * expected < error < 1.3 * expected
    assert error > 1000 * U
