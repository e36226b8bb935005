"""Gemma 2 (Gemma Team 2024): norms before and after each branch, soft caps, and a sliding window in
every other layer.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import gemma, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_CONTEXT_TOKENS, Fields
from potluck.types.model import ModelConfig
from potluck.types.program import Activation
from potluck.types.tensor import TensorSource

# ``Gemma2Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
_IMPLEMENTED = frozenset(
    {
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
    }
)
_GGUF_KEYS = frozenset(
    {
        "attention.sliding_window",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    }
)
_PATTERN = 2
# Defaults of absent keys in ``llama-model.cpp``, which recognizes the 27B by its number of layers.
_GGUF_WINDOW = 4096
_GGUF_ATTENTION_CAP = 50.0
_GGUF_LOGIT_CAP = 30.0
_LAYERS_OF_27B = 46


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = gemma.with_defaults(fields, _DEFAULTS)
    config = hugging_face.read_config(
        fields,
        implemented=_IMPLEMENTED,
        reads_attention_bias=True,
        activations=gemma.ACTIVATIONS,
    )
    is_sliding = gemma.sliding_layers(fields, pattern=_PATTERN)
    (rope,) = config.ropes
    return gemma.with_sandwich_norms(
        config,
        is_sliding=is_sliding,
        window=gemma.window_of(fields, is_sliding),
        ropes={False: rope, True: rope},
        scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        softcap=gemma.optional_positive(fields, "attn_logit_softcapping"),
        logit_softcap=gemma.optional_positive(fields, "final_logit_softcapping"),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields.without(gemma.PATTERN_KEY),
        source,
        implemented=_GGUF_KEYS,
        activation=Activation.GELU_TANH,
    )
    (rope,) = config.ropes
    return gemma.with_sandwich_norms(
        config,
        is_sliding=gemma.pattern_of(fields, config.num_layers, default=_PATTERN),
        window=fields.count("attention.sliding_window", MAX_CONTEXT_TOKENS, _GGUF_WINDOW),
        ropes={False: rope, True: rope},
        scale=gemma.gguf_scale(config, layers_of_27b=_LAYERS_OF_27B),
        softcap=fields.positive("attn_logit_softcapping", _GGUF_ATTENTION_CAP),
        logit_softcap=fields.positive("final_logit_softcapping", _GGUF_LOGIT_CAP),
    )


GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    gguf_architectures=("gemma2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=gemma.names_with_shifted_norms(),
)
