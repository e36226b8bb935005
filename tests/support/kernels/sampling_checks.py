"""What is demanded of the kernels over the logits of a vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from support.kernels.inputs import F32, F64, U, guarded, guarded_output, same_bits

from potluck.kernels import Kernels

BLOCK = 128
LENGTHS = (1, 15, 16, 17, 127, 128, 129, 250, 400)
LEAST_EXPONENT = -80.0


def _logits() -> Iterator[F32]:
    """With ties; some are minus infinity."""
    rng = np.random.default_rng(30)
    for length in LENGTHS:
        for spread in (0.1, 3.0, 60.0):
            x = np.round(rng.standard_normal(length) * spread, 1).astype(np.float32)
            x[rng.random(length) < 0.1] = -np.inf
            x[rng.integers(length)] = spread
            yield x


def _by_block(values: F64) -> F64:
    """The sums of blocks, exact to a few units of float64."""
    return np.add.reduceat(values, np.arange(0, len(values), BLOCK))


def _assert_sums(actual: F64, terms: F64) -> None:
    """Of at most 128 terms in float64."""
    expected = _by_block(terms)
    assert (np.abs(actual - expected) <= 128 * 2.0**-53 * expected).all()


def check_copy_allowed(kernels: Kernels, scalar: Kernels) -> None:
    del scalar  # nothing is computed: all have the oracle's bits
    rng = np.random.default_rng(31)
    for x in _logits():
        allowed = rng.random(len(x)) < 0.5
        bits = np.packbits(allowed, bitorder="little")
        mask = np.zeros(-(-len(x) // 32) * 4, np.uint8)
        mask[: len(bits)] = bits
        out = guarded_output(len(x), dtype=np.float32)
        kernels.copy_allowed(guarded(x), mask.view(np.uint32), out.array)
        out.assert_intact()
        assert same_bits(out.array, np.where(allowed, x, np.float32(-np.inf)))


def check_draw_weights(kernels: Kernels, scalar: Kernels) -> None:
    for x in _logits():
        for temperature in (1.0, 0.3, 7.0, 2.0**-20, 1e-30, 1e30):
            largest = float(x.max())
            out = guarded_output(len(x), dtype=np.float32)
            sums = np.empty(-(-len(x) // BLOCK))
            kernels.draw_weights(guarded(x), largest, temperature, out.array, sums)
            out.assert_intact()
            below = (x - np.float32(largest)) / np.float32(temperature)
            exact = np.where(below < LEAST_EXPONENT, 0.0, np.exp(below.astype(np.float64)))
            assert (np.abs(out.array - exact) <= 2 * U * exact).all()
            _assert_sums(sums, out.array.astype(np.float64))
            weights, reference = np.empty_like(x), np.empty_like(sums)
            scalar.draw_weights(x, largest, temperature, weights, reference)
            assert same_bits(out.array, weights)
            assert same_bits(sums, reference)


def check_kept_sums(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(32)
    for x in _logits():
        weights = rng.random(len(x)).astype(np.float32)
        for least_logit, least_weight in (
            (-np.inf, 0.0),
            (float(np.median(x)), 0.0),
            (-np.inf, float(np.median(weights))),
            (float(x[-1]), float(weights[-1])),
        ):
            sums = np.empty(-(-len(x) // BLOCK))
            kernels.kept_sums(guarded(x), guarded(weights), least_logit, least_weight, sums)
            kept = (x >= least_logit) & (weights >= np.float32(least_weight))
            _assert_sums(sums, np.where(kept, weights, 0).astype(np.float64))
            reference = np.empty_like(sums)
            scalar.kept_sums(x, weights, least_logit, least_weight, reference)
            assert same_bits(sums, reference)


def check_split_logits(kernels: Kernels, scalar: Kernels) -> None:
    rng = np.random.default_rng(33)
    for x in _logits():
        weights = rng.random(len(x)).astype(np.float32)
        num_blocks = -(-len(x) // BLOCK)
        one, two = (float(each) for each in np.quantile(x, (0.4, 0.7), method="nearest"))
        for low, high in ((one, two), (-np.inf, two), (one, np.inf), (two, two)):
            made = []
            for each in (kernels, scalar):
                above, num_above = np.empty(num_blocks), np.empty(num_blocks, np.int32)
                within = np.empty(num_blocks * BLOCK, np.int32)
                num_within = np.empty(num_blocks, np.int32)
                each.split_logits(
                    guarded(x), guarded(weights), low, high, above, num_above, within, num_within
                )
                made.append(above)
                _assert_sums(above, np.where(x > high, weights, 0).astype(np.float64))
                assert (num_above == _by_block((x > high).astype(np.float64))).all()
                for block in range(num_blocks):
                    part = x[block * BLOCK : (block + 1) * BLOCK]
                    expected = np.flatnonzero((low <= part) & (part <= high))
                    found = within[block * BLOCK :][: num_within[block]]
                    assert np.array_equal(found, expected)
            assert same_bits(*made)
