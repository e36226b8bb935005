"""OLMo 2 and 3 (Ai2 2024, 2025): norms after each branch, and over all heads of q and of k.

OLMo 3 has sliding windows with unscaled rope in three of four layers.
"""

from __future__ import annotations

import dataclasses

from potluck.models import gemma, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields, unsupported
from potluck.models.layers import with_layers
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind
from potluck.types.model import HeadNorm, ModelConfig, NormPlaces, RopeConfig
from potluck.types.tensor import TensorSource

_PATTERN = 4
_THETA_OF_3 = 500_000.0

_GGUF_KEYS = frozenset(
    {"attention.sliding_window", "rope.freq_base_swa", "rope.scaling.yarn_attn_factor"}
)


def _read(fields: Fields, implemented: frozenset[str]) -> ModelConfig:
    return hugging_face.read_config(
        fields.with_defaults({"rms_norm_eps": 1e-5}),
        implemented=implemented,
        reads_attention_bias=True,
        head_norm=HeadNorm.WIDTH,
    )


def _from_olmo2(fields: Fields) -> ModelConfig:
    return _with_norms_after(_read(fields, frozenset()))


def _from_olmo3(fields: Fields) -> ModelConfig:
    # ``rope_parameters`` has a section for each kind of layer; ``rope_scaling``, in older files,
    # applies to full-attention layers.
    plain = fields.without("rope_parameters", "rope_scaling")
    config = _read(plain, frozenset({"layer_types", "sliding_window"}))
    head_dim = config.layers[0].grouped_attention.head_dim
    theta = fields.positive("rope_theta", _THETA_OF_3)
    scaling = fields.section("rope_scaling")
    ropes = {
        slides: gemma.read_section_rope(
            fields,
            hugging_face.SLIDING if slides else hugging_face.FULL,
            head_dim=head_dim,
            theta=theta,
            scaling=None if slides or scaling is None else scaling.values,
        )
        for slides in (False, True)
    }
    is_sliding = gemma.sliding_layers(fields, pattern=_PATTERN)
    window = hugging_face.window_unless_null(fields)
    if window is None:
        is_sliding = (False,) * config.num_layers
    return gemma.with_two_kinds(config, is_sliding, window, ropes, NormPlaces.POST)


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields.without(gemma.PATTERN_KEY),
        source,
        implemented=_GGUF_KEYS,
        optional_biases=gguf.ATTENTION_BIASES,
        head_norm=HeadNorm.WIDTH,
    )
    (rope,) = config.ropes
    gguf.refuse_other_yarn_factor(fields, rope.factor)
    window = gguf.read_window(fields)
    if window is None:
        return _with_norms_after(config)
    # As in llama.cpp, where the rope of sliding layers only depends on ``rope.freq_base``.
    if fields.positive("rope.freq_base_swa", rope.theta) != rope.theta:
        raise unsupported(f"{fields.prefix}rope.freq_base_swa={fields.get('rope.freq_base_swa')}")
    unscaled = RopeConfig(theta=rope.theta, rotary_dim=rope.rotary_dim)
    ropes = {False: rope, True: unscaled}
    is_sliding = gemma.pattern_of(fields, config.num_layers, default=_PATTERN)
    return gemma.with_two_kinds(config, is_sliding, window, ropes, NormPlaces.POST)


def _with_norms_after(config: ModelConfig) -> ModelConfig:
    return with_layers(config, lambda _, layer: dataclasses.replace(layer, norms=NormPlaces.POST))


POST_NORM_NAMES = {
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
        {
            "attn_post_norm": "post_attention_layernorm",
            "mlp_post_norm": "post_feedforward_layernorm",
        }
    ),
    FileKind.GGUF: GGUF_NAMES.changed(gemma.GGUF_STEMS),
}
"""The names of families with a norm after each branch, and none before it."""

OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    gguf_architectures=("olmo2",),
    from_hugging_face=_from_olmo2,
    from_gguf=_from_gguf,
    names=POST_NORM_NAMES,
)
OLMO3 = Family(
    name="olmo3",
    architecture="Olmo3ForCausalLM",
    from_hugging_face=_from_olmo3,
    names=POST_NORM_NAMES,
)
