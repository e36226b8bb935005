"""When two sets of logits agree, and whether they could have decided otherwise."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

MIN_DECIDED_SHARE = 0.9


def assert_logits_agree(
    actual: NDArray[np.float32], expected: NDArray[np.float32], *, tolerance: float
) -> None:
    """Every logit within ``tolerance``, where at least 90 % of the positions are decided.

    A position is decided when the two largest logits are more than twice the tolerance apart, so
    that no error allowed here can swap them. With fewer such positions the comparison says little
    about the text, and fails.
    """
    assert actual.shape == expected.shape
    largest = float(np.abs(actual - expected).max())
    assert largest <= tolerance, f"logits differ by {largest:.3g}"
    share = decided_share(expected, tolerance)
    assert share >= MIN_DECIDED_SHARE, f"only {share:.0%} of the positions are decided"


def assert_mostly_close(
    actual: NDArray[np.float32], expected: NDArray[np.float32], *, limit: float
) -> None:
    """Errors of half of the positions within ``limit``, and of nine of ten within twice as much.

    At the others a router may have chosen another one of two experts with nearly equal scores.
    """
    errors = np.sqrt(((actual - expected) ** 2).mean(axis=1) / (expected**2).mean(axis=1))
    assert np.quantile(errors, 0.5) < limit
    assert np.quantile(errors, 0.9) < 2 * limit


def decided_share(logits: NDArray[np.float32], tolerance: float) -> float:
    """The share of rows whose two largest logits are more than twice ``tolerance`` apart."""
    second, first = np.partition(logits, -2, axis=-1)[:, -2:].T
    return float(np.mean(first - second > 2 * tolerance))


def native_error_limit(
    *, num_layers: int, is_quantized: bool, are_activations_bf16: bool = False
) -> float:
    """What the root mean square of the native engine's error may be, as a share of the logits'.

    Errors add up as independent ones do, and twice that is allowed. Keys and values are rounded to
    f16, by 2^-12 of their size on average. For quantized weights the activations are rounded as
    well: in steps of max/127 over 32 values, whose largest is about 2.2 standard deviations, by
    1/sqrt(12) of a step, in each of 7 products of a layer and the head's. Rounding them to bf16 is
    in steps of 2^-7 of a power of two, which is 0.74 of a number in the root mean square.
    """
    cache = 2.0**-12 * math.sqrt(num_layers)
    rounding = 0.0
    if is_quantized:
        rounding = 2.2 / 127 / math.sqrt(12)
    elif are_activations_bf16:
        rounding = 0.74 * 2.0**-7 / math.sqrt(12)
    return 2 * (cache + rounding * math.sqrt(7 * num_layers + 1))


def rms(x: NDArray[np.float32]) -> float:
    """Root mean square."""
    return float(np.sqrt(np.mean(np.square(x.astype(np.float64)))))
