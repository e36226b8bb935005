"""Qwen3-Next (Qwen Team 2025): three gated delta nets (Yang et al. 2024) for each attention layer
with an output gate, and experts including a shared one with its own gate.

Norms are stored as ``w - 1``, except in gated delta nets. Multi-token prediction is skipped.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import (
    MAX_HEADS,
    MAX_KERNEL,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
)
from potluck.models.layers import all_but_every_nth, with_attention, with_recurrence
from potluck.models.names import (
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    FileKind,
    NameTable,
    StoredPart,
    concatenated,
)
from potluck.models.qwen2 import SHARED_STEMS, read_experts_by_step
from potluck.types.model import (
    ExpertsConfig,
    GatedDeltaConfig,
    HeadNorm,
    ModelConfig,
)
from potluck.types.tensor import TensorSource

LINEAR = "linear_attention"
"""The name in ``layer_types`` for layers with a gated delta net."""

ROTARY_SHARE = 0.25
HEAD_DIM = 256
# ``Qwen3NextConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32_768,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
    "vocab_size": 151_936,
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    return read_text_config(fields, experts=read_experts_by_step(fields))


def read_text_config(
    fields: Fields, *, experts: tuple[ExpertsConfig | None, ...] | None = None
) -> ModelConfig:
    """Return the configuration of a model with Qwen3-Next's layers."""
    # Models with other gates say so.
    fields.refuse_others({"attn_output_gate": (True,), "output_gate_type": ("silu", "swish")})
    implemented = frozenset({"layer_types"})
    config = hugging_face.read_config(
        fields,
        implemented=implemented if experts is None else implemented | hugging_face.EXPERT_KEYS,
        default_head_dim=HEAD_DIM,
        reads_attention_bias=True,
        head_norm=HeadNorm.HEAD,
        experts=experts,
        default_rotary_share=ROTARY_SHARE,
    )
    is_recurrent = _recurrent_layers(fields, config.num_layers)
    if not any(is_recurrent):
        return _with_gate(config)
    recurrence = GatedDeltaConfig(
        num_heads=fields.count("linear_num_value_heads", MAX_HEADS),
        num_key_heads=fields.count("linear_num_key_heads", MAX_HEADS),
        key_dim=fields.count("linear_key_head_dim", MAX_WIDTH),
        value_dim=fields.count("linear_value_head_dim", MAX_WIDTH),
        kernel=fields.count("linear_conv_kernel_dim", MAX_KERNEL, minimum=2),
    )
    _check_recurrence(fields, recurrence, key="linear_num_value_heads")
    return _with_gate(with_recurrence(config, recurrence, [not each for each in is_recurrent]))


def _recurrent_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Return whether each layer has a gated delta net: by ``layer_types``, or not every n-th."""
    kinds = fields.texts("layer_types")
    if fields.get("layer_types") is None:
        interval = fields.count("full_attention_interval", MAX_LAYERS, 4)
        return all_but_every_nth(num_layers, interval)
    hugging_face.check_layer_kinds(fields, kinds, {LINEAR, hugging_face.FULL})
    return tuple(kind == LINEAR for kind in kinds)


def _check_recurrence(fields: Fields, recurrence: GatedDeltaConfig, *, key: str) -> None:
    """Raise unless all key heads serve the same number of heads, and their widths are supported.

    ``key`` is the key of the number of heads.
    """
    if recurrence.num_heads % recurrence.num_key_heads:
        raise fields.error(
            key, f"must be a multiple of {recurrence.num_key_heads}, the number of key heads"
        )
    if recurrence.num_heads * max(recurrence.key_dim, recurrence.value_dim) > MAX_WIDTH:
        raise fields.error(key, f"makes more than {MAX_WIDTH} columns")


def _with_gate(config: ModelConfig) -> ModelConfig:
    return with_attention(config, lambda _, each: dataclasses.replace(each, has_output_gate=True))


GGUF_KEYS = frozenset(
    {
        "attention.recurrent_layers",
        "full_attention_interval",
        "ssm.conv_kernel",
        "ssm.group_count",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
        gguf.NEXT_KEY,
    }
)
GGUF_EXPERT_KEYS = gguf.EXPERT_KEYS | gguf.PLACE_KEYS | {"expert_weights_scale"}


def read_gguf(
    fields: Fields,
    source: TensorSource,
    *,
    implemented: frozenset[str],
    is_tiled: bool = False,
) -> ModelConfig:
    """Return the configuration of a GGUF file with Qwen3-Next's layers.

    ``is_tiled``: value heads are assigned to key heads in turn.
    """
    num_blocks = fields.count("block_count", MAX_LAYERS)
    is_recurrent = _recurrent_blocks(fields, num_blocks)
    fields = gguf.without_mtp_layers(fields.without("attention.recurrent_layers"))
    is_recurrent = is_recurrent[: fields.count("block_count", MAX_LAYERS)]
    # As computed by llama.cpp's build_layer_ffn.
    experts = gguf.read_experts_of_layers(fields, source, norm_topk_prob=True)
    if None not in experts:  # other feed-forward parts may then have no width
        fields = fields.with_defaults({"feed_forward_length": 1})
    config = gguf.read_config(
        fields,
        source,
        implemented=GGUF_KEYS | implemented,
        optional_biases=frozenset({"attn_q"}),
        attention_layer=is_recurrent.index(False) if False in is_recurrent else 0,
        head_norm=HeadNorm.HEAD,
        experts=experts,
    )
    num_heads = fields.count("ssm.time_step_rank", MAX_HEADS)
    inner_size = fields.count("ssm.inner_size", MAX_WIDTH)
    if inner_size % num_heads:
        raise fields.error(
            "ssm.inner_size", f"must be a multiple of {num_heads}, the number of heads"
        )
    recurrence = GatedDeltaConfig(
        num_heads=num_heads,
        num_key_heads=fields.count("ssm.group_count", MAX_HEADS),
        key_dim=fields.count("ssm.state_size", MAX_WIDTH),
        value_dim=inner_size // num_heads,
        kernel=fields.count("ssm.conv_kernel", MAX_KERNEL, minimum=2),
        is_tiled=is_tiled,
    )
    _check_recurrence(fields, recurrence, key="ssm.time_step_rank")
    return _with_gate(with_recurrence(config, recurrence, [not each for each in is_recurrent]))


def _recurrent_blocks(fields: Fields, num_blocks: int) -> tuple[bool, ...]:
    key = "attention.recurrent_layers"
    value = fields.get(key)
    if value is None:
        interval = fields.count("full_attention_interval", MAX_LAYERS, 4)
        return all_but_every_nth(num_blocks, interval)
    if not gguf.is_list(value):
        return (fields.flag(key, default=False),) * num_blocks
    return tuple(map(bool, gguf.values_by_layer(fields, key, num_blocks)))


_DELTA_STEMS: Mapping[str, str | StoredPart] = {
    "delta.kernel.weight": StoredPart(name="linear_attn.conv1d.weight", is_flat=True),
    "delta.rate.weight": StoredPart(name="linear_attn.A_log", is_negative_exp=True),
    "delta.decay_bias.weight": "linear_attn.dt_bias",
    "delta.norm": "linear_attn.norm",
    "delta.out": "linear_attn.out_proj",
}
_SHIFTED_NORMS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
}
_GGUF_STEMS: Mapping[str, str | StoredPart] = {
    "mlp_norm": "post_attention_norm",
    "delta.qkv": "attn_qkv",
    "delta.gate": "attn_gate",
    "delta.kernel.weight": StoredPart(name="ssm_conv1d.weight", is_flat=True),
    "delta.rate.weight": "ssm_a",
    "delta.decay_bias.weight": "ssm_dt.bias",
    "delta.norm": "ssm_norm",
    "delta.out": "ssm_out",
}


def names_of(
    hugging_face_stems: Mapping[str, str | StoredPart],
    gguf_stems: Mapping[str, str | StoredPart],
    *,
    skipped: Mapping[str, re.Pattern[str]],
    gguf_variants: Mapping[str, Mapping[str, str | StoredPart]] | None = None,
) -> Mapping[FileKind, NameTable]:
    """Return the names of a family with Qwen3-Next's layers, and the projections of gated delta
    nets.

    Hugging Face files may have a tensor for each expert's matrix, or one for all of a layer.
    """
    shifted = {stem: StoredPart(name=name, plus_one=True) for stem, name in _SHIFTED_NORMS.items()}
    return {
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {**shifted, **_DELTA_STEMS, **SHARED_STEMS, **hugging_face_stems},
            stems={"norm": StoredPart(name="model.norm", plus_one=True)},
            skipped={
                "multi-token prediction layers": re.compile(r"(model\.)?mtp\..+"),
                **skipped,
            },
            variants={
                "fused experts": {
                    **concatenated(
                        "mlp.experts.gate_up_proj",
                        "mlp.experts.gate",
                        "mlp.experts.up",
                        ending=".weight",
                    ),
                    "mlp.experts.down.weight": "mlp.experts.down_proj",
                }
            },
        ),
        FileKind.GGUF: GGUF_NAMES.changed(
            {**_GGUF_STEMS, **gguf_stems}, variants=gguf_variants, has_more_layers=True
        ),
    }


def _rows_of(
    sizes: Callable[[GatedDeltaConfig], tuple[int, ...]], *parts: int
) -> Callable[[ModelConfig, int], tuple[range, ...]]:
    """Return the rows of some parts of the groups in a fused matrix, one group per key head.

    ``sizes`` returns the numbers of rows of all parts of a group.
    """

    def rows_of(config: ModelConfig, layer: int) -> tuple[range, ...]:
        recurrence = config.layers[layer].recurrence
        if not isinstance(recurrence, GatedDeltaConfig):
            raise ValueError(f"layer {layer} is not a gated delta net")
        bounds = (0, *accumulate(sizes(recurrence)))
        return tuple(
            range(head * bounds[-1] + bounds[part], head * bounds[-1] + bounds[part + 1])
            for part in parts
            for head in range(recurrence.num_key_heads)
        )

    return rows_of


def _projection_sizes(config: GatedDeltaConfig) -> tuple[int, ...]:
    """Return the rows of a head's query and key, and of values and gates of the heads it serves."""
    value_rows = config.num_heads // config.num_key_heads * config.value_dim
    return (config.key_dim, config.key_dim, value_rows, value_rows)


def _factor_sizes(config: GatedDeltaConfig) -> tuple[int, ...]:
    """Return the rows of betas and decays of the heads that a key head serves."""
    return (config.num_heads // config.num_key_heads,) * 2


def _fused_projections(name: str) -> Mapping[str, StoredPart]:
    return {
        "delta.qkv.weight": StoredPart(name=name, rows_of=_rows_of(_projection_sizes, 0, 1, 2)),
        "delta.gate.weight": StoredPart(name=name, rows_of=_rows_of(_projection_sizes, 3)),
    }


def _fused_factors(name: str) -> Mapping[str, StoredPart]:
    return {
        "delta.beta.weight": StoredPart(name=name, rows_of=_rows_of(_factor_sizes, 0)),
        "delta.decay.weight": StoredPart(name=name, rows_of=_rows_of(_factor_sizes, 1)),
    }


QWEN3_NEXT = Family(
    name="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    gguf_architectures=("qwen3next",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(read_gguf, implemented=GGUF_EXPERT_KEYS),
    names=names_of(
        {
            **_fused_projections("linear_attn.in_proj_qkvz.weight"),
            **_fused_factors("linear_attn.in_proj_ba.weight"),
        },
        _fused_factors("ssm_ba.weight"),
        skipped={},
        # As llama.cpp's converter originally wrote it.
        gguf_variants={"fused projections": _fused_projections("ssm_in.weight")},
    ),
)
