"""Common parts of the families with multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2,
section 2.1).

Their files are those of ``transformers``' ``deepseek_v3`` and of llama.cpp's ``deepseek2``. The
rows of the matrix from the latent row up to keys and values are grouped by head: first those of the
keys, then those of the values. Newer GGUF files have two tensors in its place, the first one
transposed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from potluck.models import gguf, hugging_face
from potluck.models.fields import (
    HEAD_DIM_MULTIPLE,
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    unsupported,
    with_groups,
)
from potluck.models.layers import with_layers
from potluck.models.names import (
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    SHARED_EXPERTS,
    FileKind,
    NameTable,
    StoredPart,
)
from potluck.types.model import (
    ExpertsConfig,
    LatentAttentionConfig,
    MlpConfig,
    ModelConfig,
    RopeScaling,
)
from potluck.types.program import ExpertScore
from potluck.types.tensor import TensorSource

_HEAD_ROWS_MULTIPLE = 16
"""Row counts of per-head matrices must be multiples of this, so that they are whole panels."""
_NORM_EPSILON = 1e-6
"""Epsilon of the norms within attention in ``transformers``, whatever ``rms_norm_eps`` is."""


def read_hugging_face(
    fields: Fields,
    score: ExpertScore,
    has_experts: Sequence[bool],
    *,
    is_interleaved: bool = True,
) -> ModelConfig:
    """Return the configuration of a model. ``score`` and ``has_experts`` are as in
    ``read_experts_of_layers``, which reads its experts.
    """
    experts = read_experts_of_layers(fields, score, has_experts)
    num_heads = fields.count("num_attention_heads", MAX_HEADS)
    rope_dim = _dimension(fields, "qk_rope_head_dim")
    nope_dim = _dimension(fields, "qk_nope_head_dim")
    as_heads = {"head_dim": rope_dim, "num_key_value_heads": num_heads}
    # Some files contain values that follow from other keys.
    fields.refuse_others({key: (value,) for key, value in as_heads.items()})
    has_query_rank = not fields.is_null("q_lora_rank")
    has_bias = fields.flag("attention_bias", default=False)
    config = hugging_face.read_config(
        fields.changed(as_heads),
        implemented=hugging_face.EXPERT_KEYS | {"attention_bias", "n_routed_experts"},
        experts=experts,
    )
    attention = LatentAttentionConfig(
        num_heads=num_heads,
        query_rank=_dimension(fields, "q_lora_rank") if has_query_rank else None,
        latent_rank=_dimension(fields, "kv_lora_rank", _HEAD_ROWS_MULTIPLE),
        rope_dim=rope_dim,
        nope_dim=nope_dim,
        value_dim=_dimension(fields, "v_head_dim", _HEAD_ROWS_MULTIPLE),
        scale=(nope_dim + rope_dim) ** -0.5 * _mscale(fields, config) ** 2,
        has_bias=has_bias,
        norm_epsilon=_NORM_EPSILON,
        is_interleaved=is_interleaved,
    )
    return with_layers(config, lambda _, layer: dataclasses.replace(layer, attention=attention))


def _dimension(fields: Fields, key: str, multiple: int = HEAD_DIM_MULTIPLE) -> int:
    size = fields.count(key, MAX_WIDTH)
    if size % multiple:
        raise unsupported(f"{fields.prefix}{key} {size} (not a multiple of {multiple})")
    return size


def _mscale(fields: Fields, config: ModelConfig) -> float:
    """Return YaRN's factor of queries and keys, in addition to that of cosines and sines."""
    rope = fields.section("rope_scaling") or fields.section("rope_parameters")
    if rope is None or not rope.get("mscale_all_dim"):
        return 1.0
    return hugging_face.yarn_scale(config.ropes[0].factor, rope.positive("mscale_all_dim"))


def read_experts_of_layers(
    fields: Fields, score: ExpertScore, has_experts: Sequence[bool]
) -> tuple[ExpertsConfig | None, ...]:
    """Return the experts of the layers in ``has_experts``.

    With sigmoid scores they have corrections, may be in groups, and their shares are normalized
    unless the file says otherwise. Softmax scores are used unchanged.
    """
    is_sigmoid = score is ExpertScore.SIGMOID
    experts = hugging_face.read_experts(
        fields,
        norm_topk_prob=is_sigmoid and fields.truth("norm_topk_prob", default=True),
        count_key="n_routed_experts",
        width_key="moe_intermediate_size",
        num_layers=len(has_experts),
    )
    experts = dataclasses.replace(
        experts,
        score=score,
        share_scale=fields.positive("routed_scaling_factor"),
        has_score_correction_bias=is_sigmoid,
        shared=MlpConfig(width=fields.count("n_shared_experts", MAX_EXPERTS) * experts.width),
    )
    if is_sigmoid:
        experts = with_groups(fields, experts, count_key="n_group", used_key="topk_group")
    return tuple(experts if is_there else None for is_there in has_experts)


def after_dense_layers(fields: Fields) -> tuple[bool, ...]:
    """Return whether each layer has experts: those after the first ``first_k_dense_replace``."""
    num_dense = fields.count("first_k_dense_replace", MAX_LAYERS, minimum=0)
    return tuple(layer >= num_dense for layer in range(hugging_face.num_hidden_layers(fields)))


_LOG_MULTIPLIER_KEY = "rope.scaling.yarn_log_multiplier"
_LATENT_KEYS = frozenset(
    {
        "attention.key_length_mla",
        "attention.kv_lora_rank",
        "attention.q_lora_rank",
        "attention.value_length_mla",
        gguf.NEXT_KEY,
        _LOG_MULTIPLIER_KEY,
    }
)
_SIGMOID = 2
_FLASH_LAYERS, _FLASH_VOCAB = (47, 48), 154_880
"""GLM-4.7-Flash files do not specify the scoring of experts; llama.cpp recognizes them by these
values."""


def read_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    """Return the configuration of a model with llama.cpp's architecture ``deepseek2``."""
    fields = gguf.without_mtp_layers(fields)
    names = frozenset(source.names())
    num_heads = fields.count("attention.head_count", MAX_HEADS)
    is_split = fields.get("attention.key_length_mla") is not None
    suffix = "_mla" if is_split else ""
    rope_dim = _dimension(fields, "rope.dimension_count")
    latent_rank = _dimension(fields, "attention.kv_lora_rank", _HEAD_ROWS_MULTIPLE)
    key_dim = _dimension(fields, f"attention.key_length{suffix}")
    if key_dim <= rope_dim:
        raise fields.error(f"attention.key_length{suffix}", f"must be more than {rope_dim}")
    if is_split:
        _check_absorbed(fields, rope_dim=rope_dim, latent_rank=latent_rank)
    experts = _experts_in_gguf(fields, source)
    as_heads = {
        "attention.head_count_kv": num_heads,
        "attention.key_length": rope_dim,
        "attention.value_length": rope_dim,
    }
    config = gguf.read_config(
        fields.changed(as_heads),
        source,
        implemented=gguf.EXPERT_KEYS | gguf.ROUTING_KEYS | gguf.PLACE_KEYS | _LATENT_KEYS,
        experts=experts,
    )
    config, mscale = _with_scaled_rope(fields, config)
    attention = LatentAttentionConfig(
        num_heads=num_heads,
        query_rank=(
            _dimension(fields, "attention.q_lora_rank")
            if "blk.0.attn_q_a.weight" in names
            else None
        ),
        latent_rank=latent_rank,
        rope_dim=rope_dim,
        nope_dim=key_dim - rope_dim,
        value_dim=_dimension(fields, f"attention.value_length{suffix}", _HEAD_ROWS_MULTIPLE),
        scale=key_dim**-0.5 * mscale**2,
    )
    return with_layers(config, lambda _, layer: dataclasses.replace(layer, attention=attention))


def _check_absorbed(fields: Fields, *, rope_dim: int, latent_rank: int) -> None:
    """Raise unless keys and values are declared as one head, the latent row."""
    expected = {
        "attention.head_count_kv": 1,
        "attention.key_length": latent_rank + rope_dim,
        "attention.value_length": latent_rank,
    }
    for key, value in expected.items():
        if fields.get(key) != value:
            raise fields.error(key, f"must be {value}")


def _experts_in_gguf(fields: Fields, source: TensorSource) -> tuple[ExpertsConfig | None, ...]:
    gating = fields.get("expert_gating_func")
    is_flash = (
        fields.count("block_count", MAX_LAYERS) in _FLASH_LAYERS
        and source.info("token_embd.weight").num_rows == _FLASH_VOCAB
    )
    is_sigmoid = gating == _SIGMOID or (not gating and is_flash)
    experts = gguf.read_experts_of_layers(
        fields,
        source,
        norm_topk_prob=False,
        score=ExpertScore.SIGMOID if is_sigmoid else ExpertScore.SOFTMAX,
    )
    if not is_sigmoid:
        # DeepSeek-V2 ranks groups by their best expert, and not by their two best.
        key = "expert_group_count"
        if fields.count(key, MAX_EXPERTS, 1) != 1:
            raise unsupported(f"{fields.prefix}{key}={fields.get(key)} with softmax scores")
    return experts


def _with_scaled_rope(fields: Fields, config: ModelConfig) -> tuple[ModelConfig, float]:
    """Return ``config`` with llama.cpp's scaled rope, and the additional factor of queries and
    keys.

    The files contain a tenth of ``mscale_all_dim``, and llama.cpp assumes that ``mscale`` is equal
    to it. If the former is missing, or scaling is linear, it does not compute what the model does.
    """
    (rope,) = config.ropes
    if rope.scaling is RopeScaling.NONE:
        return config, 1.0
    if rope.scaling is not RopeScaling.YARN:
        raise unsupported(f"rope scaling {rope.scaling.value}")
    if not fields.get(_LOG_MULTIPLIER_KEY):
        raise unsupported(f"rope scaling yarn without {fields.prefix}{_LOG_MULTIPLIER_KEY}")
    factor = fields.positive("rope.scaling.attn_factor", 1.0)
    rope = dataclasses.replace(rope, attention_factor=factor)
    logarithm = max(0.0, math.log(rope.factor))
    mscale = factor * (1.0 + fields.positive(_LOG_MULTIPLIER_KEY) * logarithm)
    return dataclasses.replace(config, ropes=(rope,)), mscale


_FULL_RANK = "full-rank queries"

NAMES: Mapping[FileKind, NameTable] = {
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
        {
            "attn.q_down": "self_attn.q_a_proj",
            "attn.q_down_norm": "self_attn.q_a_layernorm",
            "attn.q": StoredPart(name="self_attn.q_b_proj", is_interleaved=True),
            "attn.latent": StoredPart(name="self_attn.kv_a_proj_with_mqa", is_part=True),
            "attn.k_rope": StoredPart(
                name="self_attn.kv_a_proj_with_mqa", after=("attn.latent",), is_interleaved=True
            ),
            "attn.latent_norm": "self_attn.kv_a_layernorm",
            "attn.k_up": StoredPart(
                name="self_attn.kv_b_proj", is_part=True, is_per_head=True, is_turned=True
            ),
            "attn.v_up": StoredPart(
                name="self_attn.kv_b_proj", after=("attn.k_up",), is_per_head=True
            ),
            "mlp.correction.weight": "mlp.gate.e_score_correction_bias",
            **SHARED_EXPERTS,
        },
        variants={
            _FULL_RANK: {
                "attn.q.weight": StoredPart(name="self_attn.q_proj.weight", is_interleaved=True),
            }
        },
        has_more_layers=True,
    ),
    FileKind.GGUF: GGUF_NAMES.changed(
        {
            "attn.q_down": "attn_q_a",
            "attn.q_down_norm": "attn_q_a_norm",
            "attn.q": StoredPart(name="attn_q_b", is_interleaved=True),
            "attn.latent": StoredPart(name="attn_kv_a_mqa", is_part=True),
            "attn.k_rope": StoredPart(
                name="attn_kv_a_mqa", after=("attn.latent",), is_interleaved=True
            ),
            "attn.latent_norm": "attn_kv_a_norm",
            "attn.k_up": "attn_k_b",
            "attn.v_up": "attn_v_b",
        },
        variants={
            _FULL_RANK: {
                "attn.q.weight": StoredPart(name="attn_q.weight", is_interleaved=True),
            },
            "combined keys and values": {
                "attn.k_up.weight": StoredPart(
                    name="attn_kv_b.weight", is_part=True, is_per_head=True, is_turned=True
                ),
                "attn.v_up.weight": StoredPart(
                    name="attn_kv_b.weight", after=("attn.k_up",), is_per_head=True
                ),
            },
        },
        has_more_layers=True,
    ),
}
