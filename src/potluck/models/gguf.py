"""Common parts of the families' GGUF metadata.

Keys are described in https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the defaults of
absent keys are those of llama.cpp (``llama-model.cpp``, ``load_hparams``).
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterable, Mapping, Set, Sized
from itertools import islice
from typing import TypeGuard

from potluck.errors import ModelFileError
from potluck.models.fields import (
    MAX_CONTEXT_TOKENS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
    check_heads,
    read_sized_experts,
    unsupported,
    with_groups,
)
from potluck.models.hugging_face import yarn_scale
from potluck.models.layers import plain_layers
from potluck.models.names import GGUF_ROPE_FACTORS
from potluck.types.model import (
    AttentionConfig,
    ExpertsConfig,
    HeadNorm,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    Recurrence,
    RopeConfig,
    RopeScaling,
)
from potluck.types.program import Activation, ExpertScore
from potluck.types.tensor import TensorFormat, TensorSource

_KV_HEADS = "attention.head_count_kv"
_EMBEDDING = "token_embd.weight"
_HEAD = "output.weight"
_CLASSIFIER = "cls.output.weight"
_ROUTER = "blk.{}.ffn_gate_inp.weight"
_CORRECTION = "blk.{}.exp_probs_b.bias"
_SHARED_UP = "blk.{}.ffn_up_shexp.weight"
_SHARED_GATE = "blk.{}.ffn_gate_inp_shexp.weight"

_READ_KEYS = frozenset(
    {
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    }
)
ATTENTION_BIASES = frozenset({"attn_q", "attn_output"})
"""Matrices of attention whose biases ``read_config`` can look for."""
ALL_BIASES = ATTENTION_BIASES | {"ffn_gate"}
"""All matrices of a layer whose biases ``read_config`` can look for."""

# Known keys that do not affect the arithmetic of these families. The vocabulary's size is that of
# the embedding. ``potluck.catalog.vectors`` reads how vectors are computed.
_DESCRIPTIVE_KEYS = frozenset(
    {
        "classifier.output_labels",
        "pooling_type",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "tensor_data_layout",
        "vocab_size",
    }
)
_LISTS = frozenset({"classifier.output_labels"})
# Any other key changes the arithmetic unless its value is one of these; keys that are not listed
# are off if 0, false or empty.
_NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "embedding_scale": (0, 1),
    "expert_weights_scale": (0, 1),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
}


def read_config(
    fields: Fields,
    source: TensorSource,
    *,
    implemented: frozenset[str] = frozenset(),
    qkv_bias: bool = False,
    output_bias: bool = False,
    optional_biases: Set[str] = frozenset(),
    attention_layer: int = 0,
    head_norm: HeadNorm = HeadNorm.NONE,
    sliding_window: int | None = None,
    experts: tuple[ExpertsConfig | None, ...] | None = None,
    activation: Activation = Activation.SILU,
) -> ModelConfig:
    """Return the configuration of a family that reads the keys ``implemented`` itself.

    ``fields`` are the architecture's own keys without their prefix; ``source`` has the tensors
    under the file's names. ``optional_biases`` are the matrices of ``ALL_BIASES`` that have a bias
    if the file has one: for attention in ``attention_layer``, and for MLPs in the first layer.
    ``sliding_window`` applies to every layer; ``experts`` has one entry per layer. Layers are
    otherwise equal; a family changes them with ``with_layers``.
    """
    if not optional_biases <= ALL_BIASES:
        raise ValueError(f"unknown biases: {sorted(optional_biases - ALL_BIASES)}")
    fields = _without_equal_lists(fields)
    _refuse_unsupported(fields, _READ_KEYS | _DESCRIPTIVE_KEYS | implemented, lists=implemented)
    hidden_size = fields.count("embedding_length", MAX_WIDTH)
    num_heads = fields.count("attention.head_count", MAX_HEADS)
    num_kv_heads = fields.count("attention.head_count_kv", MAX_HEADS, num_heads)
    if fields.get("attention.key_length") is None and hidden_size % num_heads:
        raise ModelFileError(
            fields.path, f"embedding_length {hidden_size} is not divisible by {num_heads} heads"
        )
    head_dim = fields.count("attention.key_length", MAX_WIDTH, hidden_size // num_heads)
    check_heads(
        fields,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        kv_heads_key="attention.head_count_kv",
        head_dim_key="attention.key_length",
    )
    if fields.count("attention.value_length", MAX_WIDTH, head_dim) != head_dim:
        value_dim = fields.get("attention.value_length")
        raise unsupported(f"attention.value_length={value_dim} with heads of {head_dim}")
    names = frozenset(source.names())
    num_labels = source.info(_CLASSIFIER).num_rows if _CLASSIFIER in names else 0
    if num_labels > hidden_size:
        raise unsupported(f"a classifier of {num_labels} labels")
    num_layers = fields.count("block_count", MAX_LAYERS)

    def has_bias(matrix: str, layer: int) -> bool:
        return matrix in optional_biases and f"blk.{layer}.{matrix}.bias" in names

    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        qkv_bias=qkv_bias or has_bias("attn_q", attention_layer),
        output_bias=output_bias or has_bias("attn_output", attention_layer),
        head_norm=head_norm,
    )
    mlp = MlpConfig(
        width=fields.count("feed_forward_length", MAX_WIDTH),
        activation=activation,
        has_bias=has_bias("ffn_gate", 0),
    )
    windows = (sliding_window,) * num_layers
    return ModelConfig(
        family=fields.family,
        hidden_size=hidden_size,
        vocab_size=_vocab_size(fields, source, names),
        max_context_tokens=fields.count("context_length", MAX_CONTEXT_TOKENS, minimum=2),
        norm_epsilon=fields.positive("attention.layer_norm_rms_epsilon"),
        layers=plain_layers(num_layers, attention, mlp, windows, experts),
        ropes=(read_rope(fields, source, head_dim),),
        tied_head=_HEAD not in names and not num_labels,
        has_logits=not num_labels,
        num_labels=num_labels,
    )


def read_recurrent_config(
    fields: Fields,
    source: TensorSource,
    *,
    implemented: frozenset[str],
    recurrence: Recurrence,
) -> ModelConfig:
    """Return the configuration of a model whose layers only have a recurrence.

    The family reads the keys ``implemented`` itself. Such files declare zero heads and no
    feed-forward part.
    """
    known = _READ_KEYS - {"attention.head_count", "feed_forward_length"}
    _refuse_unsupported(fields, known | _DESCRIPTIVE_KEYS | implemented)
    names = frozenset(source.names())
    layer = LayerConfig(attention=None, recurrence=recurrence)
    return ModelConfig(
        family=fields.family,
        hidden_size=fields.count("embedding_length", MAX_WIDTH),
        vocab_size=_vocab_size(fields, source, names),
        max_context_tokens=fields.count("context_length", MAX_CONTEXT_TOKENS, minimum=2),
        norm_epsilon=fields.positive("attention.layer_norm_rms_epsilon"),
        layers=(layer,) * fields.count("block_count", MAX_LAYERS),
        ropes=(),
        tied_head=_HEAD not in names,
    )


def read_window(fields: Fields) -> int | None:
    """Return the size of the sliding window; None if it is absent or 0."""
    return fields.count("attention.sliding_window", MAX_CONTEXT_TOKENS, 0, minimum=0) or None


NEXT_KEY = "nextn_predict_layers"
"""How many of the last layers are for multi-token prediction."""


def without_mtp_layers(fields: Fields) -> Fields:
    """Return ``fields`` without the multi-token prediction layers in the number of layers."""
    num_next = fields.count(NEXT_KEY, MAX_LAYERS, 0, minimum=0)
    num_blocks = fields.count("block_count", MAX_LAYERS)
    if num_next >= num_blocks:
        raise fields.error(NEXT_KEY, f"must be less than {num_blocks}, the number of blocks")
    return fields.changed({"block_count": num_blocks - num_next})


def is_list(value: object) -> TypeGuard[Iterable[object]]:
    """Return whether the metadata has a list of values, and not a single one."""
    return isinstance(value, Iterable) and not isinstance(value, str)


def values_by_layer(fields: Fields, key: str, num_layers: int) -> tuple[object, ...]:
    """Return the values of a list in the metadata, which has one for each layer."""
    value = fields.get(key)
    if not isinstance(value, Iterable) or not isinstance(value, Sized) or len(value) != num_layers:
        raise fields.error(key, f"must have a value for each of {num_layers} layers")
    return tuple(value)


def _without_equal_lists(fields: Fields) -> Fields:
    """Return ``fields`` with a number for a list of the same number for each layer.

    Converters of pruned models write lists, even if nothing was pruned.
    """
    values = dict(fields.values)
    for key in ("attention.head_count", _KV_HEADS, "feed_forward_length"):
        value = values.get(key)
        if not is_list(value):
            continue
        numbers = tuple(islice(value, MAX_LAYERS + 1))
        if len(numbers) == fields.count("block_count", MAX_LAYERS) and len({*numbers}) == 1:
            values[key] = numbers[0]
    return dataclasses.replace(fields, values=values)


def layers_with_attention(fields: Fields) -> tuple[Fields, tuple[bool, ...]]:
    """Return ``fields`` with a single number of key-value heads, and which layers have attention.

    Files of models with recurrent layers have a number for each layer, which is 0 for the recurrent
    ones.
    """
    num_layers = fields.count("block_count", MAX_LAYERS)
    value = fields.get(_KV_HEADS)
    if not is_list(value):
        return fields, (True,) * num_layers
    counts = fields.changed({_KV_HEADS: tuple(value)}).counts(_KV_HEADS, MAX_HEADS)
    numbers = set(counts) - {0}
    if len(numbers) > 1 or len(counts) != num_layers:
        raise unsupported(f"{fields.prefix}{_KV_HEADS}={counts}")
    # No layer has attention, so any number will do.
    number = numbers.pop() if numbers else fields.count("attention.head_count", MAX_HEADS)
    return fields.changed({_KV_HEADS: number}), tuple(count > 0 for count in counts)


EXPERT_KEYS = frozenset(
    {
        "expert_count",
        "expert_feed_forward_length",
        "expert_gating_func",
        "expert_used_count",
        "expert_weights_norm",
    }
)
"""The keys that ``read_experts_of_layers`` implements."""

ROUTING_KEYS = frozenset({"expert_group_count", "expert_group_used_count", "expert_weights_scale"})
"""More keys that it implements, for architectures whose code in llama.cpp reads them."""

PLACE_KEYS = frozenset(
    {
        "expert_shared_count",
        "expert_shared_feed_forward_length",
        "interleave_moe_layer_step",
        "leading_dense_block_count",
    }
)
"""Keys that the tensors also determine, for architectures with shared experts or dense layers."""

_MAX_GATING = 2**16
_GATING = {ExpertScore.SOFTMAX: 1, ExpertScore.SIGMOID: 2}
"""``llama_expert_gating_func_type``; 0 means the architecture's default."""


def read_experts_of_layers(
    fields: Fields,
    source: TensorSource,
    *,
    norm_topk_prob: bool,
    score: ExpertScore = ExpertScore.SOFTMAX,
    width_key: str = "expert_feed_forward_length",
    activation: Activation = Activation.SILU,
    has_bias: bool = False,
) -> tuple[ExpertsConfig | None, ...]:
    """Return the experts of the layers that have a router.

    ``norm_topk_prob``, ``score``, ``activation`` and ``has_bias`` are defaults of the architecture;
    a file may specify whether shares are normalized. Its tensors determine whether there are
    corrections and shared experts.
    """
    gating = fields.count("expert_gating_func", _MAX_GATING, 0, minimum=0)
    if gating not in (0, _GATING[score]):
        raise unsupported(f"{fields.prefix}expert_gating_func={gating}")
    names = frozenset(source.names())
    num_layers = fields.count("block_count", MAX_LAYERS)
    has_router = tuple(_ROUTER.format(layer) in names for layer in range(num_layers))
    if not any(has_router):
        return (None,) * num_layers
    experts = dataclasses.replace(
        read_sized_experts(
            fields,
            hidden_size=fields.count("embedding_length", MAX_WIDTH),
            norm_topk_prob=fields.flag("expert_weights_norm", default=norm_topk_prob),
            count_key="expert_count",
            used_key="expert_used_count",
            width_key=width_key,
        ),
        activation=activation,
        score=score,
        share_scale=fields.nonzero("expert_weights_scale", 1.0),
        has_bias=has_bias,
    )
    experts = with_groups(
        fields, experts, count_key="expert_group_count", used_key="expert_group_used_count"
    )

    def of_layer(layer: int) -> ExpertsConfig:
        shared = _SHARED_UP.format(layer)
        return dataclasses.replace(
            experts,
            has_score_correction_bias=_CORRECTION.format(layer) in names,
            shared=(
                MlpConfig(width=source.info(shared).num_rows, activation=activation)
                if shared in names
                else None
            ),
            has_shared_gate=_SHARED_GATE.format(layer) in names,
        )

    return tuple(of_layer(layer) if is_there else None for layer, is_there in enumerate(has_router))


def read_expert_config(
    fields: Fields,
    source: TensorSource,
    *,
    norm_topk_prob: bool,
    score: ExpertScore = ExpertScore.SOFTMAX,
    width_key: str = "expert_feed_forward_length",
    implemented: frozenset[str] = frozenset(),
    optional_biases: Set[str] = frozenset(),
    head_norm: HeadNorm = HeadNorm.NONE,
) -> ModelConfig:
    """Return the configuration of a family with experts; see ``read_experts_of_layers``.

    The family reads the keys ``implemented`` in addition to ``EXPERT_KEYS``.
    """
    return read_config(
        fields,
        source,
        implemented=EXPERT_KEYS | implemented,
        optional_biases=optional_biases,
        head_norm=head_norm,
        experts=read_experts_of_layers(
            fields, source, norm_topk_prob=norm_topk_prob, score=score, width_key=width_key
        ),
    )


def _refuse_unsupported(
    fields: Fields, known: frozenset[str], *, lists: frozenset[str] = frozenset()
) -> None:
    features = [
        f"{fields.prefix}{key}={value}"
        for key, value in fields.values.items()
        if (is_list(value) and key not in _LISTS | lists)
        or (key not in known and value not in _NEUTRAL_VALUES.get(key, (None, 0, "")))
    ]
    if features:
        raise unsupported(*features)


def _vocab_size(fields: Fields, source: TensorSource, names: frozenset[str]) -> int:
    if _EMBEDDING not in names:
        raise ModelFileError(fields.path, f"the tensor {_EMBEDDING} is missing")
    shape = source.info(_EMBEDDING).shape
    if len(shape) != 2 or not 1 <= shape[0] <= MAX_VOCAB:
        raise ModelFileError(fields.path, f"the tensor {_EMBEDDING} has the shape {shape}")
    return shape[0]


def read_rope(fields: Fields, source: TensorSource, head_dim: int) -> RopeConfig:
    """Return the rope from the metadata, and from the tensor of factors if there is one."""
    theta = fields.positive("rope.freq_base", 10_000.0)
    rotary_dim = fields.count("rope.dimension_count", MAX_WIDTH, head_dim)
    if rotary_dim > head_dim or rotary_dim % 2:
        raise fields.error("rope.dimension_count", f"is not possible with heads of {head_dim}")
    factors = None
    if GGUF_ROPE_FACTORS in frozenset(source.names()):
        factors = read_factors(fields, source, GGUF_ROPE_FACTORS, rotary_dim // 2)
    plain = RopeConfig(theta=theta, rotary_dim=rotary_dim, frequency_factors=factors)
    # A factor without a type means linear scaling; a type without a factor has no effect.
    kind = fields.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise unsupported(f"rope scaling {kind}")
    factor_key = (
        "rope.scale_linear" if fields.get("rope.scaling.factor") is None else "rope.scaling.factor"
    )
    if kind != "yarn" and fields.get("rope.scaling.attn_factor") not in (None, 0, 1):
        raise unsupported(
            f"{fields.prefix}rope.scaling.attn_factor={fields.get('rope.scaling.attn_factor')}"
        )
    if kind == "none" or fields.get(factor_key) in (None, 0):
        return plain
    factor = fields.positive(factor_key)
    if kind == "linear":
        return dataclasses.replace(plain, scaling=RopeScaling.LINEAR, factor=factor)
    if theta <= 1:
        raise fields.error("rope.freq_base", "must be above 1 with rope scaling yarn")
    # As in llama.cpp: the bounds are rounded, and cosines and sines are scaled by 1 + 0.1
    # ln(factor).
    return dataclasses.replace(
        plain,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_context_tokens=trained_context(fields),
        beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=fields.positive("rope.scaling.attn_factor", 1.0) * yarn_scale(factor),
    )


def refuse_other_yarn_factor(fields: Fields, factor: float) -> None:
    """Raise unless ``rope.scaling.yarn_attn_factor``, which llama.cpp ignores, is its own."""
    key = "rope.scaling.yarn_attn_factor"
    if fields.get(key) is not None and abs(fields.positive(key) / yarn_scale(factor) - 1) > 1e-4:
        raise unsupported(f"{fields.prefix}{key}={fields.get(key)}")


def trained_context(fields: Fields) -> int:
    """Return the context with which a model whose rope is scaled was trained."""
    context_tokens = fields.count("context_length", MAX_CONTEXT_TOKENS, minimum=2)
    return fields.count("rope.scaling.original_context_length", MAX_CONTEXT_TOKENS, context_tokens)


def read_factors(fields: Fields, source: TensorSource, name: str, count: int) -> tuple[float, ...]:
    """Return the ``count`` positive numbers of a tensor that defines rope scaling."""
    info = source.info(name)
    if info.format is not TensorFormat.F32 or math.prod(info.shape) != count:
        raise ModelFileError(
            fields.path,
            f"the tensor {name} is {info.format.label} {info.shape}, but must be f32 ({count},)",
        )
    data = bytearray(info.num_bytes)
    source.read_rows(name, 0, info.num_rows, memoryview(data))
    factors = struct.unpack(f"<{count}f", data)
    if not all(0 < factor < math.inf for factor in factors):
        raise ModelFileError(fields.path, f"the tensor {name} has non-positive values")
    return factors
