"""Granite 3 and 4, dense (IBM 2024 and 2025): Llama with a multiplier at every turn.

Dense models of Granite 4 call themselves ``granitemoehybrid``: all their layers are attention
layers, and their MLP is what is a shared expert in models with experts. GGUF files of both kinds
are of the architecture ``granite``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from potluck.models import dense, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_LAYERS, MAX_WIDTH, Fields, unsupported
from potluck.models.layers import with_layers
from potluck.models.names import HUGGING_FACE_NAMES, FileKind, StoredPart
from potluck.types.model import LayerConfig, ModelConfig
from potluck.types.tensor import TensorSource

_IMPLEMENTED = frozenset(
    {
        "attention_bias",
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "mlp_bias",
        "residual_multiplier",
    }
)
_GGUF_KEYS = frozenset(
    {
        "attention.scale",
        "embedding_scale",
        "logit_scale",
        "residual_scale",
        "rope.scaling.finetuned",
    }
)
# What the converter writes of models without such layers.
_UNUSED_GGUF_KEYS = frozenset(
    {
        "attention.head_count_kv",
        "expert_shared_feed_forward_length",
        "ssm.conv_kernel",
        "ssm.group_count",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
    }
)
_ATTENTION_LAYERS = frozenset({"attention", "full_attention"})
# What these are does not matter in a model without experts.
_UNUSED_KEYS = ("num_local_experts", "num_experts_per_tok", "layer_types", "intermediate_size")


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return _read(fields, family="granite", mlp_bias=fields.flag("mlp_bias", default=False))


def _read(fields: Fields, *, family: str, mlp_bias: bool) -> ModelConfig:
    attention_bias = fields.flag("attention_bias", default=False)
    config = hugging_face.read_config(
        fields,
        family=family,
        implemented=_IMPLEMENTED,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=mlp_bias,
    )
    return _with_multipliers(
        config,
        scale=fields.positive("attention_multiplier", 1.0),
        embedding=fields.positive("embedding_multiplier", 1.0),
        residual=fields.positive("residual_multiplier", 1.0),
        logits=fields.positive("logits_scaling", 1.0),
    )


def _with_multipliers(
    config: ModelConfig, *, scale: float, embedding: float, residual: float, logits: float
) -> ModelConfig:
    def change(_: int, layer: LayerConfig) -> LayerConfig:
        attention = dataclasses.replace(layer.grouped_attention, scale=scale)
        return dataclasses.replace(layer, attention=attention, residual_scale=residual)

    return dataclasses.replace(
        with_layers(config, change), embedding_scale=embedding, logit_scale=1 / logits
    )


def _from_hybrid(fields: Fields) -> ModelConfig:
    num_layers = hugging_face.num_hidden_layers(fields)
    kinds = fields.texts("layer_types") or fields.texts("layers_block_type")
    others = sorted(set(kinds) - _ATTENTION_LAYERS) if kinds else ["mamba"]
    if others or len(kinds) != num_layers:
        raise unsupported(*(f"layer_types {kind}" for kind in others or kinds[:1]))
    if fields.get("num_local_experts") != 0:
        raise unsupported(f"num_local_experts={fields.get('num_local_experts')}")
    values = {
        **fields.without(*_UNUSED_KEYS).values,
        "intermediate_size": fields.count("shared_intermediate_size", MAX_WIDTH, 1024),
    }
    config = _read(
        dataclasses.replace(fields, values=values), family="granitemoehybrid", mlp_bias=False
    )
    kind = fields.text("position_embedding_type", "none")
    if kind not in ("rope", "none", "nope"):
        raise unsupported(f"position_embedding_type={kind}")
    return config if kind == "rope" else _without_rope(config)


def _without_rope(config: ModelConfig) -> ModelConfig:
    return with_layers(
        config,
        lambda _, layer: dataclasses.replace(
            layer, attention=dataclasses.replace(layer.grouped_attention, rope=None)
        ),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    names = frozenset(source.names())
    config = gguf.read_config(
        _with_one_number_of_heads(fields),
        source,
        family="granite",
        implemented=_GGUF_KEYS | _UNUSED_GGUF_KEYS,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
    )

    def value(key: str, default: float) -> float:
        return fields.positive(key) if fields.get(key) else default

    config = _with_multipliers(
        config,
        scale=value("attention.scale", config.layers[0].grouped_attention.head_dim ** -0.5),
        embedding=value("embedding_scale", 1.0),
        residual=value("residual_scale", 1.0),
        logits=fields.positive("logit_scale"),
    )
    is_turned = fields.flag("rope.scaling.finetuned", default=True)
    return config if is_turned else _without_rope(config)


def _with_one_number_of_heads(fields: Fields) -> Fields:
    """The number of key-value heads of all layers, where a file has it for each."""
    key = "attention.head_count_kv"
    value = fields.get(key)
    if isinstance(value, str) or not isinstance(value, Iterable):
        return fields
    counts = tuple(value)
    if len(set(counts)) != 1 or len(counts) != fields.count("block_count", MAX_LAYERS):
        raise unsupported(f"{fields.prefix}{key}={counts}")
    return dataclasses.replace(fields, values={**fields.values, key: counts[0]})


GRANITE = Family(
    name="granite",
    architecture="GraniteForCausalLM",
    gguf_architectures=("granite",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=dense.CONVERTED_NAMES,
)

GRANITE_HYBRID = Family(
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    gguf_architectures=(),
    from_hugging_face=_from_hybrid,
    from_gguf=None,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                "mlp.gate": StoredPart(name="shared_mlp.input_linear", is_part=True),
                "mlp.up": StoredPart(name="shared_mlp.input_linear", after=("mlp.gate",)),
                "mlp.down": "shared_mlp.output_linear",
            }
        ),
        FileKind.GGUF: dense.CONVERTED_NAMES[FileKind.GGUF],
    },
)
