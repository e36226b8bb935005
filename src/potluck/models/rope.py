"""The table of rotations (Su et al. 2021, RoFormer, section 3.2.2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from potluck.types.model import RopeConfig, RopeScaling
from potluck.types.program import RopeTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.types.model import ModelConfig

# Positions per piece, so that the float64 angles of a long context take a few MB.
_PIECE_TOKENS = 4096


def rope_table(config: ModelConfig, context_tokens: int) -> RopeTable:
    """Cosines and sines for positions ``[0, context_tokens)``, float64 rounded to float32."""
    frequencies = rope_frequencies(config.rope, config.head_dim)
    cos = np.empty((context_tokens, config.head_dim // 2), dtype=np.float32)
    sin = np.empty_like(cos)
    for start in range(0, context_tokens, _PIECE_TOKENS):
        end = min(start + _PIECE_TOKENS, context_tokens)
        angles = np.outer(np.arange(start, end, dtype=np.float64), frequencies)
        cos[start:end] = np.cos(angles)
        sin[start:end] = np.sin(angles)
    return RopeTable(cos=cos, sin=sin)


def rope_table_bytes(config: ModelConfig, context_tokens: int) -> int:
    """What ``rope_table`` takes: a float32 cosine and sine for each pair of a head."""
    return context_tokens * config.head_dim * 4


def rope_frequencies(rope: RopeConfig, head_dim: int) -> NDArray[np.float64]:
    """Radians per position of each of the ``head_dim / 2`` pairs, scaling included.

    Pair ``i`` turns by ``theta^(-2 i / head_dim)``. LINEAR divides all of them by ``factor`` (Chen
    et al. 2023, position interpolation).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    frequencies = rope.theta**-exponents
    if rope.scaling is RopeScaling.LINEAR:
        frequencies = frequencies / rope.factor
    elif rope.scaling is RopeScaling.LLAMA3:
        frequencies = _scale_llama3(frequencies, rope)
    if rope.frequency_factors is not None:
        frequencies = frequencies / np.asarray(rope.frequency_factors, dtype=np.float64)
    return frequencies


def _scale_llama3(frequencies: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Llama 3.1's scaling (its model card's reference code, ``apply_scaling``).

    A pair that turns at least ``high_freq_factor`` times within the trained context keeps its
    frequency; one that turns at most ``low_freq_factor`` times is slowed by ``factor``; between,
    the two are mixed linearly in the number of turns.
    """
    turns = rope.original_context_tokens * frequencies / (2 * math.pi)
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = np.clip(share, 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / rope.factor
