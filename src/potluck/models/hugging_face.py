"""Common parts of the families' ``config.json`` files.

Keys, their defaults and their meaning are those of ``transformers`` 5 (``configuration_*.py`` and
``modeling_rope_utils.py``); null means absent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence, Set

from potluck.errors import ModelFileError
from potluck.formats.source import MAX_TENSORS
from potluck.models.fields import (
    MAX_CONTEXT_TOKENS,
    MAX_EXPERTS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
    check_heads,
    read_sized_experts,
    unsupported,
)
from potluck.models.layers import plain_layers
from potluck.types.model import (
    AttentionConfig,
    ExpertsConfig,
    HeadNorm,
    MlpConfig,
    ModelConfig,
    RopeConfig,
    RopeScaling,
)
from potluck.types.program import Activation

_DEFAULT_THETA = 10_000.0
_SILU: Mapping[str, Activation] = {"silu": Activation.SILU}

# Keys that change the arithmetic, and the values (other than null) with which they do not. A family
# lists those that it implements; all others must be neutral.
_NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "qk_norm": (False,),
    "use_qk_norm": (False,),
    "sliding_window": (),
    "use_sliding_window": (False,),
    "layer_types": (),
    "sliding_window_pattern": (),
    "dual_chunk_attention_config": (),
    "attention_chunk_size": (),
    "attention_sinks": (False,),
    "alibi": (False,),
    "clip_qkv": (),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_layers": ([],),
    "pruned_heads": ({},),
    "per_layer_config": ({},),
    "partial_rotary_factor": (1,),
    "rotary_pct": (1,),
    "rope_interleaved": (False,),
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (0,),
    "use_mrope": (False,),
    "mrope_section": (),
    "use_parallel_residual": (False,),
    "attn_temperature_tuning": (False,),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "num_experts_per_tok": (0,),
    "compression_config": ({},),
}

FULL, SLIDING = "full_attention", "sliding_attention"
"""The names in ``layer_types`` for full-attention layers, and for sliding-window layers."""

WINDOW_KEYS = frozenset({"sliding_window", "use_sliding_window", "layer_types"})
"""The keys that ``windows_by_layer_type`` implements."""

_ROPE_KEYS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "none": frozenset(),
    "linear": frozenset({"factor"}),
    "yarn": frozenset(
        {
            "factor",
            "original_max_position_embeddings",
            "beta_fast",
            "beta_slow",
            "attention_factor",
            "mscale",
            "mscale_all_dim",
            "truncate",
        }
    ),
    "longrope": frozenset(
        {
            "factor",
            "long_factor",
            "short_factor",
            "attention_factor",
            "original_max_position_embeddings",
        }
    ),
    "llama3": frozenset(
        {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}
    ),
}
_COMMON_ROPE_KEYS = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor"})


def read_config(
    fields: Fields,
    *,
    implemented: frozenset[str],
    default_head_dim: int | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    reads_attention_bias: bool = False,
    mlp_bias: bool = False,
    head_norm: HeadNorm = HeadNorm.NONE,
    sliding_windows: tuple[int | None, ...] | None = None,
    experts: tuple[ExpertsConfig | None, ...] | None = None,
    activations: Mapping[str, Activation] = _SILU,
    default_rotary_share: float | None = None,
) -> ModelConfig:
    """Return the configuration of a family that reads the keys ``implemented`` itself.

    ``default_head_dim`` defaults to an equal share of the hidden size, ``sliding_windows`` to full
    attention in every layer, and ``experts``, one entry per layer, to an MLP in every layer. With
    ``reads_attention_bias``, the key ``attention_bias`` determines ``qkv_bias`` and
    ``output_bias``. ``activations`` maps ``hidden_act`` to those that the family supports.
    ``default_rotary_share`` is the rotated part of a head if the file does not specify it
    (``partial_rotary_factor``); None means that the family rotates whole heads. Layers are equal
    except for ``sliding_windows`` and ``experts``; a family changes them with ``with_layers``.
    """
    if default_rotary_share is not None:
        implemented = implemented | {"partial_rotary_factor"}
    if reads_attention_bias:
        implemented = implemented | {"attention_bias"}
        qkv_bias = output_bias = fields.flag("attention_bias", default=False)
    refuse_unsupported(fields, implemented, activations)
    num_layers = num_hidden_layers(fields)
    hidden_size = fields.count("hidden_size", MAX_WIDTH)
    num_heads = fields.count("num_attention_heads", MAX_HEADS)
    num_kv_heads = fields.count("num_key_value_heads", MAX_HEADS, num_heads)
    if fields.get("head_dim") is None and default_head_dim is None and hidden_size % num_heads:
        raise ModelFileError(
            fields.path, f"hidden_size {hidden_size} is not divisible by {num_heads} heads"
        )
    head_dim = fields.count("head_dim", MAX_WIDTH, default_head_dim or hidden_size // num_heads)
    check_heads(
        fields,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        kv_heads_key="num_key_value_heads",
        head_dim_key="head_dim",
    )
    max_context_tokens = fields.count("max_position_embeddings", MAX_CONTEXT_TOKENS, minimum=2)
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        head_norm=head_norm,
    )
    mlp = MlpConfig(
        width=fields.count("intermediate_size", MAX_WIDTH),
        activation=activations[fields.text("hidden_act", "silu")],
        has_bias=mlp_bias,
    )
    rope = read_rope(
        fields,
        head_dim=head_dim,
        max_context_tokens=max_context_tokens,
        default_rotary_share=default_rotary_share,
    )
    return ModelConfig(
        family=fields.family,
        hidden_size=hidden_size,
        vocab_size=fields.count("vocab_size", MAX_VOCAB),
        max_context_tokens=max_context_tokens,
        norm_epsilon=fields.positive("rms_norm_eps", 1e-6),
        layers=plain_layers(num_layers, attention, mlp, sliding_windows, experts),
        ropes=(rope,),
        tied_head=fields.flag("tie_word_embeddings", default=False),
    )


EXPERT_KEYS = frozenset({"num_experts", "num_local_experts", "num_experts_per_tok"})
"""The keys that ``experts_by_step`` implements, and that other families must not have."""


_MATRICES_OF_EXPERT = 3


def experts_by_step(fields: Fields) -> tuple[ExpertsConfig | None, ...]:
    """Return the experts of the Qwen families, layer by layer.

    Every ``decoder_sparse_step``-th layer has them, except ``mlp_only_layers``. Newer files use the
    name ``num_local_experts`` for ``num_experts``.
    """
    num_layers = num_hidden_layers(fields)
    has_newer = fields.get("num_experts") is None and fields.get("num_local_experts") is not None
    count_key = "num_local_experts" if has_newer else "num_experts"
    num_experts = fields.count(count_key, MAX_EXPERTS, minimum=0)
    step = fields.count("decoder_sparse_step", MAX_LAYERS, 1)
    dense = fields.counts("mlp_only_layers", MAX_LAYERS)
    check_num_tensors(fields, count_key, num_layers, num_experts)
    has_experts = tuple(
        num_experts > 0 and layer not in dense and (layer + 1) % step == 0
        for layer in range(num_layers)
    )
    if not any(has_experts):
        return (None,) * num_layers
    experts = read_experts(
        fields,
        norm_topk_prob=fields.flag("norm_topk_prob", default=False),
        count_key=count_key,
        width_key="moe_intermediate_size",
    )
    return tuple(experts if is_there else None for is_there in has_experts)


def read_experts(
    fields: Fields,
    *,
    norm_topk_prob: bool,
    count_key: str = "num_local_experts",
    used_key: str = "num_experts_per_tok",
    width_key: str = "intermediate_size",
    num_layers: int | None = None,
) -> ExpertsConfig:
    """Return the experts under these keys; ``num_layers`` have them as separate tensors.

    Raises as ``read_sized_experts``, and as ``check_num_tensors`` if ``num_layers`` is not None.
    """
    experts = read_sized_experts(
        fields,
        hidden_size=fields.count("hidden_size", MAX_WIDTH),
        norm_topk_prob=norm_topk_prob,
        count_key=count_key,
        used_key=used_key,
        width_key=width_key,
    )
    if num_layers is not None:
        check_num_tensors(fields, count_key, num_layers, experts.num_experts)
    return experts


def check_num_tensors(fields: Fields, key: str, num_layers: int, num_experts: int) -> None:
    """Raise if experts that are separate tensors exceed the limit on tensors of a model.

    ``key`` is the key of the number of experts per layer.
    """
    if num_layers * num_experts * _MATRICES_OF_EXPERT > MAX_TENSORS:
        raise fields.error(key, f"in {num_layers} layers makes more than {MAX_TENSORS} tensors")


def num_hidden_layers(fields: Fields) -> int:
    """Return the number of decoder layers."""
    return fields.count("num_hidden_layers", MAX_LAYERS)


def refuse_unsupported(
    fields: Fields,
    implemented: frozenset[str],
    activations: Mapping[str, Activation] = _SILU,
) -> None:
    """Raise ``UnsupportedModelError`` naming every key that would change the arithmetic."""
    features = [
        f"{key}={_describe(value)}"
        for key, neutral in _NEUTRAL_VALUES.items()
        if key not in implemented
        and (value := fields.get(key)) is not None
        and value not in neutral
        and not (key == "layer_types" and _has_no_windows(fields))
    ]
    activation = fields.text("hidden_act", "silu")
    if activation not in activations:
        features.append(f"hidden_act={activation}")
    if features:
        raise unsupported(*features)


def _has_no_windows(fields: Fields) -> bool:
    """Return whether ``layer_types`` lists full attention only, and no window contradicts it."""
    is_full = fields.get("layer_types") == [FULL] * num_hidden_layers(fields)
    return is_full and fields.get("sliding_window") is None


def enabled_window(fields: Fields) -> int | None:
    """Return ``sliding_window`` if ``use_sliding_window`` is set."""
    is_used = fields.flag("use_sliding_window", default=False)
    return fields.count("sliding_window", MAX_CONTEXT_TOKENS, 4096) if is_used else None


def window_unless_null(fields: Fields) -> int | None:
    """Return ``sliding_window``: 4096 if it is absent, None if it is null."""
    is_null = fields.is_null("sliding_window")
    return None if is_null else fields.count("sliding_window", MAX_CONTEXT_TOKENS, 4096)


def equal_windows(fields: Fields) -> tuple[int | None, ...]:
    """Return ``sliding_window`` for every layer, or None if it is absent."""
    is_absent = fields.get("sliding_window") is None
    window = None if is_absent else fields.count("sliding_window", MAX_CONTEXT_TOKENS)
    return (window,) * num_hidden_layers(fields)


def windows_by_layer_type(fields: Fields) -> tuple[int | None, ...]:
    """Return the windows of the Qwen families, one per layer.

    ``sliding_window`` is used only with ``use_sliding_window``. ``layer_types`` lists the sliding
    layers; without it they are those from ``max_window_layers`` on.
    """
    num_layers = num_hidden_layers(fields)
    window = enabled_window(fields)
    layer_types = fields.texts("layer_types")
    if not layer_types:
        if window is None:
            return (None,) * num_layers
        first = fields.count("max_window_layers", MAX_LAYERS, 28, minimum=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    slides = sliding_layers(fields)
    if window is None and any(slides):
        raise ModelFileError(
            fields.path, "layer_types has sliding_attention, but use_sliding_window is not set"
        )
    return tuple(window if each else None for each in slides)


def sliding_layers(fields: Fields) -> tuple[bool, ...]:
    """Return whether each layer has a sliding window, from ``layer_types``, which is required."""
    layer_types = fields.texts("layer_types")
    check_kinds(fields, "layer_types", layer_types, {FULL, SLIDING})
    return tuple(kind == SLIDING for kind in layer_types)


def check_kinds(fields: Fields, key: str, kinds: Sequence[str], known: Set[str]) -> None:
    """Raise unless ``kinds``, from ``key`` or its default, has one of ``known`` for each layer."""
    num_layers = num_hidden_layers(fields)
    if len(kinds) != num_layers:
        raise ModelFileError(fields.path, f"{key} has {len(kinds)} entries for {num_layers} layers")
    if unknown := sorted(set(kinds) - known):
        raise unsupported(*(f"{key} {kind}" for kind in unknown))


def check_layer_kinds(fields: Fields, kinds: Sequence[str], known: Set[str]) -> None:
    """Raise unless ``kinds``, from ``layer_types``, has one of ``known`` for each layer.

    Unlike ``check_kinds``, it checks the kinds before their number.
    """
    if unknown := sorted(set(kinds) - known):
        raise unsupported(*(f"layer_types {kind}" for kind in unknown))
    num_layers = num_hidden_layers(fields)
    if len(kinds) != num_layers:
        raise fields.error("layer_types", f"must have {num_layers} entries, one per layer")


def read_rope(
    fields: Fields,
    *,
    head_dim: int,
    max_context_tokens: int,
    default_rotary_share: float | None = None,
) -> RopeConfig:
    """Return the rope from ``rope_scaling`` or, in newer files, ``rope_parameters``."""
    rope = fields.section("rope_scaling") or fields.section("rope_parameters")
    top_level_theta = fields.positive("rope_theta", _DEFAULT_THETA)
    share = fields.positive("partial_rotary_factor", default_rotary_share or 1.0)
    if rope is None:
        return RopeConfig(theta=top_level_theta, rotary_dim=_rotary_dim(fields, head_dim, share))
    kind = rope_kind(rope)
    if kind not in _ROPE_KEYS:
        raise unsupported(f"rope scaling {kind}")
    unknown = sorted(
        key
        for key, value in rope.values.items()
        if value is not None and key not in _ROPE_KEYS[kind] | _COMMON_ROPE_KEYS
    )
    if unknown:
        raise unsupported(*(f"{key} in rope scaling {kind}" for key in unknown))
    share = rope.positive("partial_rotary_factor", share)
    if default_rotary_share is None and share != 1:
        raise unsupported(f"partial_rotary_factor={share}")
    plain = RopeConfig(
        theta=rope.positive("rope_theta", top_level_theta),
        rotary_dim=_rotary_dim(rope, head_dim, share),
    )
    if kind == "linear":
        return dataclasses.replace(
            plain, scaling=RopeScaling.LINEAR, factor=rope.positive("factor")
        )
    if kind == "llama3":
        low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
        if low >= high:
            raise rope.error("low_freq_factor", "must be below high_freq_factor")
        return dataclasses.replace(
            plain,
            scaling=RopeScaling.LLAMA3,
            factor=rope.positive("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_context_tokens=trained_context(fields, rope, max_context_tokens),
        )
    if kind == "yarn":
        return _read_yarn(fields, rope, plain, max_context_tokens)
    if kind == "longrope":
        return _read_longrope(fields, rope, plain, max_context_tokens)
    return plain


def rope_kind(rope: Fields) -> str:
    """Return the kind of scaling that a section names."""
    return rope.text("rope_type", rope.text("type", "default"))


def _read_yarn(
    fields: Fields, rope: Fields, plain: RopeConfig, max_context_tokens: int
) -> RopeConfig:
    if plain.theta <= 1:
        raise rope.error("rope_theta", "must be above 1 with rope scaling yarn")
    original = trained_context(fields, rope, max_context_tokens)
    factor = rope.positive("factor", max_context_tokens / original)
    # As in ``_compute_yarn_parameters``: if both are given, use the ratio of the two.
    scale, all_dims = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and all_dims:
        default = yarn_scale(factor, rope.positive("mscale")) / yarn_scale(
            factor, rope.positive("mscale_all_dim")
        )
    else:
        default = yarn_scale(factor)
    return dataclasses.replace(
        plain,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_context_tokens=original,
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        # As in ``_compute_yarn_parameters``: null means false, and not the default.
        truncate=rope.truth("truncate", default=True),
        attention_factor=rope.positive("attention_factor", default),
    )


def yarn_scale(factor: float, scale: float = 1.0) -> float:
    """Return YaRN's factor for a context that is longer by ``factor`` (``mscale``)."""
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _read_longrope(
    fields: Fields, rope: Fields, plain: RopeConfig, max_context_tokens: int
) -> RopeConfig:
    original = trained_context(fields, rope, max_context_tokens)
    factor = rope.positive("factor", max_context_tokens / original)
    default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    num_pairs = plain.rotary_dim // 2
    return dataclasses.replace(
        plain,
        scaling=RopeScaling.LONGROPE,
        original_context_tokens=original,
        long_factors=rope.positives("long_factor", num_pairs),
        short_factors=rope.positives("short_factor", num_pairs),
        attention_factor=rope.positive("attention_factor", default),
    )


def trained_context(fields: Fields, rope: Fields, max_context_tokens: int) -> int:
    """Return the context with which a model whose ``rope`` is scaled was trained.

    A length outside the section takes precedence over one inside; without either, transformers uses
    the model's whole context.
    """
    key = "original_max_position_embeddings"
    inside = rope.count(key, MAX_CONTEXT_TOKENS, max_context_tokens, minimum=2)
    return fields.count(key, MAX_CONTEXT_TOKENS, inside, minimum=2)


def _rotary_dim(fields: Fields, head_dim: int, share: float) -> int:
    rotary_dim = int(head_dim * share)
    if share > 1 or rotary_dim < 2 or rotary_dim % 2:
        raise fields.error("partial_rotary_factor", f"is not possible with heads of {head_dim}")
    return rotary_dim


def _describe(value: object) -> str:
    """Describe a value briefly: a quantization by its method, other objects by their keys."""
    if not isinstance(value, Mapping):
        return str(value)
    method = value.get("quant_method")
    return method if isinstance(method, str) else f"{{{', '.join(map(str, value))}}}"
