"""Command R7B and Command A (Cohere 2024 and 2025): attention beside the MLP, LayerNorm, a rope
that turns neighbours in the layers that slide, and none in the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from potluck.models import dense, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_LAYERS, Fields, unsupported
from potluck.models.layers import with_layers
from potluck.types.model import LayerConfig, ModelConfig, NormKind, NormPlaces
from potluck.types.tensor import TensorSource

# ``Cohere2Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "layer_norm_eps": 1e-5,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_IMPLEMENTED = frozenset(
    {"attention_bias", "layer_types", "logit_scale", "sliding_window", "sliding_window_pattern"}
)
# Keys of published files that say what the family is anyway.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "order_of_interleaved_layers": ("local_attn_first",),
    "position_embedding_type": ("rope_gptj",),
    "rms_norm_eps": (),
    "use_embedding_sharing": (True,),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
    "use_parallel_embedding": (False,),
}
_GGUF_KEYS = frozenset(
    {
        "attention.layer_norm_epsilon",
        "attention.sliding_window",
        dense.PATTERN_KEY,
        "logit_scale",
    }
)
_PATTERN = 4


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    dense.refuse_other_values(fields, _NEUTRAL)
    pattern = fields.count("sliding_window_pattern", MAX_LAYERS, _PATTERN)
    # Published files have the pattern under this name as well.
    if fields.count("layer_switch", MAX_LAYERS, pattern) != pattern:
        raise unsupported(f"layer_switch={fields.get('layer_switch')}")
    attention_bias = fields.flag("attention_bias", default=False)
    config = hugging_face.read_config(
        fields,
        family="cohere2",
        implemented=_IMPLEMENTED,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
    )
    attention = config.layers[0].attention
    if attention.head_dim * attention.num_heads != config.hidden_size:
        raise unsupported(f"head_dim={attention.head_dim}")  # which transformers does not read
    return _with_layers(
        dataclasses.replace(config, norm_epsilon=fields.positive("layer_norm_eps")),
        dense.windows(fields, pattern=pattern),
        logit_scale=fields.positive("logit_scale"),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields,
        source,
        family="cohere2",
        implemented=_GGUF_KEYS,
        epsilon_key="attention.layer_norm_epsilon",
    )
    windows = dense.gguf_windows(fields, pattern=_PATTERN)
    if not any(windows):
        raise fields.error("attention.sliding_window", "must be above 0")
    scale = fields.positive("logit_scale") if fields.get("logit_scale") else 1.0
    return _with_layers(config, windows, logit_scale=scale)


def _with_layers(
    config: ModelConfig, windows: Sequence[int | None], *, logit_scale: float
) -> ModelConfig:
    def change(index: int, layer: LayerConfig) -> LayerConfig:
        window = windows[index]
        attention = dataclasses.replace(
            layer.attention, window=window, rope=None if window is None else 0
        )
        return dataclasses.replace(layer, attention=attention, norms=NormPlaces.PARALLEL)

    changed = with_layers(config, change)
    return dataclasses.replace(changed, norm=NormKind.LAYER, logit_scale=logit_scale)


COHERE2 = Family(
    name="cohere2",
    architecture="Cohere2ForCausalLM",
    gguf_architectures=("cohere2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=dense.INTERLEAVED_NAMES,
)
