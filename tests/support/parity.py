"""When two sets of logits agree, and whether they could have decided otherwise."""

from __future__ import annotations

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


def decided_share(logits: NDArray[np.float32], tolerance: float) -> float:
    """The share of rows whose two largest logits are more than twice ``tolerance`` apart."""
    second, first = np.partition(logits, -2, axis=-1)[:, -2:].T
    return float(np.mean(first - second > 2 * tolerance))
