"""Nemotron-H and Nemotron 3 (NVIDIA 2025): each layer is a Mamba-2 mixer, attention without rope,
an MLP or experts, which are narrower than the model in Nemotron 3 Super.

MLPs and experts have no gate and use squared ReLU. The mixers' steps are clamped to
``time_step_limit``, as in NVIDIA's own code, vLLM and llama.cpp. transformers instead clamps those
of prompts, but not those of decoded tokens, to ``time_step_min``, which changes the logits of
published models (https://github.com/huggingface/transformers/pull/48989).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from potluck.errors import ModelFileError
from potluck.models import gguf, hugging_face, mamba_fields
from potluck.models.family import Family
from potluck.models.fields import (
    EXPERT_ROWS_MULTIPLE,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    unsupported,
    with_groups,
)
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind
from potluck.types.model import (
    AttentionConfig,
    ExpertsConfig,
    LayerConfig,
    MambaConfig,
    MlpConfig,
    ModelConfig,
)
from potluck.types.program import Activation, ExpertScore
from potluck.types.tensor import TensorSource

# ``NemotronHConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "conv_kernel": 4,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 21_504,
    "mamba_head_dim": 64,
    "mamba_num_heads": 128,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "n_groups": 8,
    "n_routed_experts": 8,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 8,
    "ssm_state_size": 128,
    "vocab_size": 131_072,
}
_OLD_NAMES: Mapping[str, str] = {
    "mamba_conv_bias": "use_conv_bias",
    "mamba_d_conv": "conv_kernel",
    "mamba_dt_limit": "time_step_limit",
    "mamba_n_groups": "n_groups",
}
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "mamba_hidden_act": ("silu",),
    "mamba_proj_bias": (False,),
    "mlp_hidden_act": ("relu2",),
}
# Rope's keys are unused: there is no rope.
_UNUSED_KEYS = (
    "hidden_act",
    "partial_rotary_factor",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
)
_MAMBA, _ATTENTION, _MLP, _EXPERTS = "M", "*", "-", "E"
_PATTERN, _LATENT = "hybrid_override_pattern", "moe_latent_size"
# transformers has two names for the list.
_LISTS = ("layers_block_type", "layer_types")
_KINDS: Mapping[str, str] = {
    **{letter: letter for letter in (_MAMBA, _ATTENTION, _MLP, _EXPERTS)},
    "attention": _ATTENTION,
    "full_attention": _ATTENTION,
    "linear_attention": _MAMBA,
    "mamba": _MAMBA,
    "mlp": _MLP,
    "moe": _EXPERTS,
}
"""Names in the list for the letters of the pattern."""


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = _with_new_names(fields).with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    kinds = _kinds(fields)
    fields = fields.without(*_UNUSED_KEYS)
    has_bias = fields.flag("mlp_bias", default=False)
    width = fields.count("intermediate_size", MAX_WIDTH)
    config = hugging_face.read_config(
        fields.changed({"num_hidden_layers": len(kinds)}),
        implemented=hugging_face.EXPERT_KEYS | {"layer_types", "mlp_bias", "n_routed_experts"},
    )
    experts = None
    if _EXPERTS in kinds:
        experts = _experts(fields, kinds.count(_EXPERTS), has_bias=has_bias)
    return dataclasses.replace(
        config,
        norm_epsilon=fields.positive("layer_norm_epsilon", 1e-5),
        layers=_layers(
            kinds,
            attention=config.layers[0].grouped_attention,
            mixer=_mixer(fields) if _MAMBA in kinds else None,
            mlp=MlpConfig(width=width, activation=Activation.RELU_SQUARED, has_bias=has_bias),
            experts=(experts,) * len(kinds),
        ),
        ropes=(),
    )


def _with_new_names(fields: Fields) -> Fields:
    """Return ``fields`` under their current names; if both exist, the old names take precedence."""
    values = dict(fields.values)
    for old, new in _OLD_NAMES.items():
        if old in values:
            values[new] = values.pop(old)
    if values.get("head_dim") is None and values.get("attention_head_dim") is not None:
        values["head_dim"] = values["attention_head_dim"]
    return dataclasses.replace(fields, values=values)


def _kinds(fields: Fields) -> str:
    """Return the kind of each layer, by the letters of ``hybrid_override_pattern``."""
    key = next((key for key in _LISTS if fields.get(key) is not None), _PATTERN)
    if fields.get(key) is None:
        raise ModelFileError(fields.path, f"layers_block_type and {_PATTERN} are missing")
    names = tuple(fields.text(key)) if key == _PATTERN else fields.texts(key)
    if others := sorted(set(names) - set(_KINDS)):
        raise unsupported(*(f"{key} {name}" for name in others))
    if not 1 <= len(names) <= MAX_LAYERS:
        raise fields.error(key, f"must have 1 to {MAX_LAYERS} layers")
    if fields.count("num_hidden_layers", MAX_LAYERS, len(names)) != len(names):
        raise fields.error("num_hidden_layers", f"must be {len(names)}, the length of {key}")
    return "".join(_KINDS[name] for name in names)


def _mixer(fields: Fields) -> MambaConfig:
    return mamba_fields.mamba_config(
        fields,
        num_heads=fields.count("mamba_num_heads", MAX_HEADS),
        head_dim=fields.count("mamba_head_dim", MAX_WIDTH),
        groups_key="n_groups",
        state_key="ssm_state_size",
        kernel_key="conv_kernel",
        steps=mamba_fields.step_limits(fields),
        has_conv_bias=fields.flag("use_conv_bias", default=True),
        has_bias=fields.flag("use_bias", default=False),
    )


def _experts(fields: Fields, num_layers: int, *, has_bias: bool) -> ExpertsConfig:
    experts = hugging_face.read_experts(
        fields,
        norm_topk_prob=fields.flag("norm_topk_prob", default=True),
        count_key="n_routed_experts",
        width_key="moe_intermediate_size",
        num_layers=num_layers,
    )
    shared = MlpConfig(
        width=fields.count("moe_shared_expert_intermediate_size", MAX_WIDTH),
        activation=Activation.RELU_SQUARED,
        has_bias=has_bias,
    )
    experts = dataclasses.replace(
        experts,
        activation=Activation.RELU_SQUARED,
        score=ExpertScore.SIGMOID,
        share_scale=fields.positive("routed_scaling_factor", 1.0),
        has_score_correction_bias=True,
        shared=shared,
    )
    experts = _with_latent(fields, experts)
    if has_bias and experts.latent_width is not None:
        raise unsupported(f"mlp_bias with {_LATENT}={experts.latent_width}")
    return with_groups(fields, experts, count_key="n_group", used_key="topk_group")


def _with_latent(fields: Fields, experts: ExpertsConfig) -> ExpertsConfig:
    """Return ``experts`` with the latent width that the file specifies, if any."""
    if not fields.get(_LATENT):
        return experts
    width = fields.count(_LATENT, MAX_WIDTH)
    if width % EXPERT_ROWS_MULTIPLE:
        raise unsupported(f"{fields.prefix}{_LATENT} {width} (not a multiple of 16)")
    return dataclasses.replace(experts, latent_width=width)


def _layers(
    kinds: str,
    *,
    attention: AttentionConfig,
    mixer: MambaConfig | None,
    mlp: MlpConfig,
    experts: Iterable[ExpertsConfig | None],
) -> tuple[LayerConfig, ...]:
    """Return layers of these ``kinds``; ``experts`` has one entry for each."""
    attention = dataclasses.replace(attention, rope=None)
    return tuple(
        LayerConfig(
            attention=attention if kind == _ATTENTION else None,
            recurrence=mixer if kind == _MAMBA else None,
            mlp=mlp if kind == _MLP else None,
            experts=its_experts if kind == _EXPERTS else None,
        )
        for kind, its_experts in zip(kinds, experts, strict=True)
    )


_WIDTHS, _KV_HEADS = "feed_forward_length", "attention.head_count_kv"
_EPSILON, _RMS_EPSILON = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    names = frozenset(source.names())
    num_blocks = fields.count("block_count", MAX_LAYERS)
    fields = gguf.without_mtp_layers(fields)
    num_layers = fields.count("block_count", MAX_LAYERS)
    widths = _of_blocks(fields, _WIDTHS, num_blocks, MAX_WIDTH)[:num_layers]
    heads = _of_blocks(fields, _KV_HEADS, num_blocks, MAX_HEADS)[:num_layers]
    kinds = "".join(
        (_EXPERTS if f"blk.{layer}.ffn_gate_inp.weight" in names else _MLP)
        if width
        else (_ATTENTION if num_heads else _MAMBA)
        for layer, (width, num_heads) in enumerate(zip(widths, heads, strict=True))
    )
    # As in llama.cpp: both epsilons are that of the norms, which do not subtract the mean.
    epsilon = fields.positive(_EPSILON if fields.get(_RMS_EPSILON) is None else _RMS_EPSILON)
    fields = fields.changed(
        {
            _WIDTHS: _one_number(fields, _WIDTHS, widths),
            _KV_HEADS: _one_number(fields, _KV_HEADS, heads),
            _RMS_EPSILON: epsilon,
        }
    )
    first = max(kinds.find(_ATTENTION), 0)
    config = gguf.read_config(
        fields,
        source,
        implemented=gguf.EXPERT_KEYS
        | gguf.ROUTING_KEYS
        | gguf.PLACE_KEYS
        | mamba_fields.GGUF_KEYS
        | {_EPSILON, _LATENT, gguf.NEXT_KEY, "rope.scaling.finetuned"},
        optional_biases=gguf.ATTENTION_BIASES,
        attention_layer=first,
        experts=gguf.read_experts_of_layers(
            fields,
            source,
            norm_topk_prob=False,
            score=ExpertScore.SIGMOID,
            activation=Activation.RELU_SQUARED,
        ),
    )
    mixer = None
    if _MAMBA in kinds:
        has_others = tuple(kind != _MAMBA for kind in kinds)
        mixer = mamba_fields.mamba_from_gguf(fields, source, has_others)
    mlp = MlpConfig(
        width=fields.count(_WIDTHS, MAX_WIDTH),
        activation=Activation.RELU_SQUARED,
        has_bias=f"blk.{max(kinds.find(_MLP), 0)}.ffn_up.bias" in names,
    )
    layers = _layers(
        kinds,
        attention=config.layers[first].grouped_attention,
        mixer=mixer,
        mlp=mlp,
        experts=[
            None if layer.experts is None else _with_latent(fields, layer.experts)
            for layer in config.layers
        ],
    )
    return dataclasses.replace(config, layers=layers, ropes=())


def _of_blocks(fields: Fields, key: str, num_blocks: int, maximum: int) -> tuple[int, ...]:
    """Return a number for each block, from a list or a single value."""
    value = fields.get(key)
    if not gguf.is_list(value):
        return (fields.count(key, maximum, minimum=0),) * num_blocks
    counts = fields.changed({key: tuple(value)}).counts(key, maximum)
    if len(counts) != num_blocks:
        raise unsupported(f"{fields.prefix}{key} for {len(counts)} of {num_blocks} blocks")
    return counts


def _one_number(fields: Fields, key: str, counts: tuple[int, ...]) -> int:
    """Return the number that all layers with a nonzero number have; 1 if there are none."""
    numbers = set(counts) - {0}
    if len(numbers) > 1:
        raise unsupported(f"{fields.prefix}{key}={counts}")
    return numbers.pop() if numbers else 1


NEMOTRON_H = Family(
    name="nemotron_h",
    architecture="NemotronHForCausalLM",
    gguf_architectures=("nemotron_h", "nemotron_h_moe"),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                "attn_norm": "norm",
                "mlp_norm": "norm",
                "attn.q": "mixer.q_proj",
                "attn.k": "mixer.k_proj",
                "attn.v": "mixer.v_proj",
                "attn.o": "mixer.o_proj",
                "mlp.up": "mixer.up_proj",
                "mlp.down": "mixer.down_proj",
                "mlp.router": "mixer.gate",
                "mlp.correction.weight": "mixer.gate.e_score_correction_bias",
                "mlp.latent_down": "mixer.fc1_latent_proj",
                "mlp.latent_up": "mixer.fc2_latent_proj",
                "mlp.experts.up": "mixer.experts.{expert}.up_proj",
                "mlp.experts.down": "mixer.experts.{expert}.down_proj",
                "mlp.shared.up": "mixer.shared_experts.up_proj",
                "mlp.shared.down": "mixer.shared_experts.down_proj",
                **mamba_fields.hugging_face_names("mixer"),
            },
            stems={"embed": "model.embeddings", "norm": "model.norm_f"},
            skipped={"multi-token prediction layers": re.compile(r"mtp\..+")},
        ),
        FileKind.GGUF: GGUF_NAMES.changed(
            {
                "mlp_norm": "attn_norm",
                "mlp.latent_down": "ffn_latent_down",
                "mlp.latent_up": "ffn_latent_up",
                **mamba_fields.GGUF_NAMES,
            },
            has_more_layers=True,
        ),
    },
)
