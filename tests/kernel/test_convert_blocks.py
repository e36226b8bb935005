"""The quantizers: Q8_0, Q4_0 and Q5_0 byte for byte, Q4_K and Q6_K by the error that they leave."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernels.convert_checks import TARGET_FORMATS, encode
from support.kernels.inputs import F32, F64, U8, same_bits

from potluck.kernels import Kernels, available_isas, kernels_for
from potluck.types.tensor import TensorFormat

PLAIN_TARGETS = (TensorFormat.Q8_0, TensorFormat.Q4_0, TensorFormat.Q5_0)
K_TARGETS = (TensorFormat.Q4_K, TensorFormat.Q6_K, TensorFormat.Q3_K)

plain_targets = pytest.mark.parametrize("format", PLAIN_TARGETS, ids=lambda format: format.label)
k_targets = pytest.mark.parametrize("format", K_TARGETS, ids=lambda format: format.label)
all_targets = pytest.mark.parametrize("format", TARGET_FORMATS, ids=lambda format: format.label)


@pytest.fixture(params=available_isas())
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_for(request.param)


def by_gguf(x: F32, format: TensorFormat) -> U8:
    with np.errstate(all="ignore"):
        made: U8 = gguf.quantize(x, gguf.GGMLQuantizationType[format.name])
    return made


def read_back(blocks: U8, format: TensorFormat) -> F64:
    values: F64 = gguf.dequantize(blocks, gguf.GGMLQuantizationType[format.name]).astype(np.float64)
    return values


def assert_as_gguf(kernels: Kernels, format: TensorFormat, x: F32) -> None:
    expected = by_gguf(x.reshape(-1, 32), format)
    made, is_finite = encode(kernels, format, x.reshape(-1))
    different = (made.reshape(expected.shape) != expected).any(axis=1)
    assert not different.any(), x.reshape(-1, 32)[different][0]
    scales = expected[:, :2].copy().view(np.float16)
    assert is_finite == bool(np.isfinite(scales).all())


@plain_targets
def test_ties(kernels: Kernels, format: TensorFormat) -> None:
    """Half-integers where the scale is 1, and the floats next to them."""
    largest = {TensorFormat.Q8_0: 127, TensorFormat.Q4_0: 8, TensorFormat.Q5_0: 16}[format]
    halves = (np.arange(-largest, largest) + 0.5).astype(np.float32)
    near = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
    values = np.concatenate([halves, *near])
    rows = np.resize(values, (-(-len(values) // 31), 31))
    for extreme in (largest, -largest):
        for scale in (1.0, 2.0**-10, 3.0):
            x = np.insert(rows, 0, np.float32(extreme), axis=1) * np.float32(scale)
            assert_as_gguf(kernels, format, x)


@plain_targets
def test_which_extreme_comes_first(kernels: Kernels, format: TensorFormat) -> None:
    for first in range(31):
        x = np.full((2, 32), 0.25, np.float32)
        x[:, first] = 1.0, -1.0
        x[:, first + 1 :] *= -4.0
        assert_as_gguf(kernels, format, x)


@plain_targets
def test_zeros(kernels: Kernels, format: TensorFormat) -> None:
    x = np.zeros((4, 32), np.float32)
    x[1] = -0.0
    x[2, ::2] = -0.0
    x[3, 1::2] = -0.0
    assert_as_gguf(kernels, format, x)


@plain_targets
def test_every_magnitude(kernels: Kernels, format: TensorFormat) -> None:
    """From float32's subnormals to its largest, so that scales and inverses overflow and vanish."""
    rng = np.random.default_rng(1)
    exponents = np.arange(-149, 128)
    for _ in range(20):
        x = rng.uniform(1, 2, (len(exponents), 32)) * rng.choice([-1.0, 1.0], (len(exponents), 32))
        x *= rng.choice([0.0, 1.0, 1.0, 1.0], x.shape)
        x *= 2.0 ** (exponents[:, None] - rng.integers(0, 6, x.shape))
        for row in x.astype(np.float32):  # one by one: the flag is that of all blocks
            assert_as_gguf(kernels, format, row)


@plain_targets
def test_any_finite_bits(kernels: Kernels, format: TensorFormat) -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, 320_000, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x)]
    assert_as_gguf(kernels, format, x[: len(x) // 32 * 32])


@plain_targets
def test_ordinary_rows(kernels: Kernels, format: TensorFormat) -> None:
    rng = np.random.default_rng(3)
    for rows in (rng.standard_normal, rng.laplace, lambda size: rng.standard_t(3, size)):
        x = rows(size=(2000, 32)) * 10.0 ** rng.uniform(-9, 6, (2000, 1))
        assert_as_gguf(kernels, format, x.astype(np.float32))


def grid_error(x: F32, format: TensorFormat) -> float:
    """RMS of the rounding errors if every group had a grid over just its range, scales unrounded.

    A value is then off by up to half a step either way, evenly: step^2 / 12 in the square. Q6_K's
    32 steps reach from 0 to the largest magnitude of 16, Q3_K's 7 over twice that, and Q4_K's 15
    over the range of 32 and 0.
    """
    groups = x.reshape(-1, 32 if format is TensorFormat.Q4_K else 16).astype(np.float64)
    if format is not TensorFormat.Q4_K:
        steps = np.abs(groups).max(axis=1) / (32 if format is TensorFormat.Q6_K else 3.5)
    else:
        steps = (groups.max(axis=1).clip(0) - groups.min(axis=1).clip(None, 0)) / 15
    return float(np.sqrt((steps**2).mean() / 12))


# Of an error of 1 by an even grid the search has to save as much as rounding the scales to 6 and 8
# bits takes and a tenth besides.
SEARCHED = 0.9
# For Gaussian rows, relative to their RMS. E[max^2] of n magnitudes is the integral of
# 2 m (1 - erf(m / sqrt(2))^n): 4.55 for 16, 5.71 for 32; E[range^2] of 32 values is 17.6 (both
# computed, the latter from 400,000 draws). The even grid of Q6_K is off by sqrt(4.55 / 12) / 32 =
# 0.01924, that of Q4_K by sqrt(17.6 / 12) / 15 = 0.0807, that of Q8_0 by sqrt(5.71 / 12) / 127 =
# 0.00543, that of Q4_0 by sqrt(5.71 / 12) / 8 = 0.0862 and that of Q5_0 by half of it, without what
# is cut off at the end of the other sign; 2 % are for that, and for the rounding of scales. The
# even grid of Q3_K is off by sqrt(4.55 / 12) / 3.5 = 0.1759.
# IQ4_NL's table is made for such rows: it saves an eighth of the error of Q4_0's even grid.
GAUSSIAN_ERROR = {
    TensorFormat.Q8_0: 1.02 * 0.00543,
    TensorFormat.Q4_0: 1.02 * 0.0862,
    TensorFormat.Q5_0: 1.02 * 0.0431,
    TensorFormat.Q6_K: SEARCHED * 0.01924,
    TensorFormat.Q4_K: SEARCHED * 0.0807,
    TensorFormat.Q3_K: SEARCHED * 0.1759,
    TensorFormat.IQ4_NL: 0.87 * 0.0862,
}


def rms_error(x: F32, format: TensorFormat) -> float:
    made, is_finite = encode(kernels_for(available_isas()[-1]), format, x.reshape(-1))
    assert is_finite
    return float(np.sqrt(((read_back(made, format) - x.reshape(-1)) ** 2).mean()))


@all_targets
@pytest.mark.parametrize("sigma", [1.0, 0.02, 1000.0])
def test_error_of_gaussian_rows(format: TensorFormat, sigma: float) -> None:
    x = (np.random.default_rng(4).standard_normal((1000, 1024)) * sigma).astype(np.float32)
    assert rms_error(x, format) <= GAUSSIAN_ERROR[format] * sigma


@k_targets
def test_error_of_other_rows(format: TensorFormat) -> None:
    rng = np.random.default_rng(5)
    shape = (500, 1024)
    for x in (rng.laplace(size=shape), rng.standard_t(4, shape), rng.uniform(-1, 1, shape)):
        rows = x.astype(np.float32)
        # Of 7 steps the search saves what rounding the scales takes, where extremes are no rarer.
        share = 1.0 if format is TensorFormat.Q3_K else SEARCHED
        assert rms_error(rows, format) <= share * grid_error(rows, format)


@k_targets
def test_small_rows_keep_what_f16_scales_can(format: TensorFormat) -> None:
    """Where a rounded scale would be one or two of f16's smallest steps, the error is that step's.

    d is a multiple of 2^-24, and the integers beside it can make nearly every multiple of it.
    """
    rng = np.random.default_rng(6)
    for sigma in (3e-5, 1e-5, 1e-6):
        x = (rng.standard_normal((50, 1024)) * sigma).astype(np.float32)
        step = 2.0**-24
        assert rms_error(x, format) <= max(1.3 * grid_error(x, format), step / 2)


def test_no_scale_next_to_the_one_found_is_better() -> None:
    """Q6_K tries them all; Q4_K only next to a fit, so there the best may lie one farther."""
    x = np.random.default_rng(7).standard_t(5, 16 * 256).astype(np.float32)
    made, _ = encode(kernels_for("scalar"), TensorFormat.Q6_K, x)
    rows = made.reshape(-1, TensorFormat.Q6_K.block_bytes)
    d = rows[:, 208:].copy().view(np.float16).astype(np.float64)
    integers = rows[:, 192:208].view(np.int8).astype(np.int64)
    groups = x.reshape(-1, 16, 16).astype(np.float64)
    read = read_back(made, TensorFormat.Q6_K).reshape(groups.shape)
    errors = ((read - groups) ** 2).sum(axis=2)
    for change in (-1, 1):
        changed = integers + change
        steps = (d * np.where(changed == 0, 1, changed))[..., None]
        values = np.clip(np.rint(groups / steps), -32, 31)
        others = ((values * steps - groups) ** 2).sum(axis=2)
        allowed = (changed != 0) & (np.abs(changed) <= 127)
        assert (errors <= others * (1 + 1e-5))[allowed].all()


@k_targets
def test_zeros_stay_zero(kernels: Kernels, format: TensorFormat) -> None:
    for x in (np.zeros(768, np.float32), np.full(768, -0.0, np.float32)):
        made, is_finite = encode(kernels, format, x)
        assert is_finite
        assert (read_back(made, format) == 0).all()


@k_targets
@pytest.mark.parametrize("value", [3e38, -3e38, 1e20, -1e10])
def test_too_large_for_k_blocks(kernels: Kernels, format: TensorFormat, value: float) -> None:
    """Such a block is zero bytes, its neighbour is as ever."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal(512).astype(np.float32)
    alone, _ = encode(kernels, format, x)
    for place in (3, 300):
        spoilt = x.copy()
        spoilt[place] = value
        made, is_finite = encode(kernels, format, spoilt)
        assert not is_finite
        blocks, expected = made.reshape(2, -1), alone.reshape(2, -1).copy()
        expected[place // 256] = 0
        assert same_bits(blocks, expected)


@st.composite
def blocks_of_any_kind(draw: st.DrawFn) -> F32:
    """512 values whose groups differ in size, offset and sparseness."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = rng.standard_normal((32, 16))
    x *= 10.0 ** rng.uniform(-draw(st.integers(0, 6)), 0, (32, 1))
    x += draw(st.sampled_from([0.0, 0.0, 1.0, -1.0, 30.0])) * rng.integers(0, 2, (32, 1))
    x *= rng.random((32, 16)) < draw(st.sampled_from([1.0, 0.5, 0.05]))
    if draw(st.booleans()):
        x = np.abs(x) * draw(st.sampled_from([-1.0, 1.0]))
    return (x * 10.0 ** draw(st.integers(-7, 3))).astype(np.float32).reshape(-1)


@settings(max_examples=150)
@given(x=blocks_of_any_kind(), target=st.sampled_from(TARGET_FORMATS))
def test_no_value_is_far_off(x: F32, target: TensorFormat) -> None:
    """No value is off by more than one and a half steps of the coarsest grid its block may need.

    Half a step is rounding; cut-off extremes and rounded scales may take another. Where float16
    has no finer scale, by what its smallest step makes of the largest integers.
    """
    made, is_finite = encode(kernels_for(available_isas()[-1]), target, x)
    assert is_finite
    blocks = x.reshape(-1, target.block_elements).astype(np.float64)
    span = blocks.max(axis=1).clip(0) - blocks.min(axis=1).clip(None, 0)
    largest = np.abs(blocks).max(axis=1)
    steps = {
        TensorFormat.Q8_0: largest / 127,
        TensorFormat.Q4_0: largest / 8,
        TensorFormat.Q5_0: largest / 16,
        TensorFormat.Q4_K: span / 15,
        TensorFormat.Q6_K: largest / 32,
        TensorFormat.Q3_K: largest / 4,
        TensorFormat.IQ4_NL: largest * 24 / 127,  # the table's widest gap
    }[target]
    most = {TensorFormat.Q8_0: 127, TensorFormat.IQ4_NL: 127, TensorFormat.Q5_0: 16}
    smallest = most.get(target, 8) * 2.0**-24
    errors = np.abs(read_back(made, target).reshape(blocks.shape) - blocks)
    assert (errors.max(axis=1) <= 1.5 * steps + smallest).all()
