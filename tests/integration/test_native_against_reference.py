"""The native engine computes what the reference engine says that a program means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.native_pipeline import VOCAB_SIZE, Part, Pipeline, make_program, small_config
from support.engines.parity import native_error_limit, rms
from support.models.configs import with_experts
from support.models.random_weights import load_random_weights
from support.reference.engine import ReferenceEngine

from potluck.kernels import available_isas
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.model import ModelConfig
from potluck.types.program import Shard
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

NUM_LAYERS = 3
# Ragged steps of three sequences: (sequence, tokens) in each.
STEPS = (
    ((0, 37), (1, 5)),
    ((1, 1), (0, 1), (2, 60)),
    ((2, 3), (1, 17), (0, 2)),
    ((0, 1), (1, 1), (2, 1)),
)


def with_all_experts(config: ModelConfig) -> ModelConfig:
    """Nothing to choose: where logits are nearly equal, what rounding changes would decide."""
    experts = next(layer.experts for layer in config.layers if layer.experts is not None)
    return with_experts(config, replace(experts, num_experts_per_token=experts.num_experts))


FAST = [each for each in arithmetics_with(tuple(available_isas())) if each.isa is not None]
CASES = [(fmt, Arithmetic.EXACT) for fmt in COMPUTED_FORMATS]
CASES += [(TensorFormat.BF16, each) for each in FAST]


@pytest.mark.parametrize(
    ("fmt", "arithmetic"), CASES, ids=lambda each: getattr(each, "label", None) or each.value
)
def test_logits(fmt: TensorFormat, arithmetic: Arithmetic) -> None:
    config = with_all_experts(small_config(NUM_LAYERS))
    native = Pipeline.make(config, fmt, num_threads=2, isa=arithmetic.isa, arithmetic=arithmetic)
    program = make_program(config, Shard.whole(NUM_LAYERS))
    reference = ReferenceEngine(program, num_blocks=100)
    load_random_weights(reference, program, fmt)

    rng = np.random.default_rng(3)
    lengths = dict.fromkeys(range(3), 0)
    actual: list[NDArray[np.float32]] = []
    expected: list[NDArray[np.float32]] = []
    for lots in STEPS:
        parts = []
        for sequence, count in lots:
            tokens = [int(token) for token in rng.integers(0, VOCAB_SIZE, count)]
            parts.append(Part(sequence=sequence, tokens=tokens, start=lengths[sequence]))
            lengths[sequence] += count
        step = native.step_of(parts)
        actual.append(native.engines[0].logits(step, None))
        expected.append(reference.logits(step, None))

    wanted = np.concatenate(expected)
    error = np.concatenate(actual) - wanted
    assert np.std(wanted) > 0.3
    limit = native_error_limit(
        num_layers=NUM_LAYERS,
        is_quantized=fmt.is_quantized,
        are_activations_bf16=arithmetic is not Arithmetic.EXACT,
    )
    assert rms(error) / rms(wanted) < limit
