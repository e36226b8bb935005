"""What step times are plausible, and which models share their step times."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from support.models.configs import make_config

from potluck.models.shape import model_shape
from potluck.types.arithmetic import Arithmetic
from potluck.types.model import ExpertsConfig
from potluck.types.speed import StepTime

TIME = StepTime(
    num_layers=4,
    has_embedding=False,
    has_head=True,
    num_sequences=2,
    num_tokens=2,
    context_tokens=100,
    seconds=0.01,
    num_samples=9,
)


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 0.0},
        {"seconds": -1.0},
        {"seconds": math.nan},
        {"seconds": math.inf},
        {"seconds": 1e300},
        {"num_sequences": 0},
        {"num_tokens": 1},
        {"num_tokens": 2**62},
        {"num_layers": -1},
        {"num_layers": 0, "has_head": False},
        {"context_tokens": 0},
        {"num_samples": -3},
        {"num_samples": 2**62},
        {"age_seconds": -1.0},
        {"age_seconds": math.nan},
        {"age_seconds": math.inf},
    ],
)
def test_what_no_stage_can_have_measured_is_implausible(changes: dict[str, Any]) -> None:
    assert TIME.is_plausible
    assert not dataclasses.replace(TIME, **changes).is_plausible


def test_a_shape_says_all_that_a_layer_takes_time_by() -> None:
    config = make_config()
    experts = ExpertsConfig(
        num_experts=8,
        num_experts_per_token=2,
        width=64,
        norm_topk_prob=True,
    )
    shapes = [
        model_shape(each, label, arithmetic)
        for each, label, arithmetic in (
            (config, "q8_0", Arithmetic.EXACT),
            (config, "q4_k", Arithmetic.EXACT),
            (config, "q8_0", Arithmetic.AMX),
            (make_config(hidden_size=128), "q8_0", Arithmetic.EXACT),
            (make_config(intermediate_size=100), "q8_0", Arithmetic.EXACT),
            (make_config(num_kv_heads=1), "q8_0", Arithmetic.EXACT),
            (make_config(vocab_size=7), "q8_0", Arithmetic.EXACT),
            (make_config(experts=experts), "q8_0", Arithmetic.EXACT),
            (
                make_config(sliding_windows=(4096, 4096)),
                "q8_0",
                Arithmetic.EXACT,
            ),
        )
    ]
    assert len(set(shapes)) == len(shapes)
    assert max(map(len, shapes)) <= 150


def test_models_of_other_depths_share_their_step_times() -> None:
    config = make_config()
    deeper = make_config(
        num_layers=2 * config.num_layers, max_context_tokens=2 * config.max_context_tokens
    )
    assert model_shape(config, "q8_0", Arithmetic.EXACT) == model_shape(
        deeper, "q8_0", Arithmetic.EXACT
    )
