"""Granite 4 (IBM 2025): Mamba-2 in most layers and attention without rope in the others, an MLP or
experts with a shared expert, and the multipliers of Granite 3.

Some models of the family have attention with rope in every layer. Hugging Face files have one
matrix for gate and up; the tensors of the MLP in a model without experts are those of the shared
expert in one with experts.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import gguf, granite, hugging_face, mamba_fields
from potluck.models.family import Family
from potluck.models.fields import (
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_WIDTH,
    Fields,
    unsupported,
)
from potluck.models.layers import with_recurrence
from potluck.models.names import (
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    INTERLEAVED_HEADS,
    FileKind,
    concatenated,
)
from potluck.types.model import MambaConfig, MlpConfig, ModelConfig
from potluck.types.tensor import TensorSource

# ``GraniteMoeHybridConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "mamba_d_conv": 4,
    "mamba_d_head": "auto",
    "mamba_d_state": 256,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
    "shared_intermediate_size": 1024,
}
_ATTENTION = frozenset({"attention", "full_attention"})
_MAMBA = frozenset({"mamba", "linear_attention"})
_ROPE_KEYS = ("rope_parameters", "rope_scaling", "rope_theta")
# These values do not matter in a model without experts.
_EXPERT_KEYS = ("num_local_experts", "num_experts_per_tok")


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    has_attention = _layers_with_attention(fields)
    kind = fields.text("position_embedding_type", "none")
    if kind not in ("rope", "none", "nope"):
        raise unsupported(f"position_embedding_type={kind}")
    width = fields.count("shared_intermediate_size", MAX_WIDTH)
    experts = None
    read = fields if kind == "rope" else fields.without(*_ROPE_KEYS)
    if fields.count("num_local_experts", MAX_EXPERTS, minimum=0):
        experts = granite.read_experts(fields, shared=MlpConfig(width=width))
    else:
        read = read.without(*_EXPERT_KEYS)
        read = read.changed({"intermediate_size": width})
    config = granite.read_hugging_face(
        read,
        implemented=hugging_face.EXPERT_KEYS | {"layer_types", "mlp_bias"},
        experts=experts,
    )
    if kind != "rope":
        config = granite.without_rope(config)
    if all(has_attention):
        return config
    mixer = _mixer(fields, hidden_size=config.hidden_size)
    return with_recurrence(config, mixer, has_attention)


def _layers_with_attention(fields: Fields) -> tuple[bool, ...]:
    """Return the attention layers according to ``layer_types``; none if it is absent."""
    kinds = fields.texts("layer_types") or fields.texts("layers_block_type")
    if not kinds:
        return (False,) * hugging_face.num_hidden_layers(fields)
    hugging_face.check_layer_kinds(fields, kinds, _ATTENTION | _MAMBA)
    return tuple(kind in _ATTENTION for kind in kinds)


def _mixer(fields: Fields, *, hidden_size: int) -> MambaConfig:
    num_heads = fields.count("mamba_n_heads", MAX_HEADS)
    inner = fields.count("mamba_expand", MAX_WIDTH) * hidden_size
    if inner % num_heads:
        raise fields.error("mamba_n_heads", f"must divide {inner}, mamba_expand * hidden_size")
    head_dim = inner // num_heads
    if fields.get("mamba_d_head") not in ("auto", head_dim):
        problem = f"must be {head_dim}, which is mamba_expand * hidden_size / mamba_n_heads"
        raise fields.error("mamba_d_head", problem)
    return mamba_fields.mamba_config(
        fields,
        num_heads=num_heads,
        head_dim=head_dim,
        groups_key="mamba_n_groups",
        state_key="mamba_d_state",
        kernel_key="mamba_d_conv",
        steps=mamba_fields.step_limits(fields),
        has_conv_bias=fields.truth("mamba_conv_bias", default=True),
        has_bias=fields.truth("mamba_proj_bias", default=False),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    fields, has_attention = gguf.layers_with_attention(fields)
    if all(has_attention):
        raise unsupported(f"{fields.prefix}attention.head_count_kv without a 0")
    config = gguf.read_config(
        fields,
        source,
        implemented=granite.GGUF_KEYS | gguf.EXPERT_KEYS | gguf.PLACE_KEYS | mamba_fields.GGUF_KEYS,
        optional_biases=gguf.ALL_BIASES,
        attention_layer=has_attention.index(True) if any(has_attention) else 0,
        experts=gguf.read_experts_of_layers(
            fields, source, norm_topk_prob=True, width_key="feed_forward_length"
        ),
    )
    config = granite.with_gguf_multipliers(config, fields)
    if not fields.flag(granite.IS_TURNED, default=True):
        config = granite.without_rope(config)
    elif config.ropes[0].rotary_dim != config.layers[0].grouped_attention.head_dim:
        # The converter interleaves whole heads, and llama.cpp rotates their first columns.
        raise unsupported(f"{fields.prefix}rope.dimension_count={config.ropes[0].rotary_dim}")
    mixer = mamba_fields.mamba_from_gguf(fields, source, has_attention)
    return with_recurrence(config, mixer, has_attention)


GRANITE_HYBRID = Family(
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    gguf_architectures=("granitehybrid",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                **mamba_fields.hugging_face_names("mamba"),
                **concatenated("shared_mlp.input_linear", "mlp.gate", "mlp.up"),
                "mlp.down": "shared_mlp.output_linear",
                **granite.EXPERT_STEMS,
            }
        ),
        FileKind.GGUF: GGUF_NAMES.changed({**INTERLEAVED_HEADS, **mamba_fields.GGUF_NAMES}),
    },
)
