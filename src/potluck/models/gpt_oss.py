"""gpt-oss (OpenAI 2025): experts with biases and a clamped activation in every layer, attention
whose softmax has a sink for each head, and a sliding window in every other layer.

Published files have the experts in MXFP4. Other files store their matrices as floats, with the
input dimension first; gate and up are interleaved in both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_CONTEXT_TOKENS, Fields, unsupported
from potluck.models.hugging_face import FULL, SLIDING
from potluck.models.layers import with_attention
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind, StoredPart
from potluck.types.model import ModelConfig
from potluck.types.program import Activation
from potluck.types.tensor import TensorSource

# ``GptOssConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "max_position_embeddings": 131_072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "sliding_window": 128,
    "vocab_size": 201_088,
}
_DEFAULT_ROPE: Mapping[str, object] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
# The parameters of ``Activation.CLAMPED_SWIGLU``.
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "swiglu_alpha": (1.702,),
    "swiglu_limit": (7.0,),
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    if fields.get("rope_scaling") is None and fields.get("rope_parameters") is None:
        fields = fields.changed({"rope_scaling": _DEFAULT_ROPE})
    fields.refuse_others(_ACCEPTED)
    num_layers = hugging_face.num_hidden_layers(fields)
    attention_bias = fields.flag("attention_bias", default=True)
    experts = dataclasses.replace(
        hugging_face.read_experts(fields, norm_topk_prob=True),
        activation=Activation.CLAMPED_SWIGLU,
        has_bias=True,
    )
    config = hugging_face.read_config(
        fields,
        implemented=hugging_face.EXPERT_KEYS | {"attention_bias", "layer_types", "sliding_window"},
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        sliding_windows=_windows(fields, num_layers),
        experts=(experts,) * num_layers,
    )
    return _with_sinks(config)


def _windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Return the windows by ``layer_types``, or one in every other layer from the first."""
    kinds = fields.texts("layer_types")
    if not kinds:
        kinds = tuple(FULL if layer % 2 else SLIDING for layer in range(num_layers))
    if len(kinds) != num_layers:
        raise fields.error("layer_types", f"must have {num_layers} entries")
    if unknown := sorted(set(kinds) - {SLIDING, FULL}):
        raise unsupported(*(f"layer_types {kind}" for kind in unknown))
    if SLIDING not in kinds:
        return (None,) * num_layers
    window = fields.count("sliding_window", MAX_CONTEXT_TOKENS)
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    window = fields.count("attention.sliding_window", MAX_CONTEXT_TOKENS)
    config = gguf.read_config(
        fields,
        source,
        implemented=gguf.EXPERT_KEYS | {"attention.sliding_window"},
        qkv_bias=True,
        output_bias=True,
        experts=gguf.read_experts_of_layers(
            fields,
            source,
            norm_topk_prob=True,
            activation=Activation.CLAMPED_SWIGLU,
            has_bias=True,
        ),
    )
    config = with_attention(
        config,
        lambda layer, each: dataclasses.replace(each, window=None if layer % 2 else window),
    )
    # The models are trained with YaRN with unrounded bounds. The files do not specify it, and
    # llama.cpp rounds them.
    ropes = tuple(dataclasses.replace(rope, truncate=False) for rope in config.ropes)
    return _with_sinks(dataclasses.replace(config, ropes=ropes))


def _with_sinks(config: ModelConfig) -> ModelConfig:
    return with_attention(config, lambda _, each: dataclasses.replace(each, has_sinks=True))


GPT_OSS = Family(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    gguf_architectures=("gpt-oss",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                "attn.sinks.weight": "self_attn.sinks",
                "mlp.router": "mlp.router",
                "mlp.experts.gate.weight": StoredPart(
                    name="mlp.experts.gate_up_proj", stride=2, is_transposed=True
                ),
                "mlp.experts.gate.bias": StoredPart(name="mlp.experts.gate_up_proj_bias", stride=2),
                "mlp.experts.up.weight": StoredPart(
                    name="mlp.experts.gate_up_proj", first=1, stride=2, is_transposed=True
                ),
                "mlp.experts.up.bias": StoredPart(
                    name="mlp.experts.gate_up_proj_bias", first=1, stride=2
                ),
                "mlp.experts.down.weight": StoredPart(
                    name="mlp.experts.down_proj", is_transposed=True
                ),
                "mlp.experts.down.bias": "mlp.experts.down_proj_bias",
            }
        ),
        FileKind.GGUF: GGUF_NAMES.changed(
            {"attn.sinks": "attn_sinks", "mlp_norm": "post_attention_norm"}
        ),
    },
)
