"""Gemma 3 (Gemma Team 2025): norms before and after each branch and on every head, and one
full-attention layer, with a separate rope, after every five sliding-window layers.

Of multimodal models (4B to 27B), only the text part is used.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import gemma, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_CONTEXT_TOKENS, MAX_LAYERS, Fields, unsupported
from potluck.types.model import HeadNorm, ModelConfig, RopeConfig
from potluck.types.program import Activation
from potluck.types.tensor import TensorSource

# ``Gemma3TextConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_IMPLEMENTED = frozenset(
    {
        "final_logit_softcapping",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
        "sliding_window_pattern",
    }
)
_GGUF_KEYS = frozenset(
    {
        "attention.sliding_window",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    }
)
_PATTERN = 6
_FULL_THETA, _SLIDING_THETA = 1_000_000.0, 10_000.0
# The value for the 27B in ``llama-model.cpp``.
_LAYERS_OF_27B = 62


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = gemma.with_defaults(fields, _DEFAULTS)
    ropes = _read_ropes(fields)
    config = hugging_face.read_config(
        fields.without("rope_parameters", "rope_scaling", "rope_theta"),
        implemented=_IMPLEMENTED,
        reads_attention_bias=True,
        head_norm=HeadNorm.HEAD,
        activations=gemma.ACTIVATIONS,
    )
    pattern = fields.count("sliding_window_pattern", MAX_LAYERS, _PATTERN)
    is_sliding = gemma.sliding_layers(fields, pattern=pattern)
    softcap = gemma.optional_positive(fields, "final_logit_softcapping")
    if softcap is not None and fields.prefix:
        # ``Gemma3ForConditionalGeneration`` of transformers omits it, llama.cpp does not.
        raise unsupported(f"{fields.prefix}final_logit_softcapping={softcap}")
    return gemma.with_sandwich_norms(
        config,
        is_sliding=is_sliding,
        window=gemma.window_of(fields, is_sliding),
        ropes=ropes,
        scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        logit_softcap=softcap,
    )


def _read_ropes(fields: Fields) -> Mapping[bool, RopeConfig]:
    """Return ropes by whether a layer slides. Older files have ``rope_scaling``, for full layers
    only.
    """
    head_dim = fields.count("head_dim", MAX_CONTEXT_TOKENS)
    scaling = fields.section("rope_scaling")
    return {
        False: gemma.read_section_rope(
            fields,
            hugging_face.FULL,
            head_dim=head_dim,
            theta=fields.positive("rope_theta", _FULL_THETA),
            scaling=None if scaling is None else scaling.values,
        ),
        True: gemma.read_section_rope(
            fields,
            hugging_face.SLIDING,
            head_dim=head_dim,
            theta=fields.positive("rope_local_base_freq", _SLIDING_THETA),
        ),
    }


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields.without(gemma.PATTERN_KEY),
        source,
        implemented=_GGUF_KEYS,
        head_norm=HeadNorm.HEAD,
        activation=Activation.GELU_TANH,
    )
    (rope,) = config.ropes
    window = gguf.read_window(fields)
    is_sliding = (False,) * config.num_layers
    if window is not None:
        is_sliding = gemma.pattern_of(fields, config.num_layers, default=_PATTERN)
    local = RopeConfig(
        theta=fields.positive("rope.freq_base_swa", _SLIDING_THETA), rotary_dim=rope.rotary_dim
    )
    return gemma.with_sandwich_norms(
        config,
        is_sliding=is_sliding,
        window=window,
        ropes={False: rope, True: local},
        scale=gemma.gguf_scale(config, layers_of_27b=_LAYERS_OF_27B),
        logit_softcap=fields.nonzero("final_logit_softcapping", None),
    )


GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    gguf_architectures=("gemma3",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=gemma.names_with_shifted_norms(),
    wrappers={"gemma3": "Gemma3ForConditionalGeneration"},
)
