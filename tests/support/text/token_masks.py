"""Masks of allowed tokens, as ``potluck.types.engine.TokenMasks`` has them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def mask_of(vocab_size: int, allowed: Iterable[int]) -> NDArray[np.uint32]:
    """Bits of the ``allowed`` tokens; those beyond the vocabulary are 1, and have no meaning."""
    mask = np.zeros(-(-vocab_size // 32), np.uint32)
    for token in (*allowed, *range(vocab_size, len(mask) * 32)):
        mask[token // 32] |= np.uint32(1 << token % 32)
    return mask


def mask_rows(vocab_size: int, *allowed: Iterable[int]) -> NDArray[np.uint32]:
    """Masks of a sequence: a row for each token after which one is sampled."""
    return np.stack([mask_of(vocab_size, tokens) for tokens in allowed])
