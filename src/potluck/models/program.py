"""From a model's configuration to the program of one shard."""

from __future__ import annotations

import math
from collections.abc import Sequence

from potluck.errors import ParameterError
from potluck.models.names import CLASSIFIER, EMBEDDING, FINAL_NORM, HEAD, layer_tensor
from potluck.types.model import (
    AttentionConfig,
    ExpertsConfig,
    HeadNorm,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormKind,
    NormPlaces,
    PerLayerInputs,
)
from potluck.types.program import (
    HIDDEN,
    Add,
    Attention,
    CacheSpec,
    Embed,
    GatedActivation,
    Head,
    LayerNorm,
    Linear,
    Moe,
    Multiply,
    Op,
    Program,
    Register,
    RmsNorm,
    Rope,
    RopeTable,
    Scale,
    Shard,
    SigmoidGate,
    WeightRole,
    WeightSpec,
)

# A residual branch: its normed input, and in the end what it adds to the residual stream.
_BRANCH = "branch"
# What is computed beside the branch: of shared experts, or of experts beside an MLP.
_BESIDE = "beside"
_Q, _K, _V, _ATTENDED = "q", "k", "v", "attended"
_GATE, _UP = "gate", "up"
_ROUTER_INPUT, _ROUTER_LOGITS = "router_input", "router_logits"
_SHARED_GATE = "shared_gate"
_LABELS = "labels"
_PER_LAYER, _PER_LAYER_EMBEDDED, _PER_LAYER_GATE = "per_layer", "per_layer_embedded", "layer_gate"


def build_program(
    config: ModelConfig, shard: Shard, *, context_tokens: int, ropes: Sequence[RopeTable]
) -> Program:
    """What the stage with ``shard`` computes.

    ``ropes`` are the model's tables for ``context_tokens`` positions (``rope_tables``). Raises
    ``ParameterError`` when the model was not made for so long a context, and ``ValueError`` when
    the shard or the tables are not this model's.
    """
    if not 1 <= context_tokens <= config.max_context_tokens:
        raise ParameterError(
            "context_tokens",
            f"a context of {context_tokens} tokens was asked for, "
            f"and the model is made for 1 to {config.max_context_tokens}",
            hint=f"give a context of at most {config.max_context_tokens} tokens",
        )
    shapes = [table.cos.shape for table in ropes]
    if shapes != [(context_tokens, rope.rotary_dim // 2) for rope in config.ropes]:
        raise ValueError(f"rope tables {shapes} for {context_tokens} tokens of {config.family}")
    if not (shard.has_embedding or config.can_cut_before(shard.start_layer)) or not (
        shard.has_head or config.can_cut_before(shard.end_layer)
    ):
        raise ValueError(f"{shard} cuts layers of {config.family} that share a cache or embedding")
    builder = _build(config, shard)
    return Program(
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
    )


def weight_specs(config: ModelConfig, shard: Shard) -> tuple[WeightSpec, ...]:
    """Every tensor that the stage with ``shard`` reads, in the order of its program."""
    return tuple(_build(config, shard).weights.values())


class _Builder:
    """Ops in order, and every weight, register and cache that they name, once."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.ops: list[Op] = []
        self.weights: dict[str, WeightSpec] = {}
        self.registers = {HIDDEN: config.hidden_size}
        self.caches: dict[int, CacheSpec] = {}
        """By the layer that fills them."""

    def add(self, op: Op) -> None:
        self.ops.append(op)

    def register(self, name: str, width: int) -> str:
        """A register of that width: ``name``, or where it has another width, one named after both.

        Which of them has the bare name depends on the shard, and nothing depends on that.
        """
        if self.registers.setdefault(name, width) != width:
            name = f"{name}.{width}"
            self.registers[name] = width
        return name

    def weight(
        self,
        name: str,
        *shape: int,
        role: WeightRole = WeightRole.OTHER,
        layer: int | None = None,
    ) -> str:
        spec = WeightSpec(name=name, shape=shape, role=role, layer=layer)
        self.weights.setdefault(name, spec)
        return name

    def linear(
        self,
        layer: int,
        part: str,
        x: str,
        out: str,
        *,
        bias: bool = False,
        role: WeightRole = WeightRole.OTHER,
    ) -> None:
        stem = layer_tensor(layer, part)
        num_rows, num_columns = self.registers[out], self.registers[x]
        self.add(
            Linear(
                x=x,
                weight=self.weight(f"{stem}.weight", num_rows, num_columns, role=role, layer=layer),
                out=out,
                bias=self.weight(f"{stem}.bias", num_rows, layer=layer) if bias else None,
            )
        )

    def norm(self, weight: str | None, x: str, out: str, *, group: int | None = None) -> None:
        """The model's norm over the whole width; over groups, or without a weight, an RMS norm."""
        config, width = self.config, group or self.registers[x]
        name = None if weight is None else self.weight(weight, width)
        if config.norm is NormKind.LAYER and name is not None and group is None:
            self.add(LayerNorm(x=x, weight=name, out=out, epsilon=config.norm_epsilon))
        else:
            self.add(RmsNorm(x=x, weight=name, out=out, group=width, epsilon=config.norm_epsilon))

    def cache(self, layer: int, attention: AttentionConfig) -> int:
        """The index of the cache that a layer reads."""
        source = layer if attention.shared_layer is None else attention.shared_layer
        if source == layer:
            self.caches[layer] = CacheSpec(
                num_kv_heads=attention.num_kv_heads, head_dim=attention.head_dim
            )
        if source not in self.caches:
            raise ValueError(
                f"layer {layer} reads the cache of {source}, which is not in the shard"
            )
        return list(self.caches).index(source)


def _check_shard(config: ModelConfig, shard: Shard) -> None:
    fits = (
        shard.num_layers == config.num_layers
        and (not shard.has_embedding or shard.start_layer == 0)
        and (not shard.has_head or shard.end_layer == config.num_layers)
    )
    if not fits:
        raise ValueError(f"{shard} is no shard of a model of {config.num_layers} layers")


def _build(config: ModelConfig, shard: Shard) -> _Builder:
    _check_shard(config, shard)
    builder = _Builder(config)
    if shard.has_embedding:
        _add_embedding(builder)
    if shard.start_layer < shard.end_layer or shard.has_head:
        builder.register(_BRANCH, config.hidden_size)
    for layer in range(shard.start_layer, shard.end_layer):
        _add_layer(builder, layer, config.layers[layer])
    if shard.has_head:
        builder.norm(FINAL_NORM, HIDDEN, _BRANCH)
        _add_head(builder)
    return builder


def _add_embedding(builder: _Builder) -> None:
    config = builder.config
    role = WeightRole.HEAD if config.tied_head and config.has_logits else WeightRole.EMBEDDING
    name = builder.weight(EMBEDDING, config.vocab_size, config.hidden_size, role=role)
    builder.add(Embed(weight=name, out=HIDDEN))
    if config.embedding_scale != 1:
        builder.add(Scale(x=HIDDEN, factor=config.embedding_scale))
    if config.per_layer_inputs is not None:
        _add_per_layer_inputs(builder, config.per_layer_inputs)


def _add_per_layer_inputs(builder: _Builder, inputs: PerLayerInputs) -> None:
    """Gemma 4's ``project_per_layer_inputs`` (``transformers``)."""
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


def _add_head(builder: _Builder) -> None:
    config = builder.config
    if config.has_logits:
        name = EMBEDDING if config.tied_head else HEAD
        builder.weight(name, config.vocab_size, config.hidden_size, role=WeightRole.HEAD)
        builder.add(
            Head(
                x=_BRANCH,
                weight=name,
                vocab_size=config.vocab_size,
                scale=config.logit_scale,
                softcap=config.logit_softcap,
            )
        )
        return
    x = _BRANCH
    if config.num_labels:
        x = builder.register(_LABELS, config.num_labels)
        name = builder.weight(
            CLASSIFIER, config.num_labels, config.hidden_size, role=WeightRole.ROUTER
        )
        builder.add(Linear(x=_BRANCH, weight=name, out=x))
    builder.add(Head(x=x, weight=None, vocab_size=config.vocab_size))


def _add_layer(builder: _Builder, layer: int, config: LayerConfig) -> None:
    has_norm_before = config.norms in (NormPlaces.PRE, NormPlaces.SANDWICH)
    has_norm_after = config.norms in (NormPlaces.POST, NormPlaces.SANDWICH)

    def end_branch(norm: str) -> None:
        if has_norm_after:
            builder.norm(layer_tensor(layer, f"{norm}.weight"), _BRANCH, _BRANCH)
        builder.add(Add(x=HIDDEN, y=_BRANCH, scale=config.residual_scale))

    if config.norms is NormPlaces.PARALLEL:
        _add_parallel(builder, layer, config)
    else:
        x = _norm_before(builder, layer, "attn_norm") if has_norm_before else HIDDEN
        _add_attention(builder, layer, config.attention, x)
        end_branch("attn_post_norm")
        x = _norm_before(builder, layer, "mlp_norm") if has_norm_before else HIDDEN
        _add_feed_forward(builder, layer, config, x)
        end_branch("mlp_post_norm")
    if builder.config.per_layer_inputs is not None:
        _add_per_layer_input(builder, layer, builder.config.per_layer_inputs)
    if config.has_output_scale:
        name = builder.weight(layer_tensor(layer, "output_scale.weight"), 1)
        builder.add(Multiply(x=HIDDEN, weight=name))


def _norm_before(builder: _Builder, layer: int, part: str) -> str:
    builder.norm(layer_tensor(layer, f"{part}.weight"), HIDDEN, _BRANCH)
    return _BRANCH


def _add_parallel(builder: _Builder, layer: int, config: LayerConfig) -> None:
    """Attention and MLP of one normed input, which the former must not overwrite."""
    mlp = config.mlp
    if mlp is None or config.experts is not None:
        raise ValueError("parallel branches are attention and an MLP")
    x = _norm_before(builder, layer, "attn_norm")
    gate = _gate_and_up(builder, layer, "mlp", mlp, x)
    _add_attention(builder, layer, config.attention, x)
    builder.add(Add(x=HIDDEN, y=_BRANCH, scale=config.residual_scale))
    _down(builder, layer, "mlp", mlp, gate, _BRANCH)
    builder.add(Add(x=HIDDEN, y=_BRANCH, scale=config.residual_scale))


def _add_attention(builder: _Builder, layer: int, config: AttentionConfig, x: str) -> None:
    """From ``x`` to the branch."""
    head_dim = config.head_dim
    q_width, kv_width = config.num_heads * head_dim, config.num_kv_heads * head_dim
    q = builder.register(_Q, q_width)
    builder.linear(layer, "attn.q", x, q, bias=config.qkv_bias)
    k = v = None
    if config.shared_layer is None:
        k, v = builder.register(_K, kv_width), builder.register(_V, kv_width)
        builder.linear(layer, "attn.k", x, k, bias=config.qkv_bias)
        if not config.values_are_keys:
            builder.linear(
                layer, "attn.v", x, v, bias=config.qkv_bias, role=WeightRole.ATTENTION_VALUE
            )
        if config.values_are_keys and not config.has_value_norm:
            raise ValueError("values that are keys need their norm")
        if config.has_value_norm:
            builder.norm(None, k if config.values_are_keys else v, v, group=head_dim)
    _turn_heads(builder, layer, config, "q", q, config.num_heads)
    if k is not None:
        _turn_heads(builder, layer, config, "k", k, config.num_kv_heads)
    attended = builder.register(_ATTENDED, q_width)
    sinks = None
    if config.has_sinks:
        sinks = builder.weight(layer_tensor(layer, "attn.sinks.weight"), config.num_heads)
    builder.add(
        Attention(
            q=q,
            k=k,
            v=v,
            out=attended,
            cache_index=builder.cache(layer, config),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            scale=config.scale,
            window=config.window,
            softcap=config.softcap,
            sinks=sinks,
        )
    )
    builder.linear(layer, "attn.o", attended, _BRANCH, bias=config.output_bias)


def _turn_heads(
    builder: _Builder, layer: int, config: AttentionConfig, part: str, x: str, num_heads: int
) -> None:
    """The norm of queries or keys and their rotation, in the model's order."""

    def add_norm() -> None:
        if config.head_norm is not HeadNorm.NONE:
            group = config.head_dim if config.head_norm is HeadNorm.HEAD else builder.registers[x]
            builder.norm(layer_tensor(layer, f"attn.{part}_norm.weight"), x, x, group=group)

    table = config.rope
    if part == "q" and config.query_rope is not None:
        table = config.query_rope
    if not config.norms_after_rope:
        add_norm()
    if table is not None:
        rotary_dim = builder.config.ropes[table].rotary_dim
        builder.add(
            Rope(
                x=x,
                num_heads=num_heads,
                head_dim=config.head_dim,
                rotary_dim=rotary_dim,
                table=table,
            )
        )
    if config.norms_after_rope:
        add_norm()


def _add_feed_forward(builder: _Builder, layer: int, config: LayerConfig, x: str) -> None:
    """From ``x`` to the branch: an MLP, experts, or both."""
    mlp, experts = config.mlp, config.experts
    if mlp is not None:
        _down(builder, layer, "mlp", mlp, _gate_and_up(builder, layer, "mlp", mlp, x), _BRANCH)
        if experts is not None:
            _add_experts_beside(builder, layer, experts)
    elif experts is not None:
        _add_router(builder, layer, experts, x)
        beside = None
        if experts.shared is not None:
            beside = _add_shared(builder, layer, experts, experts.shared, x)
        _add_moe(builder, layer, experts, x, _BRANCH)
        if beside is not None:
            builder.add(Add(x=_BRANCH, y=beside))
    else:
        raise ValueError(f"layer {layer} has neither an MLP nor experts")


def _gate_and_up(builder: _Builder, layer: int, stem: str, mlp: MlpConfig, x: str) -> str:
    """The gated activation; returns the register that it is in."""
    gate, up = builder.register(_GATE, mlp.width), builder.register(_UP, mlp.width)
    builder.linear(layer, f"{stem}.gate", x, gate, bias=mlp.has_bias)
    builder.linear(layer, f"{stem}.up", x, up, bias=mlp.has_bias)
    builder.add(GatedActivation(gate=gate, up=up, out=gate, activation=mlp.activation))
    return gate


def _down(builder: _Builder, layer: int, stem: str, mlp: MlpConfig, gate: str, out: str) -> None:
    builder.linear(layer, f"{stem}.down", gate, out, bias=mlp.has_bias, role=WeightRole.MLP_DOWN)


def _add_shared(
    builder: _Builder, layer: int, experts: ExpertsConfig, shared: MlpConfig, x: str
) -> str:
    """The experts that every token has, beside those that it chooses."""
    beside = builder.register(_BESIDE, builder.config.hidden_size)
    _down(
        builder,
        layer,
        "mlp.shared",
        shared,
        _gate_and_up(builder, layer, "mlp.shared", shared, x),
        beside,
    )
    if experts.has_shared_gate:
        gate = builder.register(_SHARED_GATE, 1)
        builder.linear(layer, "mlp.shared_gate", x, gate, role=WeightRole.ROUTER)
        builder.add(SigmoidGate(x=beside, gate=gate))
    return beside


def _add_experts_beside(builder: _Builder, layer: int, experts: ExpertsConfig) -> None:
    """Gemma 4's experts: of the residual stream, with norms of their own, added to the MLP's."""
    hidden_size = builder.config.hidden_size
    builder.norm(layer_tensor(layer, "mlp_only_post_norm.weight"), _BRANCH, _BRANCH)
    router_input = builder.register(_ROUTER_INPUT, hidden_size)
    builder.norm(layer_tensor(layer, "mlp.router_scale.weight"), HIDDEN, router_input)
    builder.add(Scale(x=router_input, factor=hidden_size**-0.5))
    _add_router(builder, layer, experts, router_input)
    beside = builder.register(_BESIDE, hidden_size)
    builder.norm(layer_tensor(layer, "experts_norm.weight"), HIDDEN, beside)
    _add_moe(builder, layer, experts, beside, beside)
    builder.norm(layer_tensor(layer, "experts_post_norm.weight"), beside, beside)
    builder.add(Add(x=_BRANCH, y=beside))


def _add_router(builder: _Builder, layer: int, experts: ExpertsConfig, x: str) -> None:
    logits = builder.register(_ROUTER_LOGITS, experts.num_experts)
    builder.linear(layer, "mlp.router", x, logits, bias=experts.has_bias, role=WeightRole.ROUTER)


def _add_moe(builder: _Builder, layer: int, experts: ExpertsConfig, x: str, out: str) -> None:
    hidden_size, num_experts = builder.config.hidden_size, experts.num_experts
    shapes = {
        "gate": (experts.width, hidden_size),
        "up": (experts.width, hidden_size),
        "down": (hidden_size, experts.width),
    }
    names = {
        part: builder.weight(
            layer_tensor(layer, f"mlp.experts.{part}.weight"),
            num_experts,
            *shape,
            role=WeightRole.MLP_DOWN if part == "down" else WeightRole.OTHER,
            layer=layer,
        )
        for part, shape in shapes.items()
    }
    biases = {
        part: builder.weight(layer_tensor(layer, f"mlp.experts.{part}.bias"), num_experts, shape[0])
        for part, shape in shapes.items()
        if experts.has_bias
    }

    def per_expert(part: str, *, is_there: bool) -> str | None:
        if not is_there:
            return None
        return builder.weight(layer_tensor(layer, f"{part}.weight"), num_experts)

    builder.add(
        Moe(
            x=x,
            logits=_ROUTER_LOGITS,
            gate=names["gate"],
            up=names["up"],
            down=names["down"],
            out=out,
            num_experts=num_experts,
            num_experts_per_token=experts.num_experts_per_token,
            expert_width=experts.width,
            normalize_shares=experts.normalize_shares,
            activation=experts.activation,
            score=experts.score,
            correction=per_expert("mlp.correction", is_there=experts.has_correction),
            num_groups=experts.num_groups,
            num_groups_used=experts.num_groups_used,
            share_scale=experts.share_scale,
            expert_scale=per_expert("mlp.expert_scale", is_there=experts.has_expert_scale),
            gate_bias=biases.get("gate"),
            up_bias=biases.get("up"),
            down_bias=biases.get("down"),
        )
    )


def _add_per_layer_input(builder: _Builder, layer: int, inputs: PerLayerInputs) -> None:
    """The end of a layer of Gemma 4 E2B (``Gemma4TextDecoderLayer`` of ``transformers``)."""
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
    builder.linear(layer, "per_layer.proj", gate, _BRANCH)
    builder.norm(layer_tensor(layer, "per_layer.norm.weight"), _BRANCH, _BRANCH)
    builder.add(Add(x=HIDDEN, y=_BRANCH))
