"""Conversions and the exponential, over all or very many values; what is not finite."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from potluck.kernels import Kernels, available_isas, kernels_for, pack_rows, panel_bytes

F32 = NDArray[np.float32]


@pytest.fixture(params=available_isas())
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_for(request.param)


def embed_row(kernels: Kernels, format: str, stored: NDArray[np.uint16]) -> F32:
    num_columns = len(stored)
    panels = np.zeros(panel_bytes(format, num_columns), np.uint8)
    pack_rows(format, num_columns, stored.view(np.uint8), 0, 1, panels)
    out = np.empty(num_columns, np.float32)
    kernels.embed(format, panels, 1, 0, out)
    return out


def to_f16(kernels: Kernels, x: F32) -> NDArray[np.uint16]:
    padded = np.zeros((1, -(-len(x) // 16) * 16), np.float32)
    padded[0, : len(x)] = x
    keys = np.zeros((1, 1, padded.shape[1], 16), np.uint16)
    values = np.zeros((1, 1, 16, padded.shape[1]), np.uint16)
    kernels.append_kv(padded, padded, keys, values, 0, 3)
    assert (keys[0, 0, :, 3] == values[0, 0, 3]).all()
    return np.ascontiguousarray(values[0, 0, 3, : len(x)])


def test_every_f16_to_f32(kernels: Kernels) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    out = embed_row(kernels, "f16", halves)
    expected = halves.view(np.float16).astype(np.float32)
    numbers = ~np.isnan(expected)
    assert (out[numbers].view(np.uint32) == expected[numbers].view(np.uint32)).all()
    # NaN stays NaN: sign and payload kept, quiet (Intel SDM, VCVTPH2PS).
    nan = halves[~numbers].astype(np.uint32)
    bits = (nan & 0x8000) << 16 | 0x7FC00000 | (nan & 0x3FF) << 13
    assert (out[~numbers].view(np.uint32) == bits).all()


def test_every_bf16_to_f32(kernels: Kernels) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    out = embed_row(kernels, "bf16", halves)
    assert (out.view(np.uint32) == halves.astype(np.uint32) << 16).all()


def test_f32_to_f16(kernels: Kernels) -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)  # exact in f32
    toward_zero, away = (np.nextafter(middles, np.float32(end)) for end in (0, np.inf))
    limits = np.array([65519.996, 65520.0, 65536.0, 1e30, np.inf, 1e-45, 2.0**-25], np.float32)
    bits = np.random.default_rng(0).integers(0, 2**32, 500_000, dtype=np.uint64)
    random = bits.astype(np.uint32).view(np.float32)
    x = np.concatenate([halves.astype(np.float32), middles, toward_zero, away, limits, random])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(np.float16).view(np.uint16)
    made = to_f16(kernels, x)
    numbers = ~np.isnan(x)
    assert (made[numbers] == expected[numbers]).all()
    nan = x[~numbers].view(np.uint32)
    assert (made[~numbers] == (nan >> 16 & 0x8000 | 0x7E00 | nan >> 13 & 0x3FF)).all()


def test_f32_to_bf16(kernels: Kernels) -> None:
    halves = np.arange(0x7F80, dtype=np.uint16)  # all finite ones, zero first
    next_to = np.arange(-1, 2)[:, None]
    middles = (halves.astype(np.int64) << 16) + 0x8000 + next_to
    exact = halves.astype(np.int64) << 16
    bits = np.concatenate([exact, *middles, [0x7F7FFFFF, 0x7F800000]]).astype(np.uint32)
    expected = np.concatenate(
        # Below a middle, the middle itself (to the even one of its neighbours), and above.
        [halves, halves, halves + (halves & 1), halves + 1, [0x7F80, 0x7F80]]
    )
    for sign in (0, 0x8000):
        x = (bits | np.uint32(sign << 16)).view(np.float32)
        made = np.empty(len(x), np.uint16)
        kernels.round_bf16(x, made)
        assert (made == expected | sign).all()
    nan = np.array([0x7F800001, 0x7FFFFFFF, 0xFF808000, 0x7FC00000], np.uint32)
    made = np.empty(len(nan), np.uint16)
    kernels.round_bf16(nan.view(np.float32), made)
    assert made.tolist() == [0x7FC0, 0x7FFF, 0xFFC0, 0x7FC0]


def exp(kernels: Kernels, x: F32) -> F32:
    out = np.empty_like(x)
    kernels.exp_sum(x, 0.0, out)
    return out


def test_exp_is_within_one_ulp(kernels: Kernels) -> None:
    near = np.linspace(-104.5, 88.8, 1_000_000, dtype=np.float32)
    small = np.geomspace(1e-30, 1.0, 100_000, dtype=np.float32)
    # Where n = round(x / ln 2) steps, and where results become subnormal or infinite.
    steps = (np.arange(-150, 129) + 0.5) * np.log(2)
    around = (steps[:, None] * (1 + np.arange(-8, 9) * 2.0**-23)).astype(np.float32).ravel()
    x = np.concatenate([near, small, -small, around])
    made = exp(kernels, x)
    exact = np.exp(x.astype(np.float64))
    finite = exact < float(np.finfo(np.float32).max)
    ulp = np.spacing(np.abs(exact[finite]).astype(np.float32)).astype(np.float64)
    error = np.abs(made[finite] - exact[finite]) / ulp
    assert error.max() <= 1
    assert np.isinf(made[~finite]).all()
    reference = exp(kernels_for("scalar"), x)
    assert (made.view(np.uint32) == reference.view(np.uint32)).all()


def test_exp_of_the_extremes(kernels: Kernels) -> None:
    x = np.array([-np.inf, -1e30, -104.0, 0.0, -0.0, 89.0, 1e30, np.inf], np.float32)
    assert exp(kernels, x).tolist() == [0, 0, 0, 1, 1, np.inf, np.inf, np.inf]
    assert np.isnan(exp(kernels, np.array([np.nan], np.float32))[0])


def test_groups_without_a_scale(kernels: Kernels) -> None:
    """Zero and what is too small to divide by count as zero; what is not finite stays visible."""
    x = np.zeros((1, 160), np.float32)
    x[0, 32:64] = 1e-38
    x[0, 64:96] = 1e-40
    x[0, 96:128] = np.linspace(-1, 1, 32)
    x[0, 100] = np.inf
    x[0, 128:160] = np.linspace(-1, 1, 32)
    x[0, 130] = np.nan
    q = np.full((1, 160), 99, np.int8)
    scales = np.empty((1, 5), np.float32)
    sums = np.full((1, 5), 99, np.int32)
    kernels.quantize(x, q, scales, sums)
    assert (q[0, :96] == 0).all()
    assert (scales[0, :3] == 0).all()
    assert (sums[0, :3] == 0).all()
    assert np.isinf(scales[0, 3])
    assert np.isnan(scales[0, 4])
