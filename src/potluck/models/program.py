"""Convert a model's configuration to the program of one shard."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from potluck.errors import ParameterError
from potluck.models.attention_ops import add_attention, add_latent_attention
from potluck.models.builder import BESIDE, BRANCH, Builder
from potluck.models.division import divide_program
from potluck.models.feed_forward_ops import add_down, add_feed_forward, add_gate_and_up
from potluck.models.names import CLASSIFIER, EMBEDDING, FINAL_NORM, HEAD, layer_tensor
from potluck.models.recurrence_ops import add_recurrence
from potluck.types.model import (
    LatentAttentionConfig,
    LayerConfig,
    ModelConfig,
    NormPlaces,
    PerLayerInputs,
)
from potluck.types.program import (
    HIDDEN,
    Add,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Multiply,
    Program,
    Register,
    Rope,
    RopeTable,
    Scale,
    Shard,
    StateSpec,
    WeightRole,
    WeightSpec,
)

_LABELS = "labels"
_PER_LAYER, _PER_LAYER_EMBEDDED, _PER_LAYER_GATE = "per_layer", "per_layer_embedded", "layer_gate"


def build_program(
    config: ModelConfig, shard: Shard, *, context_tokens: int, ropes: Sequence[RopeTable]
) -> Program:
    """Return the program of the stage with ``shard``, or with a ``part`` that of one member of its
    group.

    ``ropes`` are the model's tables for ``context_tokens`` positions (``rope_tables``). Raises
    ``ParameterError`` if the model does not support a context of this length, and ``ValueError`` if
    the shard or the tables do not belong to this model.
    """
    if not 1 <= context_tokens <= config.max_context_tokens:
        raise ParameterError(
            "context_tokens",
            f"the context must have 1 to "
            f"{config.max_context_tokens} tokens for this model, but has {context_tokens}",
            hint=f"use a context of at most {config.max_context_tokens} tokens",
        )
    shapes = [table.cos.shape for table in ropes]
    if shapes != [(context_tokens, rope.rotary_dim // 2) for rope in config.ropes]:
        raise ValueError(
            f"RoPE tables {shapes} do not match {context_tokens} tokens of {config.family}"
        )
    if not (shard.has_embedding or config.can_cut_before(shard.start_layer)) or not (
        shard.has_head or config.can_cut_before(shard.end_layer)
    ):
        raise ValueError(f"{shard} cuts layers of {config.family} that share a cache or embedding")
    builder = _build(config, shard)
    program = Program(
        shard=shard,
        registers=tuple(
            Register(name=name, width=width) for name, width in builder.registers.items()
        ),
        ops=tuple(builder.ops),
        weights=tuple(builder.weights.values()),
        caches=tuple(builder.caches.values()),
        ropes=tuple(ropes) if any(isinstance(op, Rope) for op in builder.ops) else (),
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_tokens=context_tokens,
        states=tuple(builder.states),
    )
    return program if shard.part is None else divide_program(program, shard.part)


def program_to_count(config: ModelConfig, shard: Shard, context_tokens: int) -> Program:
    """Return the program with empty rope tables, whose pages are never touched."""
    from potluck.models.rope import empty_rope_tables  # loads NumPy: most agents never plan

    ropes = empty_rope_tables(config, context_tokens)
    return build_program(config, shard, context_tokens=context_tokens, ropes=ropes)


def weight_specs(config: ModelConfig, shard: Shard) -> tuple[WeightSpec, ...]:
    """Return every tensor that the stage with ``shard`` reads, in the order of its program.

    The tensors are whole, even if the shard is divided among a group.
    """
    return tuple(_build(config, shard).weights.values())


def whole_spec(weight: WeightSpec) -> WeightSpec:
    """Return the whole tensor that ``weight`` is, or some rows of which it has."""
    return dataclasses.replace(weight, shape=weight.whole_shape, rows=None)


def state_specs(config: ModelConfig, shard: Shard) -> tuple[StateSpec, ...]:
    """Return the states that the stage with ``shard`` keeps per sequence, in the order of its
    program.
    """
    return tuple(_build(config, shard).states)


def _check_shard(config: ModelConfig, shard: Shard) -> None:
    fits = (
        shard.num_layers == config.num_layers
        and (not shard.has_embedding or shard.start_layer == 0)
        and (not shard.has_head or shard.end_layer == config.num_layers)
    )
    if not fits:
        raise ValueError(f"{shard} is not a shard of a model with {config.num_layers} layers")


def _build(config: ModelConfig, shard: Shard) -> Builder:
    _check_shard(config, shard)
    builder = Builder(config)
    if shard.has_embedding:
        _add_embedding(builder)
    if shard.start_layer < shard.end_layer or shard.has_head:
        builder.register(BRANCH, config.hidden_size)
    for layer in range(shard.start_layer, shard.end_layer):
        _add_layer(builder, layer, config.layers[layer])
    if shard.has_head:
        builder.norm(FINAL_NORM, HIDDEN, BRANCH)
        _add_head(builder)
    return builder


def _add_embedding(builder: Builder) -> None:
    config = builder.config
    role = WeightRole.HEAD if config.tied_head and config.has_logits else WeightRole.EMBEDDING
    name = builder.weight(EMBEDDING, config.vocab_size, config.hidden_size, role=role)
    builder.add(Embed(weight=name, out=HIDDEN))
    builder.scale(HIDDEN, config.embedding_scale)
    if config.per_layer_inputs is not None:
        _add_per_layer_inputs(builder, config.per_layer_inputs)


def _add_per_layer_inputs(builder: Builder, inputs: PerLayerInputs) -> None:
    """Add Gemma 4's ``project_per_layer_inputs`` (``transformers``)."""
    config = builder.config
    width = inputs.width * config.num_layers
    embedded = builder.register(_PER_LAYER_EMBEDDED, width)
    projected = builder.register(_PER_LAYER, width)
    table = builder.weight(
        "per_layer.embed.weight", config.vocab_size, width, role=WeightRole.EMBEDDING
    )
    builder.add(Embed(weight=table, out=embedded))
    builder.add(Scale(x=embedded, factor=inputs.width**0.5))
    projection = builder.weight("per_layer.proj.weight", width, config.hidden_size)
    builder.add(Linear(x=HIDDEN, weight=projection, out=projected))
    builder.add(Scale(x=projected, factor=config.hidden_size**-0.5))
    builder.norm("per_layer.norm.weight", projected, projected, group=inputs.width)
    builder.add(Add(x=projected, y=embedded))
    builder.add(Scale(x=projected, factor=math.sqrt(0.5)))


def _add_head(builder: Builder) -> None:
    config = builder.config
    if config.has_logits:
        name = EMBEDDING if config.tied_head else HEAD
        builder.weight(name, config.vocab_size, config.hidden_size, role=WeightRole.HEAD)
        builder.add(
            Head(
                x=BRANCH,
                weight=name,
                vocab_size=config.vocab_size,
                scale=config.logit_scale,
                softcap=config.logit_softcap,
            )
        )
        return
    x = BRANCH
    if config.num_labels:
        x = builder.register(_LABELS, config.num_labels)
        name = builder.weight(
            CLASSIFIER, config.num_labels, config.hidden_size, role=WeightRole.ROUTER
        )
        builder.add(Linear(x=BRANCH, weight=name, out=x))
    builder.add(Head(x=x, weight=None, vocab_size=config.vocab_size))


def _add_layer(builder: Builder, layer: int, config: LayerConfig) -> None:
    has_norm_before = config.norms in (NormPlaces.PRE, NormPlaces.SANDWICH)
    has_norm_after = config.norms in (NormPlaces.POST, NormPlaces.SANDWICH)

    def end_branch(norm: str) -> None:
        if has_norm_after:
            builder.norm(layer_tensor(layer, f"{norm}.weight"), BRANCH, BRANCH)
        builder.add(Add(x=HIDDEN, y=BRANCH, scale=config.residual_scale))

    if config.norms is NormPlaces.PARALLEL:
        _add_parallel(builder, layer, config)
    else:
        if config.mixes_tokens:
            x = _norm_before(builder, layer, "attn_norm") if has_norm_before else HIDDEN
            _add_mixer(builder, layer, config, x)
            end_branch("attn_post_norm")
        if config.mlp is not None or config.experts is not None:
            x = _norm_before(builder, layer, "mlp_norm") if has_norm_before else HIDDEN
            add_feed_forward(builder, layer, config, x)
            end_branch("mlp_post_norm")
    if builder.config.per_layer_inputs is not None:
        _add_per_layer_input(builder, layer, builder.config.per_layer_inputs)
    if config.has_output_scale:
        name = builder.weight(layer_tensor(layer, "output_scale.weight"), 1)
        builder.add(Multiply(x=HIDDEN, weight=name))


def _norm_before(builder: Builder, layer: int, part: str) -> str:
    builder.norm(layer_tensor(layer, f"{part}.weight"), HIDDEN, BRANCH)
    return BRANCH


def _add_mixer(builder: Builder, layer: int, config: LayerConfig, x: str) -> None:
    """Add the mixer from ``x`` to the branch: attention, a recurrence, or the sum of both."""
    attention, recurrence = config.attention, config.recurrence
    if recurrence is not None:
        out = BRANCH
        if attention is not None:
            out = builder.register(BESIDE, builder.config.hidden_size)
        add_recurrence(builder, layer, recurrence, x, out)
    if isinstance(attention, LatentAttentionConfig):
        add_latent_attention(builder, layer, attention, x)
    elif attention is not None:
        add_attention(builder, layer, attention, x)
    if recurrence is not None and attention is not None:
        builder.add(Add(x=BRANCH, y=BESIDE))


def _add_parallel(builder: Builder, layer: int, config: LayerConfig) -> None:
    """Add attention and an MLP with a common normed input, which the former must not overwrite."""
    mlp = config.mlp
    if mlp is None or config.experts is not None:
        raise ValueError("parallel branches must be attention and an MLP")
    x = _norm_before(builder, layer, "attn_norm")
    gate = add_gate_and_up(builder, layer, "mlp", mlp, x)
    add_attention(builder, layer, config.grouped_attention, x)
    builder.add(Add(x=HIDDEN, y=BRANCH, scale=config.residual_scale))
    add_down(builder, layer, "mlp", mlp, gate, BRANCH)
    builder.add(Add(x=HIDDEN, y=BRANCH, scale=config.residual_scale))


def _add_per_layer_input(builder: Builder, layer: int, inputs: PerLayerInputs) -> None:
    """Add the end of a layer of Gemma 4 E2B (``Gemma4TextDecoderLayer`` of ``transformers``)."""
    gate = builder.register(_PER_LAYER_GATE, inputs.width)
    builder.linear(layer, "per_layer.gate", HIDDEN, gate)
    builder.add(
        GatedActivation(
            gate=gate,
            up=_PER_LAYER,
            out=gate,
            activation=inputs.activation,
            up_start=layer * inputs.width,
        )
    )
    builder.linear(layer, "per_layer.proj", gate, BRANCH)
    builder.norm(layer_tensor(layer, "per_layer.norm.weight"), BRANCH, BRANCH)
    builder.add(Add(x=HIDDEN, y=BRANCH))
