"""Qwen 1.5, 2 and 2.5 (Yang et al. 2024): biases on q, k and v.

Dense models may have sliding windows in upper layers. Models with experts have, in addition to the
selected ones, a shared expert with its own gate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_CONTEXT_TOKENS, MAX_LAYERS, MAX_WIDTH, Fields, unsupported
from potluck.models.names import HUGGING_FACE_NAMES, FileKind
from potluck.types.model import ExpertsConfig, MlpConfig, ModelConfig


def _from_hugging_face(fields: Fields) -> ModelConfig:
    # The family always has these biases; a file that says otherwise is of another architecture.
    if not fields.flag("attention_bias", default=True):
        raise unsupported("attention_bias=False in the family qwen2")
    return hugging_face.read_config(
        fields.with_defaults({"num_key_value_heads": 32}),
        implemented=hugging_face.WINDOW_KEYS | {"attention_bias"},
        qkv_bias=True,
        sliding_windows=hugging_face.windows_by_layer_type(fields),
    )


# ``Qwen2MoeConfig`` of transformers, as far as files may omit these keys.
_MOE_DEFAULTS: Mapping[str, object] = {
    "moe_intermediate_size": 1408,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_key_value_heads": 16,
}

SHARED_STEMS: Mapping[str, str] = {
    "mlp.shared.gate": "mlp.shared_expert.gate_proj",
    "mlp.shared.up": "mlp.shared_expert.up_proj",
    "mlp.shared.down": "mlp.shared_expert.down_proj",
    "mlp.shared_gate": "mlp.shared_expert_gate",
}
"""Stems of a layer's shared expert in Hugging Face files."""


def _moe_from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_MOE_DEFAULTS)
    return hugging_face.read_config(
        fields,
        implemented=hugging_face.EXPERT_KEYS | hugging_face.WINDOW_KEYS,
        qkv_bias=fields.flag("qkv_bias", default=True),
        sliding_windows=_moe_windows(fields),
        experts=read_experts_by_step(fields, shared_width=5632),
    )


def read_experts_by_step(
    fields: Fields, *, shared_width: int | None = None
) -> tuple[ExpertsConfig | None, ...]:
    """Return the experts of the layers that have any, with a shared expert.

    ``shared_width`` is its width if the file does not specify one.
    """
    width = fields.count("shared_expert_intermediate_size", MAX_WIDTH, shared_width)
    shared = MlpConfig(width=width)
    return tuple(
        None
        if experts is None
        else dataclasses.replace(experts, shared=shared, has_shared_gate=True)
        for experts in hugging_face.experts_by_step(fields)
    )


def _moe_windows(fields: Fields) -> tuple[int | None, ...]:
    """Without ``layer_types``, every other one of ``max_window_layers`` layers has a window."""
    if not fields.flag("use_sliding_window", default=False):
        if hugging_face.SLIDING in fields.texts("layer_types"):
            raise fields.error("layer_types", "requires use_sliding_window for sliding_attention")
        return (None,) * hugging_face.num_hidden_layers(fields)
    if fields.texts("layer_types"):
        return hugging_face.windows_by_layer_type(fields)
    window = fields.count("sliding_window", MAX_CONTEXT_TOKENS, 4096)
    end = fields.count("max_window_layers", MAX_LAYERS, 28, minimum=0)
    return tuple(
        window if layer % 2 == 0 and layer < end else None
        for layer in range(hugging_face.num_hidden_layers(fields))
    )


QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf_architectures=("qwen2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(gguf.read_config, qkv_bias=True),
)
QWEN2_MOE = Family(
    name="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    gguf_architectures=("qwen2moe",),
    from_hugging_face=_moe_from_hugging_face,
    from_gguf=partial(
        gguf.read_expert_config,
        # As computed by llama.cpp's build_qwen2moe; it is not in the files.
        norm_topk_prob=False,
        implemented=gguf.PLACE_KEYS,
        optional_biases=frozenset({"attn_q"}),
    ),
    names={FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(SHARED_STEMS)},
)
