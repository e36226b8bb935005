"""Families with latent attention against transformers, from safetensors and GGUF files, in F32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.changes import Change, each_layer, in_experts, in_ropes
from support.expert_models import make_expert_model, write_expert_gguf
from support.parity import assert_logits_agree
from support.random_models import RandomModel, random_tokens, torch_logits
from support.stages import Stages
from support.state_dict_source import StateDictSource

from potluck.catalog import describe_model, open_weights
from potluck.models.names import FileKind
from potluck.types.model import LatentAttentionConfig, LayerConfig
from potluck.types.program import ExpertScore, Shard

TOLERANCE = 1e-4


def in_latent(**changes: Any) -> Change:
    """The change of every layer's latent attention."""

    def changed(layer: LayerConfig) -> LayerConfig:
        assert isinstance(layer.attention, LatentAttentionConfig)
        return replace(layer, attention=replace(layer.attention, **changes))

    return each_layer(changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and what configurations that forgot one of its features would say.

    ``has_gguf``: a GGUF file can say all that the configuration does.
    """

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    forgotten: Mapping[str, Change] = field(default_factory=dict)
    has_gguf: bool = True

    def __str__(self) -> str:
        return self.name


YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
V3: dict[str, Any] = LATENT | {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
# GGUF files have one epsilon, which llama.cpp takes for all norms; transformers has 1e-6 in some.
FLASH: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    **{key: value for key, value in LATENT.items() if key != "first_k_dense_replace"},
}

CASES: tuple[Case, ...] = (
    Case(
        name="deepseek-v2-lite",
        family="deepseek_v2",
        settings=LATENT
        | {
            "q_lora_rank": None,
            "n_shared_experts": 2,
            "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
        forgotten={
            "scale of scores": in_latent(scale=48**-0.5),
            "pairs": in_latent(is_interleaved=False),
            "shares": in_experts(normalize_shares=True),
        },
    ),
    Case(
        name="deepseek-v2-low-rank-scaled-shares",
        family="deepseek_v2",
        settings=LATENT | {"routed_scaling_factor": 3.0, "first_k_dense_replace": 0},
        forgotten={"scale of shares": in_experts(share_scale=1.0)},
    ),
    Case(
        name="deepseek-v3",
        family="deepseek_v3",
        settings=V3 | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        forgotten={
            "scale of scores": in_latent(scale=48**-0.5),
            "pairs": in_latent(is_interleaved=False),
            "scale of shares": in_experts(share_scale=1.0),
            "score": in_experts(score=ExpertScore.SOFTMAX),
            "correction": in_experts(has_correction=False),
            "groups": in_experts(num_groups=1, num_groups_used=1),
            "rope scaling": in_ropes(factor=1.0),
        },
    ),
    Case(
        name="kimi-k2",
        family="deepseek_v3",
        settings=LATENT
        | {
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.827,
            "rope_parameters": YARN
            | {"beta_fast": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        forgotten={"scale of scores": in_latent(scale=48**-0.5)},
    ),
    Case(
        name="deepseek-v3-other-scales",
        family="deepseek_v3",
        settings=V3
        | {
            "norm_topk_prob": False,
            "first_k_dense_replace": 2,
            "tie_word_embeddings": True,
            "rope_parameters": YARN | {"mscale": 1.5, "mscale_all_dim": 0.5},
        },
        forgotten={"shares": in_experts(normalize_shares=True)},
        has_gguf=False,
    ),
    Case(
        name="deepseek-v3-biases-halves",
        family="deepseek_v3",
        settings=V3
        | {
            "attention_bias": True,
            "rope_interleave": False,
            "q_lora_rank": None,
            "rope_parameters": YARN,
        },
        forgotten={"halves": in_latent(is_interleaved=True)},
        has_gguf=False,
    ),
    Case(
        name="deepseek-v3-biases",
        family="deepseek_v3",
        settings=V3 | {"attention_bias": True},
        forgotten={"pairs": in_latent(is_interleaved=False)},
        has_gguf=False,
    ),
    Case(
        name="glm-4.7-flash",
        family="glm4_moe_lite",
        settings=FLASH
        | {
            "v_head_dim": 40,
            "routed_scaling_factor": 1.8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        forgotten={
            "pairs": in_latent(is_interleaved=False),
            "scale of shares": in_experts(share_scale=1.0),
            "correction": in_experts(has_correction=False),
        },
    ),
    Case(
        name="glm-4.7-flash-other-layers",
        family="glm4_moe_lite",
        settings=FLASH
        | {"num_hidden_layers": 4, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"]},
    ),
    Case(
        name="glm-4.7-flash-epsilon",
        family="glm4_moe_lite",
        settings=FLASH | {"rms_norm_eps": 0.1},
        forgotten={"epsilon of norms": in_latent(norm_epsilon=None)},
        has_gguf=False,
    ),
)
FORGOTTEN = [
    pytest.param(case, what, id=f"{case.name}-{what.replace(' ', '-')}")
    for case in CASES
    for what in case.forgotten
]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], RandomModel]:
    made: dict[str, RandomModel] = {}

    def make(case: Case) -> RandomModel:
        if case.name not in made:
            directory = tmp_path_factory.mktemp("model")
            made[case.name] = make_expert_model(case.family, case.settings, directory, seed=11)
        return made[case.name]

    return make


def logits_of_files(path: Path, tokens: list[int], **options: Any) -> NDArray[np.float32]:
    """Of the model at ``path``, by its own files alone, one token a step."""
    description = describe_model(str(path))
    whole = Shard.whole(description.config.num_layers)
    with (
        closing(open_weights(description, [whole])) as source,
        Stages(description.config, source, file_kind=description.files.kind, **options) as stages,
    ):
        return stages.logits_at_all_positions(tokens)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_at_every_position(case: Case, models: Callable[[Case], RandomModel]) -> None:
    model, tokens = models(case), random_tokens(100)
    actual = logits_of_files(model.directory, tokens, boundaries=[1])
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


@pytest.mark.parametrize("has_joint_up", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("case", [case for case in CASES if case.has_gguf], ids=str)
def test_gguf_files_give_the_same_logits(
    case: Case, has_joint_up: bool, models: Callable[[Case], RandomModel], tmp_path: Path
) -> None:
    model, tokens = models(case), random_tokens(100, seed=4)
    path = tmp_path / "model.gguf"
    write_expert_gguf(path, model, has_joint_up=has_joint_up)
    assert describe_model(str(path)).files.kind is FileKind.GGUF
    actual, expected = logits_of_files(path, tokens), torch_logits(model, tokens)
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)


@pytest.mark.parametrize(("case", "what"), FORGOTTEN)
def test_a_forgotten_feature_would_show(
    case: Case, what: str, models: Callable[[Case], RandomModel]
) -> None:
    model, tokens = models(case), random_tokens(60)
    forgetful = case.forgotten[what](describe_model(str(model.directory)).config)
    with Stages(forgetful, StateDictSource(model.state)) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert np.abs(actual - torch_logits(model, tokens)).max() > 100 * TOLERANCE
