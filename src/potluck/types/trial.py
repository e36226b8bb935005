"""The size of the small program with which every backend's tokens per second are measured."""

from __future__ import annotations

from potluck.types.tensor import TensorFormat

TRIAL_LAYERS = 2
TRIAL_FORMAT = TensorFormat.Q8_0
TRIAL_PREFILL_TOKENS = 32
"""A step size that every backend supports."""
TRIAL_WEIGHTS = TRIAL_LAYERS * 44_040_192
"""Weights of its matrices: 2048² for each of q and o, 2048 × 256 for k and v, three times
2048 × 5632 (``models.trial_model``)."""
TRIAL_BYTES = TRIAL_FORMAT.row_bytes(TRIAL_WEIGHTS)
