"""Models with experts as they are loaded to run: planned, and quantized on the way."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.parity import native_error_limit
from support.engines.pools import pool_of
from support.models.expert_models import make_expert_model, store_experts_in_mxfp4
from support.models.random_models import random_tokens, torch_logits

from potluck.catalog import describe_model, open_weights, read_profile
from potluck.engines.backends import native_unit
from potluck.engines.loading import plan_stage
from potluck.engines.loading.load import load_stage
from potluck.types.choices import Quantization
from potluck.types.program import Shard
from potluck.types.stage import StageSize
from potluck.types.step import KV_BLOCK_TOKENS, SequenceId, SequenceSlice, Step, StepId

NUM_TOKENS = 40
NUM_LAYERS = 2
COMMON: dict[str, Any] = {"num_hidden_layers": NUM_LAYERS, "hidden_size": 128, "head_dim": 32}
FEW: dict[str, Any] = {"num_local_experts": 6, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    "head_dim": None,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 48,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "gpt_oss": FEW | {"intermediate_size": 64, "sliding_window": 9},
    "glm4_moe": {
        "n_routed_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "use_qk_norm": True,
    },
    "qwen2_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 96,
    },
    "mixtral": FEW,
    "minimax_m2": FEW | {"rotary_dim": 16},
    "olmoe": {"num_experts": 6, "num_experts_per_tok": 2, "head_dim": None},
    "granitemoe": FEW | {"residual_multiplier": 0.4, "head_dim": None},
    "granitemoeshared": FEW | {"shared_intermediate_size": 64, "head_dim": None},
    "ernie4_5_moe": {
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_intermediate_size": 64,
        "head_dim": None,
    },
    "deepseek_v2": LATENT | {"q_lora_rank": None},
    "deepseek_v3": LATENT | {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    "glm4_moe_lite": LATENT,
}


def loaded_logits(directory: Path, tokens: list[int], quantization: Quantization) -> NDArray[Any]:
    """Of every position, by the native engine; it takes the memory that was planned.

    Those of the last token are the same bits if all are prefilled in one step.
    """
    description = describe_model(str(directory))
    size = StageSize(
        context_tokens=NUM_TOKENS,
        num_blocks=-(-NUM_TOKENS // KV_BLOCK_TOKENS),
        max_step_tokens=NUM_TOKENS,
        num_threads=2,
        quantization=quantization,
    )
    whole = Shard.whole(NUM_LAYERS)
    plan = plan_stage(read_profile(description), whole, size)
    with closing(open_weights(description, [whole])) as tensors:
        stage = load_stage(description, tensors, plan, unit=native_unit(), pool=pool_of(2))
    with closing(stage.engine):
        assert stage.engine.weights_bytes == plan.memory.weights_bytes
        rows = []
        for position, token in enumerate(tokens):
            part = SequenceSlice(
                sequence_id=SequenceId(0),
                tokens=(token,),
                start_position=position,
                block_table=tuple(range(size.num_blocks)),
                sample=True,
            )
            rows.append(stage.engine.logits(Step(step_id=StepId(position), slices=(part,)), None))
        prompt = SequenceSlice(
            sequence_id=SequenceId(1),
            tokens=tuple(tokens),
            start_position=0,
            block_table=tuple(reversed(range(size.num_blocks))),
            sample=True,
        )
        step = Step(step_id=StepId(NUM_TOKENS), slices=(prompt,))
        assert np.array_equal(stage.engine.logits(step, None), rows[-1])
    return np.concatenate(rows)


def median_error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Over positions: few routers choose other experts because of the rounding."""
    errors = np.sqrt(((actual - expected) ** 2).mean(axis=1) / (expected**2).mean(axis=1))
    return float(np.median(errors))


@pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.Q8_0])
@pytest.mark.parametrize("family", SETTINGS)
def test_logits_are_close(family: str, quantization: Quantization, tmp_path: Path) -> None:
    wanted = COMMON | SETTINGS[family]
    if wanted["head_dim"] is None:
        del wanted["head_dim"]
    model = make_expert_model(family, wanted, tmp_path, seed=7)
    tokens = random_tokens(NUM_TOKENS)
    actual = loaded_logits(tmp_path, tokens, quantization)
    limit = native_error_limit(
        num_layers=NUM_LAYERS,
        is_quantized=quantization is not Quantization.NONE,
        are_activations_bf16=True,
    )
    # Twice for quantized weights, whose own rounding the limit does not count.
    factor = 1 if quantization is Quantization.NONE else 2
    assert median_error(actual, torch_logits(model, tokens)) < factor * limit


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    model = make_expert_model("gpt_oss", COMMON | SETTINGS["gpt_oss"], tmp_path, seed=7)
    store_experts_in_mxfp4(model)
    tokens = random_tokens(NUM_TOKENS)
    actual = loaded_logits(tmp_path, tokens, Quantization.NONE)
    limit = native_error_limit(num_layers=NUM_LAYERS, is_quantized=True)
    assert median_error(actual, torch_logits(model, tokens)) < limit
