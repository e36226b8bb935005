"""Rope tables (Su et al. 2021, RoFormer, section 3.2.2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from potluck.types.model import RopeConfig, RopeScaling
from potluck.types.program import RopeTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.types.model import ModelConfig

# Positions per piece, so that the float64 angles of a long context take only a few MB.
_PIECE_TOKENS = 4096


def rope_tables(config: ModelConfig, context_tokens: int) -> tuple[RopeTable, ...]:
    """Return the tables of ``config.ropes`` for positions ``[0, context_tokens)``."""
    return tuple(rope_table(rope, context_tokens) for rope in config.ropes)


def rope_table(rope: RopeConfig, context_tokens: int) -> RopeTable:
    """Return cosines and sines of positions ``[0, context_tokens)``, rounded to float32."""
    frequencies = rope_frequencies(rope, context_tokens)
    cos = np.empty((context_tokens, rope.rotary_dim // 2), dtype=np.float32)
    sin = np.empty_like(cos)
    for start in range(0, context_tokens, _PIECE_TOKENS):
        end = min(start + _PIECE_TOKENS, context_tokens)
        positions = np.arange(start, end, dtype=np.float64)
        angles = np.outer(positions, frequencies)
        factors = _factors(rope, positions)
        cos[start:end] = np.cos(angles) * factors
        sin[start:end] = np.sin(angles) * factors
    return RopeTable(cos=cos, sin=sin)


def empty_rope_tables(config: ModelConfig, context_tokens: int) -> tuple[RopeTable, ...]:
    """Return tables without content, whose pages are never touched, for programs that are only
    analyzed.
    """
    shapes = ((context_tokens, rope.rotary_dim // 2) for rope in config.ropes)
    empty = (np.zeros(shape, dtype=np.float32) for shape in shapes)
    return tuple(RopeTable(cos=each, sin=each) for each in empty)


def rope_frequencies(rope: RopeConfig, context_tokens: int) -> NDArray[np.float64]:
    """Return radians per position of each of the ``rotary_dim / 2`` pairs, including scaling.

    Pair ``i`` has the frequency ``theta^(-2 i / rotary_dim)``. LINEAR divides all of them by
    ``factor`` (Chen et al. 2023, position interpolation), and so does PROPORTIONAL, which rotates
    only the first ``num_turning_pairs``. LONGROPE divides each by a separate factor: the long ones
    if the context is longer than the trained one, as in llama.cpp.
    """
    exponents = np.arange(0, rope.rotary_dim, 2, dtype=np.float64) / rope.rotary_dim
    frequencies = rope.theta**-exponents
    if rope.scaling is RopeScaling.LINEAR:
        frequencies = frequencies / rope.factor
    elif rope.scaling is RopeScaling.LLAMA3:
        frequencies = _scale_llama3(frequencies, rope)
    elif rope.scaling is RopeScaling.YARN:
        frequencies = _scale_yarn(frequencies, rope)
    elif rope.scaling is RopeScaling.LONGROPE:
        is_long = context_tokens > rope.original_context_tokens
        divisors = rope.long_factors if is_long else rope.short_factors
        frequencies = frequencies / np.asarray(divisors, dtype=np.float64)
    elif rope.scaling is RopeScaling.PROPORTIONAL:
        frequencies = frequencies / rope.factor
        frequencies[rope.num_turning_pairs :] = 0.0
    if rope.frequency_factors is not None:
        frequencies = frequencies / np.asarray(rope.frequency_factors, dtype=np.float64)
    return frequencies


def _factors(rope: RopeConfig, positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the factors of the cosines and sines at ``positions``, as a column."""
    factors = np.full((len(positions), 1), rope.attention_factor)
    if rope.position_beta:
        steps = np.floor(positions / rope.original_context_tokens)
        factors *= (1 + rope.position_beta * np.log1p(steps))[:, None]
    return factors


def _scale_llama3(frequencies: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Apply Llama 3.1's scaling (its model card's reference code, ``apply_scaling``).

    A pair with at least ``high_freq_factor`` rotations within the trained context keeps its
    frequency; one with at most ``low_freq_factor`` rotations is slowed by ``factor``; between, the
    two are interpolated linearly in the number of rotations.
    """
    turns = rope.original_context_tokens * frequencies / (2 * math.pi)
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = np.clip(share, 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / rope.factor


def _scale_yarn(frequencies: NDArray[np.float64], rope: RopeConfig) -> NDArray[np.float64]:
    """Apply YaRN (Peng et al. 2023, section 3.2): ``transformers``' ``_compute_yarn_parameters``.

    Pairs with more than ``beta_fast`` rotations within the trained context keep their frequency,
    those with less than ``beta_slow`` rotations are slowed by ``factor``; between, the two are
    interpolated linearly in the pair's index. ``truncate`` rounds the two bounds outwards.
    """

    def correction_dimension(turns: float) -> float:
        trained = rope.original_context_tokens / (turns * 2 * math.pi)
        return rope.rotary_dim * math.log(trained) / (2 * math.log(rope.theta))

    low, high = correction_dimension(rope.beta_fast), correction_dimension(rope.beta_slow)
    if rope.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, rope.rotary_dim - 1.0)
    if low == high:
        high += 0.001
    slowed = np.clip((np.arange(len(frequencies)) - low) / (high - low), 0.0, 1.0)
    mixed: NDArray[np.float64] = frequencies / rope.factor * slowed + frequencies * (1 - slowed)
    return mixed
