"""Rope tables against their formulas, in Python floats."""

from __future__ import annotations

import math

import numpy as np
import pytest

from potluck.models.registry import config_from_hugging_face
from potluck.models.rope import rope_frequencies, rope_tables
from potluck.types.model import RopeConfig, RopeScaling

LLAMA_3_1 = RopeConfig(
    theta=500000.0,
    rotary_dim=128,
    scaling=RopeScaling.LLAMA3,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_context_tokens=8192,
)


def llama3_divisor(wavelength: float) -> float:
    """By how much Llama 3.1 slows a pair: the wavelength form of Meta's reference code."""
    if wavelength < 8192 / 4:
        return 1.0
    if wavelength > 8192 / 1:
        return 8.0
    smooth = (8192 / wavelength - 1) / (4 - 1)
    return 1 / ((1 - smooth) / 8 + smooth)


def test_frequencies() -> None:
    expected = [10000.0 ** (-2 * i / 24) for i in range(12)]
    np.testing.assert_allclose(
        rope_frequencies(RopeConfig(theta=10000.0, rotary_dim=24), 8), expected
    )


def test_linear_scaling() -> None:
    rope = RopeConfig(theta=10000.0, rotary_dim=8, scaling=RopeScaling.LINEAR, factor=4.0)
    expected = [10000.0 ** (-2 * i / 8) / 4 for i in range(4)]
    np.testing.assert_allclose(rope_frequencies(rope, 8), expected)


def test_llama3_scaling() -> None:
    plain = [500000.0 ** (-2 * i / 128) for i in range(64)]
    divisors = [llama3_divisor(2 * math.pi / frequency) for frequency in plain]
    assert 1.0 in divisors
    assert 8.0 in divisors
    assert any(1 < divisor < 8 for divisor in divisors)
    expected = np.array(plain) / np.array(divisors)
    np.testing.assert_allclose(rope_frequencies(LLAMA_3_1, 8), expected, rtol=1e-12)


def test_frequency_factors_say_the_same_as_llama3_scaling() -> None:
    """GGUF files of Llama 3 carry the divisors instead of the rule."""
    wavelengths = [2 * math.pi * 500000.0 ** (2 * i / 128) for i in range(64)]
    factors = tuple(llama3_divisor(wavelength) for wavelength in wavelengths)
    from_factors = rope_frequencies(
        RopeConfig(theta=500000.0, rotary_dim=128, frequency_factors=factors), 8
    )
    np.testing.assert_allclose(from_factors, rope_frequencies(LLAMA_3_1, 8), rtol=1e-12)


def test_factors_and_linear_scaling_multiply() -> None:
    rope = RopeConfig(
        theta=100.0,
        rotary_dim=4,
        scaling=RopeScaling.LINEAR,
        factor=2.0,
        frequency_factors=(1.0, 5.0),
    )
    np.testing.assert_allclose(rope_frequencies(rope, 4), [1 / 2, 0.1 / 10])


@pytest.mark.parametrize("context_tokens", [1, 5000])
def test_table_is_rounded_once(context_tokens: int) -> None:
    config = config_from_hugging_face(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "num_attention_heads": 8,
            "num_hidden_layers": 1,
            "intermediate_size": 8,
            "vocab_size": 8,
            "max_position_embeddings": 8192,
        }
    )
    (table,) = rope_tables(config, context_tokens)
    assert table.cos.shape == table.sin.shape == (context_tokens, 4)
    assert table.cos.dtype == table.sin.dtype == np.float32
    position = context_tokens - 1
    for i in range(4):
        angle = position * 10000.0 ** (-2 * i / 8)
        # Half a unit in the last place of a float32 below 1, and the float64 angle's own error.
        assert table.cos[position, i] == pytest.approx(math.cos(angle), abs=2**-25 + 1e-11)
        assert table.sin[position, i] == pytest.approx(math.sin(angle), abs=2**-25 + 1e-11)
