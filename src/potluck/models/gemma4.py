"""Gemma 4 (Google 2026): Gemma 3 with larger heads in full-attention layers, of which only some
pairs are rotated, a norm of values, and a scalar for each layer.

Full-attention layers of the larger models use their keys as values. The 26B-A4B has experts next to
the MLP of every layer; E2B and E4B have per-layer embeddings, and upper layers that read the keys
and values of lower ones. Of multimodal models, only the text part is used.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from potluck.errors import ModelFileError
from potluck.models import gemma, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import (
    MAX_CONTEXT_TOKENS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
    check_heads,
    unsupported,
)
from potluck.models.names import (
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    FileKind,
    NameTable,
    StoredPart,
    concatenated,
)
from potluck.types.model import (
    ExpertsConfig,
    HeadNorm,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    PerLayerInputs,
    RopeConfig,
    RopeScaling,
)
from potluck.types.program import Activation
from potluck.types.tensor import TensorSource

# ``Gemma4TextConfig`` and ``Gemma4UnifiedTextConfig`` of transformers.
_COMMON_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "num_kv_shared_layers": 0,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1_000_000.0,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
_DEFAULTS: Mapping[str, object] = {
    **_COMMON_DEFAULTS,
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
}
_UNIFIED_DEFAULTS: Mapping[str, object] = {
    **_COMMON_DEFAULTS,
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
_IMPLEMENTED = frozenset(
    {
        "final_logit_softcapping",
        "layer_types",
        "num_experts",
        "per_layer_config",
        "sliding_window",
    }
)
_PATTERN = 6
_FULL_HEAD_DIM = 512
_THETA = 10_000.0
_OVERRIDES = frozenset({"head_dim", "num_key_value_heads"})
"""Keys of a layer that ``per_layer_config`` can change."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    """The heads of one layer."""

    num_kv_heads: int
    head_dim: int


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return _read_hugging_face(fields, _DEFAULTS)


def _unified_from_hugging_face(fields: Fields) -> ModelConfig:
    fields.refuse_others({"hidden_size_per_layer_input": (0,), "enable_moe_block": (False,)})
    return _read_hugging_face(fields, _UNIFIED_DEFAULTS)


def _read_hugging_face(fields: Fields, defaults: Mapping[str, object]) -> ModelConfig:
    # Text attends causally even in multimodal models.
    if fields.get("use_bidirectional_attention") == "vision":
        fields = fields.without("use_bidirectional_attention")
    if fields.is_null("rope_parameters"):
        fields = fields.without("rope_parameters")
    fields = gemma.with_defaults(fields, defaults)
    _check_ropes(fields)
    config = hugging_face.read_config(
        fields.without("rope_parameters", "rope_scaling", "rope_theta"),
        implemented=_IMPLEMENTED,
        reads_attention_bias=True,
        head_norm=HeadNorm.HEAD,
        activations=gemma.ACTIVATIONS,
    )
    is_sliding = (*gemma.sliding_layers(fields, pattern=_PATTERN)[:-1], False)
    heads = _heads_of_layers(fields, is_sliding)
    num_own = config.num_layers - fields.count("num_kv_shared_layers", MAX_LAYERS, minimum=0)
    width = fields.count("intermediate_size", MAX_WIDTH)
    is_doubled = fields.flag("use_double_wide_mlp", default=False)
    has_key_values = fields.flag("attention_k_eq_v", default=False)
    full_head_dim = next(
        each.head_dim for each, slides in zip(heads, is_sliding, strict=True) if not slides
    )
    return dataclasses.replace(
        _with_layers(
            config,
            fields,
            is_sliding=is_sliding,
            heads=heads,
            window=gemma.window_of(fields, is_sliding),
            ropes={
                False: _read_full_rope(fields, full_head_dim),
                True: gemma.read_section_rope(
                    fields,
                    hugging_face.SLIDING,
                    head_dim=config.layers[0].grouped_attention.head_dim,
                    theta=_THETA,
                ),
            },
            num_own=num_own,
            values_are_keys=tuple(has_key_values and not slides for slides in is_sliding),
            widths=tuple(
                2 * width if is_doubled and layer >= num_own else width
                for layer in range(config.num_layers)
            ),
            experts=_read_experts(fields) if _has_experts(fields) else None,
        ),
        logit_softcap=gemma.optional_positive(fields, "final_logit_softcapping"),
        per_layer_inputs=_read_per_layer_inputs(fields),
    )


def _check_ropes(fields: Fields) -> None:
    """Raise unless each kind of layer has a rope where ``transformers`` looks for it."""
    if fields.section("rope_scaling") is not None:
        raise unsupported("rope_scaling")
    parameters = fields.section("rope_parameters")
    for kind in (hugging_face.FULL, hugging_face.SLIDING):
        if parameters is None or parameters.section(kind) is None:
            raise ModelFileError(fields.path, f"{fields.prefix}rope_parameters.{kind} is missing")


def _heads_of_layers(fields: Fields, is_sliding: tuple[bool, ...]) -> tuple[_Heads, ...]:
    """Return the heads of every layer, which must be equal in layers of one kind.

    Files specify them by layer in ``per_layer_config``, or for all full layers.
    """
    sliding = _Heads(
        num_kv_heads=fields.count("num_key_value_heads", MAX_HEADS),
        head_dim=fields.count("head_dim", MAX_WIDTH),
    )
    by_layer = fields.section("per_layer_config")
    if "per_layer_config" not in fields.values:
        num_kv_heads = sliding.num_kv_heads
        if fields.flag("attention_k_eq_v", default=False):
            num_kv_heads = fields.count("num_global_key_value_heads", MAX_HEADS, num_kv_heads)
        head_dim = fields.count("global_head_dim", MAX_WIDTH, _FULL_HEAD_DIM)
        full = _Heads(num_kv_heads=num_kv_heads, head_dim=head_dim)
        heads = tuple(sliding if slides else full for slides in is_sliding)
    elif by_layer is None:
        heads = (sliding,) * len(is_sliding)
    else:
        if unknown := sorted(set(by_layer.values) - {str(each) for each in range(len(is_sliding))}):
            raise ModelFileError(fields.path, f"per_layer_config has the keys {unknown[:3]}")
        heads = tuple(
            _overridden(by_layer, str(layer), sliding) for layer in range(len(is_sliding))
        )
    for slides in (False, True):
        kinds = {each for each, it_does in zip(heads, is_sliding, strict=True) if it_does == slides}
        if len(kinds) > 1:
            raise unsupported("different heads in layers of the same kind (per_layer_config)")
    for each in dict.fromkeys(heads):
        check_heads(
            fields,
            num_heads=fields.count("num_attention_heads", MAX_HEADS),
            num_kv_heads=each.num_kv_heads,
            head_dim=each.head_dim,
            kv_heads_key="num_key_value_heads",
            head_dim_key="head_dim",
        )
    return heads


def _overridden(by_layer: Fields, layer: str, default: _Heads) -> _Heads:
    section = by_layer.section(layer)
    if section is None:
        return default
    if unknown := sorted(set(section.values) - _OVERRIDES):
        raise unsupported(*(f"{key} in per_layer_config" for key in unknown))
    return _Heads(
        num_kv_heads=section.count("num_key_value_heads", MAX_HEADS, default.num_kv_heads),
        head_dim=section.count("head_dim", MAX_WIDTH, default.head_dim),
    )


def _read_full_rope(fields: Fields, head_dim: int) -> RopeConfig:
    """Return the rope of full layers: ``_compute_proportional_rope_parameters``, or any other."""
    parameters = fields.section("rope_parameters")
    section = None if parameters is None else parameters.section(hugging_face.FULL)
    if section is None or section.text("rope_type", "default") != "proportional":
        return gemma.read_section_rope(fields, hugging_face.FULL, head_dim=head_dim, theta=_THETA)
    known = {"rope_type", "rope_theta", "partial_rotary_factor", "factor"}
    if unknown := sorted(set(section.values) - known):
        raise unsupported(*(f"{key} in rope scaling proportional" for key in unknown))
    share = section.positive("partial_rotary_factor", 1.0)
    if share > 1:
        raise section.error("partial_rotary_factor", "must be at most 1")
    return RopeConfig(
        theta=section.positive("rope_theta", _THETA),
        rotary_dim=head_dim,
        scaling=RopeScaling.PROPORTIONAL,
        factor=section.positive("factor", 1.0),
        num_turning_pairs=int(share * head_dim // 2),
    )


def _has_experts(fields: Fields) -> bool:
    return fields.flag("enable_moe_block", default=False)


def _read_experts(fields: Fields) -> ExpertsConfig:
    return _beside_mlp(
        hugging_face.read_experts(
            fields,
            norm_topk_prob=True,
            count_key="num_experts",
            used_key="top_k_experts",
            width_key="moe_intermediate_size",
        )
    )


def _beside_mlp(experts: ExpertsConfig) -> ExpertsConfig:
    return dataclasses.replace(experts, activation=Activation.GELU_TANH, has_expert_scale=True)


def _read_per_layer_inputs(fields: Fields) -> PerLayerInputs | None:
    width = fields.count("hidden_size_per_layer_input", MAX_WIDTH, minimum=0)
    if not width:
        return None
    vocab_size = fields.count("vocab_size", MAX_VOCAB)
    if fields.count("vocab_size_per_layer_input", MAX_VOCAB, vocab_size) != vocab_size:
        its_size = fields.get("vocab_size_per_layer_input")
        raise unsupported(
            f"vocab_size_per_layer_input={its_size} with a vocabulary of {vocab_size} tokens"
        )
    return PerLayerInputs(width=width)


def _with_layers(
    config: ModelConfig,
    fields: Fields,
    *,
    is_sliding: tuple[bool, ...],
    heads: tuple[_Heads, ...],
    window: int | None,
    ropes: Mapping[bool, RopeConfig],
    num_own: int,
    values_are_keys: tuple[bool, ...],
    widths: tuple[int, ...],
    experts: ExpertsConfig | None,
    has_output_scale: bool = True,
) -> ModelConfig:
    """Return ``config`` with Gemma 4's layers; the first ``num_own`` compute their own keys."""
    config = gemma.with_sandwich_norms(
        config, is_sliding=is_sliding, window=window, ropes=ropes, scale=1.0
    )
    layers: list[LayerConfig] = []
    for index, layer in enumerate(config.layers):
        shared_layer = None
        if index >= num_own:
            alike = [each for each in range(num_own) if is_sliding[each] == is_sliding[index]]
            if not alike:
                raise ModelFileError(
                    fields.path,
                    f"layer {index} shares keys and values, but no layer of its kind computes any",
                )
            shared_layer = alike[-1]
            if heads[shared_layer] != heads[index]:
                raise unsupported(
                    f"layer {index} with heads that differ from those of the layer whose keys it "
                    f"shares"
                )
        layers.append(
            dataclasses.replace(
                layer,
                attention=dataclasses.replace(
                    layer.grouped_attention,
                    num_kv_heads=heads[index].num_kv_heads,
                    head_dim=heads[index].head_dim,
                    has_value_norm=True,
                    values_are_keys=values_are_keys[index] and shared_layer is None,
                    shared_layer=shared_layer,
                ),
                mlp=MlpConfig(width=widths[index], activation=Activation.GELU_TANH),
                experts=experts,
                has_output_scale=has_output_scale,
            )
        )
    return dataclasses.replace(config, layers=tuple(layers))


_GGUF_KEYS = gguf.EXPERT_KEYS | {
    "attention.key_length_swa",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.value_length_swa",
    "embedding_length_per_layer_input",
    "final_logit_softcapping",
    "rope.dimension_count_swa",
    "rope.freq_base_swa",
}
# Defaults of absent keys in ``llama-model.cpp``.
_GGUF_LOGIT_CAP = 30.0
_STANDING = 1e30
"""The frequency factor of pairs that are not rotated, as written by llama.cpp's converter."""


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    names = frozenset(source.names())
    num_layers = fields.count("block_count", MAX_LAYERS)
    is_sliding = gemma.pattern_of(fields, num_layers)
    num_kv_heads = _of_layers(fields, "attention.head_count_kv", num_layers, MAX_HEADS)
    widths = _of_layers(fields, "feed_forward_length", num_layers, MAX_WIDTH)
    plain = fields.without(gemma.PATTERN_KEY).changed(
        {"attention.head_count_kv": num_kv_heads[0], "feed_forward_length": widths[0]}
    )
    experts = gguf.read_experts_of_layers(plain, source, norm_topk_prob=True)
    config = gguf.read_config(
        plain,
        source,
        implemented=_GGUF_KEYS,
        head_norm=HeadNorm.HEAD,
        activation=Activation.GELU_TANH,
    )
    full_dim = config.layers[0].grouped_attention.head_dim
    sliding_dim = fields.count("attention.key_length_swa", MAX_WIDTH)
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if fields.count(key, MAX_WIDTH, sliding_dim) != sliding_dim:
            raise unsupported(f"{key}={fields.get(key)} with heads of {sliding_dim}")
    if len(set(experts)) > 1:
        raise unsupported("experts in only some layers")
    heads = tuple(
        _Heads(num_kv_heads=each, head_dim=sliding_dim if slides else full_dim)
        for each, slides in zip(num_kv_heads, is_sliding, strict=True)
    )
    for each in dict.fromkeys(heads):
        check_heads(
            fields,
            num_heads=config.layers[0].grouped_attention.num_heads,
            num_kv_heads=each.num_kv_heads,
            head_dim=each.head_dim,
            kv_heads_key="attention.head_count_kv",
            head_dim_key="attention.key_length_swa",
        )
    (full_rope,) = config.ropes
    num_shared = fields.count("attention.shared_kv_layers", MAX_LAYERS, 0, minimum=0)
    per_layer = fields.count("embedding_length_per_layer_input", MAX_WIDTH, 0, minimum=0)
    return dataclasses.replace(
        _with_layers(
            config,
            fields,
            is_sliding=is_sliding,
            heads=heads,
            window=fields.count("attention.sliding_window", MAX_CONTEXT_TOKENS),
            ropes={
                False: _with_proportional_scaling(full_rope),
                True: RopeConfig(
                    theta=fields.positive("rope.freq_base_swa", _THETA), rotary_dim=sliding_dim
                ),
            },
            num_own=num_layers - num_shared,
            values_are_keys=tuple(
                f"blk.{layer}.attn_v.weight" not in names for layer in range(num_layers)
            ),
            widths=widths,
            experts=None if experts[0] is None else _beside_mlp(experts[0]),
            has_output_scale="blk.0.layer_output_scale.weight" in names,
        ),
        logit_softcap=fields.positive("final_logit_softcapping", _GGUF_LOGIT_CAP),
        per_layer_inputs=PerLayerInputs(width=per_layer) if per_layer else None,
    )


def _of_layers(fields: Fields, key: str, num_layers: int, maximum: int) -> tuple[int, ...]:
    """Return a number for each layer, from a list or a single value."""
    if not gguf.is_list(fields.get(key)):
        return (fields.count(key, maximum),) * num_layers
    values = gguf.values_by_layer(fields, key, num_layers)
    if not all(type(each) is int and 1 <= each <= maximum for each in values):
        raise fields.error(key, f"must be integers from 1 to {maximum}")
    return tuple(each for each in values if isinstance(each, int))


def _with_proportional_scaling(rope: RopeConfig) -> RopeConfig:
    """Convert frequency factors of 1 followed by ``_STANDING`` to proportional scaling."""
    factors = rope.frequency_factors or ()
    num_turning = sum(factor == 1 for factor in factors)
    standing = factors[num_turning:]
    is_proportional = all(factor == 1 for factor in factors[:num_turning]) and all(
        factor > _STANDING / 2 for factor in standing
    )
    if not factors or not is_proportional:
        return rope
    return dataclasses.replace(
        rope,
        scaling=RopeScaling.PROPORTIONAL,
        num_turning_pairs=num_turning,
        frequency_factors=None,
    )


_HUGGING_FACE_STEMS: Mapping[str, str | StoredPart] = {
    **gemma.HUGGING_FACE_STEMS,
    "output_scale.weight": "layer_scalar",
    "mlp_only_post_norm": "post_feedforward_layernorm_1",
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_post_norm": "post_feedforward_layernorm_2",
    "mlp.router": "router.proj",
    "mlp.router_scale.weight": "router.scale",
    "mlp.expert_scale.weight": "router.per_expert_scale",
    **concatenated("experts.gate_up_proj", "mlp.experts.gate", "mlp.experts.up", ending=".weight"),
    "mlp.experts.down.weight": "experts.down_proj",
    "per_layer.gate": "per_layer_input_gate",
    "per_layer.proj": "per_layer_projection",
    "per_layer.norm": "post_per_layer_input_norm",
}
_GGUF_STEMS: Mapping[str, str | StoredPart] = {
    **gemma.GGUF_STEMS,
    "output_scale": "layer_output_scale",
    "mlp_only_post_norm": "post_ffw_norm_1",
    "experts_norm": "pre_ffw_norm_2",
    "experts_post_norm": "post_ffw_norm_2",
    "mlp.router_scale.weight": "ffn_gate_inp.scale",
    "mlp.expert_scale.weight": "ffn_down_exps.scale",
    **GGUF_NAMES.variants["fused experts"],
    "per_layer.gate": "inp_gate",
    "per_layer.proj": "proj",
    "per_layer.norm": "post_norm",
}
# Layers that read the keys and values of others may still have matrices for them in files.
_NAMES: Mapping[FileKind, NameTable] = {
    FileKind.HUGGING_FACE: dataclasses.replace(
        HUGGING_FACE_NAMES.changed(
            _HUGGING_FACE_STEMS,
            stems={
                "per_layer.embed": "model.embed_tokens_per_layer",
                "per_layer.proj": "model.per_layer_model_projection",
                "per_layer.norm": "model.per_layer_projection_norm",
            },
            skipped=gemma.SKIPPED,
        ),
        ignored=re.compile(
            r"(model\.)?(language_model\.)?layers\.\d+\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\.weight"
        ),
    ),
    FileKind.GGUF: dataclasses.replace(
        GGUF_NAMES.changed(
            _GGUF_STEMS,
            stems={
                "per_layer.embed": "per_layer_token_embd",
                "per_layer.proj": "per_layer_model_proj",
                "per_layer.norm": "per_layer_proj_norm",
            },
        ),
        ignored=re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_(k|v|k_norm)\.weight"),
    ),
}

GEMMA4 = Family(
    name="gemma4_text",
    architecture="Gemma4ForCausalLM",
    gguf_architectures=("gemma4",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=_NAMES,
    wrappers={"gemma4": "Gemma4ForConditionalGeneration"},
)

GEMMA4_UNIFIED = Family(
    name="gemma4_unified_text",
    architecture="Gemma4UnifiedForCausalLM",
    from_hugging_face=_unified_from_hugging_face,
    names=_NAMES,
    wrappers={"gemma4_unified": "Gemma4UnifiedForConditionalGeneration"},
)
