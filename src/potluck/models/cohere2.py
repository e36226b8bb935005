"""Cohere Command R7B and A (2024, 2025): LayerNorms, attention and MLP in parallel, and three
sliding-window layers with rope for every full-attention layer without rope.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_CONTEXT_TOKENS, MAX_LAYERS, Fields, unsupported
from potluck.models.layers import all_but_every_nth, with_windows
from potluck.models.names import INTERLEAVED_NAMES
from potluck.types.model import ModelConfig, NormKind, NormPlaces
from potluck.types.tensor import TensorSource

_PATTERN = 4

# Keys of published files that the family implies.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "order_of_interleaved_layers": ("local_attn_first",),
    "position_embedding_type": ("rope_gptj",),
    "use_embedding_sharing": (True,),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
    "use_parallel_embedding": (False,),
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields.refuse_others(_NEUTRAL)
    if fields.flag("use_qk_norm", default=False):
        raise unsupported("use_qk_norm=True in the family cohere2")
    # ``rms_norm_eps``, which the family does not use, may nevertheless be in the file.
    values = {"rms_norm_eps": fields.positive("layer_norm_eps", 1e-5)}
    config = hugging_face.read_config(
        fields.with_defaults({"tie_word_embeddings": True}).changed(values),
        implemented=frozenset(
            {
                "layer_types",
                "logit_scale",
                "sliding_window",
                "sliding_window_pattern",
                "use_parallel_residual",
                "use_qk_norm",
            }
        ),
        reads_attention_bias=True,
    )
    if fields.get("head_dim") is not None and (
        config.layers[0].grouped_attention.head_dim * config.layers[0].grouped_attention.num_heads
        != config.hidden_size
    ):
        raise unsupported(f"head_dim={fields.get('head_dim')} in the family cohere2")
    return _with_kinds(
        dataclasses.replace(config, logit_scale=fields.positive("logit_scale", 0.0625)),
        _sliding_layers(fields, config.num_layers),
        hugging_face.window_unless_null(fields),
    )


def _sliding_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    if not fields.texts("layer_types"):
        pattern = fields.count("sliding_window_pattern", MAX_LAYERS, _PATTERN)
        return all_but_every_nth(num_layers, pattern)
    return hugging_face.sliding_layers(fields)


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    epsilon = fields.positive("attention.layer_norm_epsilon")
    config = gguf.read_config(
        fields.changed({"attention.layer_norm_rms_epsilon": epsilon}),
        source,
        implemented=frozenset(
            {"attention.layer_norm_epsilon", "attention.sliding_window", "logit_scale"}
        ),
    )
    return _with_kinds(
        dataclasses.replace(config, logit_scale=fields.positive("logit_scale")),
        # The pattern that llama.cpp assumes; it is not in the files.
        all_but_every_nth(config.num_layers, _PATTERN),
        fields.count("attention.sliding_window", MAX_CONTEXT_TOKENS),
    )


def _with_kinds(config: ModelConfig, is_sliding: Sequence[bool], window: int | None) -> ModelConfig:
    """Apply rope to sliding-window layers only; without a window (null), to no layer."""
    ropes = {True: None if window is None else 0, False: None}
    config = with_windows(config, is_sliding, window, ropes, NormPlaces.PARALLEL)
    return dataclasses.replace(config, norm=NormKind.LAYER)


COHERE2 = Family(
    name="cohere2",
    architecture="Cohere2ForCausalLM",
    gguf_architectures=("cohere2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=INTERLEAVED_NAMES,
)
