"""OLMo 2 and 3 (Ai2 2025): norms after each branch, and over the whole width of queries and keys.

OLMo 3 slides in three of four layers, which have a rope that is not scaled. GGUF files of both are
of the architecture ``olmo2``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from potluck.models import dense, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_CONTEXT_TOKENS, Fields, unsupported
from potluck.models.layers import with_layers
from potluck.types.model import HeadNorm, LayerConfig, ModelConfig, NormPlaces, RopeConfig
from potluck.types.tensor import TensorSource

# ``Olmo2Config`` and ``Olmo3Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
_DEFAULTS_OF_3: Mapping[str, object] = {**_DEFAULTS, "sliding_window": 4096}
_THETA_OF_3 = 500_000.0
_PATTERN = 4
_SECTIONS = frozenset({dense.FULL, dense.SLIDING})
_GGUF_KEYS = frozenset(
    {
        "attention.sliding_window",
        dense.PATTERN_KEY,
        "rope.freq_base_swa",
        "rope.scaling.yarn_attn_factor",
    }
)


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return _with_norms(_read(fields.with_defaults(_DEFAULTS), "olmo2", frozenset()))


def _from_hugging_face_3(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS_OF_3)
    windows = dense.windows(fields, pattern=_PATTERN)
    plain = dense.without(fields, "rope_scaling", "rope_parameters", "rope_theta")
    config = _read(plain, "olmo3", frozenset({"sliding_window", "layer_types"}))
    head_dim = config.layers[0].attention.head_dim
    full, sliding = (
        _read_section(fields, kind, head_dim, config.max_context_tokens)
        for kind in (dense.FULL, dense.SLIDING)
    )
    return _with_windows(_with_norms(config), windows, full=full, sliding=sliding)


def _read(fields: Fields, family: str, implemented: frozenset[str]) -> ModelConfig:
    attention_bias = fields.flag("attention_bias", default=False)
    return hugging_face.read_config(
        fields,
        family=family,
        implemented=implemented | {"attention_bias"},
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        head_norm=HeadNorm.WIDTH,
    )


def _read_section(fields: Fields, kind: str, head_dim: int, max_context_tokens: int) -> RopeConfig:
    """The rope of one kind of layer. Older files have ``rope_scaling``, of full layers only."""
    parameters = fields.section("rope_parameters")
    if parameters is not None and (unknown := sorted(set(parameters.values) - _SECTIONS)):
        raise unsupported(*(f"{key} in rope_parameters" for key in unknown))
    section = None if parameters is None else parameters.section(kind)
    values: dict[str, object] = {} if section is None else dict(section.values)
    theta = _THETA_OF_3
    if kind == dense.FULL:
        scaling = fields.section("rope_scaling")
        values |= {} if scaling is None else scaling.values
        theta = fields.positive("rope_theta", _THETA_OF_3)
    if values.get("truncate") is False:
        raise unsupported("truncate=False in rope_parameters")
    one = {"rope_parameters": {"rope_theta": theta, **values}}
    return hugging_face.read_rope(
        dataclasses.replace(fields, values=one),
        head_dim=head_dim,
        max_context_tokens=max_context_tokens,
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    names = frozenset(source.names())
    window = fields.count("attention.sliding_window", MAX_CONTEXT_TOKENS, 0, minimum=0)
    config = gguf.read_config(
        fields,
        source,
        family="olmo3" if window else "olmo2",
        implemented=_GGUF_KEYS,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        head_norm=HeadNorm.WIDTH,
    )
    (rope,) = config.ropes
    dense.refuse_other_yarn_factor(fields, rope.factor)
    config = _with_norms(config)
    if not window:
        return config
    # As llama.cpp, which turns sliding layers at ``rope.freq_base`` whatever else the file says.
    if fields.positive("rope.freq_base_swa", rope.theta) != rope.theta:
        raise unsupported(f"{fields.prefix}rope.freq_base_swa={fields.get('rope.freq_base_swa')}")
    sliding = RopeConfig(theta=rope.theta, rotary_dim=rope.rotary_dim)
    windows = dense.gguf_windows(fields, pattern=_PATTERN)
    return _with_windows(config, windows, full=rope, sliding=sliding)


def _with_norms(config: ModelConfig) -> ModelConfig:
    return with_layers(config, lambda _, layer: dataclasses.replace(layer, norms=NormPlaces.POST))


def _with_windows(
    config: ModelConfig, windows: Sequence[int | None], *, full: RopeConfig, sliding: RopeConfig
) -> ModelConfig:
    ropes = list(dict.fromkeys(full if window is None else sliding for window in windows))

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        window = windows[index]
        rope = ropes.index(full if window is None else sliding)
        attention = dataclasses.replace(layer.attention, window=window, rope=rope)
        return dataclasses.replace(layer, attention=attention)

    return with_layers(dataclasses.replace(config, ropes=tuple(ropes)), change)


OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    gguf_architectures=("olmo2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=dense.POST_NORM_NAMES,
)

OLMO3 = Family(
    name="olmo3",
    architecture="Olmo3ForCausalLM",
    gguf_architectures=(),
    from_hugging_face=_from_hugging_face_3,
    from_gguf=None,
    names=dense.POST_NORM_NAMES,
)
