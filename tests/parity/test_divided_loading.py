"""Members of a group load their rows from models' files, and compute what one unit does."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.groups import NUM_BLOCKS, GroupEngine, logits_in_steps
from support.engines.pools import pool_of
from support.models.expert_models import make_expert_model
from support.models.random_models import make_random_model

from potluck.catalog import ModelDescription, describe_model, open_weights, read_profile
from potluck.engines.backends import native_unit
from potluck.engines.loading import PackedCache, plan_stage
from potluck.engines.loading.load import LoadedStage, load_stage
from potluck.engines.loading.prepare import packed_weights
from potluck.engines.native.engine import NativeEngine
from potluck.types.choices import Quantization
from potluck.types.program import Shard
from potluck.types.stage import StagePlan, StageSize

COMMON: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 192, "vocab_size": 97}
HEADS: dict[str, Any] = COMMON | {
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
}
FEW: dict[str, Any] = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 96}
LATENT: dict[str, Any] = COMMON | {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 48,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 96,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": HEADS,
    "phi3": COMMON
    | {"num_attention_heads": 4, "num_key_value_heads": 4, "pad_token_id": None},  # matrices in one
    "mixtral": HEADS | FEW,  # experts one by one
    "gpt_oss": HEADS | FEW | {"sliding_window": 9},  # transposed stacks, biases of experts, sinks
    "deepseek_v3": LATENT,  # heads taken apart, interleaved and transposed
}


@pytest.fixture(scope="module", params=MODELS)
def description(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ModelDescription:
    family, directory = request.param, tmp_path_factory.mktemp("model")
    make = make_random_model if family in ("llama", "phi3") else make_expert_model
    make(family, MODELS[family], directory, seed=7)
    return describe_model(str(directory))


def plans_of(
    description: ModelDescription,
    shards: Sequence[Shard],
    quantization: Quantization,
    *,
    is_mapped: bool = False,
) -> list[StagePlan]:
    size = StageSize(
        context_tokens=32,
        num_blocks=NUM_BLOCKS,
        max_step_tokens=32,
        num_threads=1,
        quantization=quantization,
        is_mapped=is_mapped,
    )
    profile = read_profile(description, shards)
    return [plan_stage(profile, shard, size) for shard in shards]


def loaded(
    description: ModelDescription, plans: Sequence[StagePlan], cache: PackedCache | None = None
) -> list[LoadedStage]:
    """The stages of plans; mapped from ``cache`` if there is one."""
    stages = []
    for plan in plans:
        pool = pool_of(1)
        with closing(open_weights(description, [plan.shard])) as tensors:
            packed = None
            if cache is not None:
                packed = packed_weights(description, tensors, plan, pool=pool, cache=cache)
            stages.append(
                load_stage(
                    description,
                    tensors,
                    plan,
                    unit=native_unit(),
                    pool=pool,
                    packed=packed,
                    with_key=True,
                )
            )
    return stages


def group_logits(stages: Sequence[LoadedStage], vocab_size: int) -> NDArray[np.float32]:
    programs = [stage.program for stage in stages]
    group = GroupEngine(programs, [stage.engine for stage in stages])
    with closing(group):
        return logits_in_steps([group], vocab_size, has_state=False)


def whole_logits(
    description: ModelDescription, quantization: Quantization
) -> tuple[NDArray[np.float32], StagePlan, LoadedStage]:
    (plan,) = plans_of(description, [Shard.whole(2)], quantization)
    (stage,) = loaded(description, [plan])
    with closing(stage.engine):
        return logits_in_steps([stage.engine], 97, has_state=False), plan, stage


@pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.Q8_0, Quantization.Q4_0])
def test_a_group_computes_what_one_unit_does(
    description: ModelDescription, quantization: Quantization, tmp_path: Path
) -> None:
    expected, whole, whole_stage = whole_logits(description, quantization)
    keys = {whole_stage.weights_key}
    for shares in ((1, 1), (3, 2, 2)):
        shards = Shard.whole(2).divided(shares)
        plans = plans_of(description, shards, quantization)
        stages = loaded(description, plans)
        for plan, stage in zip(plans, stages, strict=True):
            assert isinstance(stage.engine, NativeEngine)
            assert stage.engine.weights_bytes == plan.memory.weights_bytes
            assert plan.memory.weights_bytes < whole.memory.weights_bytes
            assert plan.read_bytes < whole.read_bytes
            assert stage.program.shard == plan.shard
        keys.update(stage.weights_key for stage in stages)
        np.testing.assert_array_equal(group_logits(stages, 97), expected)
    assert len(keys) == 6  # equal shapes do not make equal rows
    mapped = plans_of(description, shards, quantization, is_mapped=True)
    for _ in range(2):  # made, and then found
        stages = loaded(description, mapped, PackedCache(tmp_path))
        assert all(stage.report.read_bytes == 0 or stage.packed for stage in stages)
        np.testing.assert_array_equal(group_logits(stages, 97), expected)
    assert len(list(tmp_path.iterdir())) == len(shares)
