"""From a model's configuration to the program of one shard."""

from __future__ import annotations

from potluck.errors import ParameterError
from potluck.models.names import CLASSIFIER, EMBEDDING, FINAL_NORM, HEAD, layer_tensor
from potluck.types.model import ExpertsConfig, ModelConfig
from potluck.types.program import (
    HIDDEN,
    Add,
    Attention,
    CacheSpec,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Moe,
    Op,
    Program,
    Register,
    RmsNorm,
    Rope,
    RopeTable,
    Shard,
    WeightRole,
    WeightSpec,
)

# A residual branch: its normed input, and in the end what it adds to the residual stream.
_BRANCH = "branch"
_Q, _K, _V, _ATTENDED = "q", "k", "v", "attended"
_GATE, _UP = "gate", "up"
_ROUTER_LOGITS = "router_logits"
_LABELS = "labels"


def build_program(
    config: ModelConfig, shard: Shard, *, context_tokens: int, rope: RopeTable
) -> Program:
    """What the stage with ``shard`` computes.

    ``rope`` is the model's table for ``context_tokens`` positions (``rope_table``). Raises
    ``ParameterError`` when the model was not made for so long a context, and ``ValueError`` when
    the shard or the table is not this model's.
    """
    if not 1 <= context_tokens <= config.max_context_tokens:
        raise ParameterError(
            "context_tokens",
            f"a context of {context_tokens} tokens was asked for, "
            f"and the model is made for 1 to {config.max_context_tokens}",
            hint=f"give a context of at most {config.max_context_tokens} tokens",
        )
    if rope.cos.shape != (context_tokens, config.head_dim // 2):
        raise ValueError(f"rope table {rope.cos.shape} for {context_tokens} tokens of {config}")
    builder = _build(config, shard)
    num_layers = shard.end_layer - shard.start_layer
    return Program(
        shard=shard,
        registers=_registers(config, shard),
        ops=tuple(builder.ops),
        weights=tuple(builder.weights.values()),
        caches=(CacheSpec(num_kv_heads=config.num_kv_heads, head_dim=config.head_dim),)
        * num_layers,
        rope=rope if num_layers else None,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_tokens=context_tokens,
    )


def weight_specs(config: ModelConfig, shard: Shard) -> tuple[WeightSpec, ...]:
    """Every tensor that the stage with ``shard`` reads, in the order of its program."""
    return tuple(_build(config, shard).weights.values())


class _Builder:
    """Ops in order, and every weight they name, once."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.weights: dict[str, WeightSpec] = {}

    def add(self, op: Op) -> None:
        self.ops.append(op)

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
        num_rows: int,
        num_columns: int,
        bias: bool,
        role: WeightRole = WeightRole.OTHER,
    ) -> None:
        stem = layer_tensor(layer, part)
        self.add(
            Linear(
                x=x,
                weight=self.weight(f"{stem}.weight", num_rows, num_columns, role=role, layer=layer),
                out=out,
                bias=self.weight(f"{stem}.bias", num_rows, layer=layer) if bias else None,
            )
        )


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
    builder = _Builder()
    if shard.has_embedding:
        role = WeightRole.HEAD if config.tied_head and config.has_logits else WeightRole.EMBEDDING
        name = builder.weight(EMBEDDING, config.vocab_size, config.hidden_size, role=role)
        builder.add(Embed(weight=name, out=HIDDEN))
    for layer in range(shard.start_layer, shard.end_layer):
        _add_attention(builder, config, layer, cache_index=layer - shard.start_layer)
        if config.experts is not None and config.experts.is_in_layer[layer]:
            _add_experts(builder, config, config.experts, layer)
        else:
            _add_mlp(builder, config, layer)
    if shard.has_head:
        _add_norm(builder, config, FINAL_NORM)
        _add_head(builder, config)
    return builder


def _add_head(builder: _Builder, config: ModelConfig) -> None:
    if config.has_logits:
        name = EMBEDDING if config.tied_head else HEAD
        builder.weight(name, config.vocab_size, config.hidden_size, role=WeightRole.HEAD)
        builder.add(Head(x=_BRANCH, weight=name, vocab_size=config.vocab_size))
        return
    x = _BRANCH
    if config.num_labels:
        x = _LABELS
        name = builder.weight(
            CLASSIFIER, config.num_labels, config.hidden_size, role=WeightRole.ROUTER
        )
        builder.add(Linear(x=_BRANCH, weight=name, out=x))
    builder.add(Head(x=x, weight=None, vocab_size=config.vocab_size))


def _registers(config: ModelConfig, shard: Shard) -> tuple[Register, ...]:
    q_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    num_layers = shard.end_layer - shard.start_layer
    experts = config.experts
    num_mixed = 0
    if experts is not None:
        num_mixed = sum(experts.is_in_layer[shard.start_layer : shard.end_layer])
    widths = {HIDDEN: config.hidden_size}
    if num_layers or shard.has_head:
        widths[_BRANCH] = config.hidden_size
    if shard.has_head and config.num_labels:
        widths[_LABELS] = config.num_labels
    if num_layers:
        widths |= {_Q: q_width, _K: kv_width, _V: kv_width, _ATTENDED: q_width}
    if num_layers > num_mixed:
        widths |= {_GATE: config.intermediate_size, _UP: config.intermediate_size}
    if experts is not None and num_mixed:
        widths |= {_ROUTER_LOGITS: experts.num_experts}
    return tuple(Register(name=name, width=width) for name, width in widths.items())


def _add_attention(builder: _Builder, config: ModelConfig, layer: int, *, cache_index: int) -> None:
    head_dim, hidden_size = config.head_dim, config.hidden_size
    _add_norm(builder, config, layer_tensor(layer, "attn_norm.weight"))
    heads = {_Q: config.num_heads, _K: config.num_kv_heads, _V: config.num_kv_heads}
    for register, num_heads in heads.items():
        builder.linear(
            layer,
            f"attn.{register}",
            _BRANCH,
            register,
            num_rows=num_heads * head_dim,
            num_columns=hidden_size,
            bias=config.qkv_bias,
            role=WeightRole.ATTENTION_VALUE if register == _V else WeightRole.OTHER,
        )
    for register in (_Q, _K):
        if config.qk_norm:
            name = layer_tensor(layer, f"attn.{register}_norm.weight")
            builder.add(
                RmsNorm(
                    x=register,
                    weight=builder.weight(name, head_dim),
                    out=register,
                    group=head_dim,
                    epsilon=config.rms_norm_epsilon,
                )
            )
        builder.add(Rope(x=register, num_heads=heads[register], head_dim=head_dim))
    builder.add(
        Attention(
            q=_Q,
            k=_K,
            v=_V,
            out=_ATTENDED,
            cache_index=cache_index,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            window=config.sliding_windows[layer],
        )
    )
    builder.linear(
        layer,
        "attn.o",
        _ATTENDED,
        _BRANCH,
        num_rows=hidden_size,
        num_columns=config.num_heads * head_dim,
        bias=config.output_bias,
    )
    builder.add(Add(x=HIDDEN, y=_BRANCH))


def _add_mlp(builder: _Builder, config: ModelConfig, layer: int) -> None:
    _add_norm(builder, config, layer_tensor(layer, "mlp_norm.weight"))
    for register in (_GATE, _UP):
        builder.linear(
            layer,
            f"mlp.{register}",
            _BRANCH,
            register,
            num_rows=config.intermediate_size,
            num_columns=config.hidden_size,
            bias=config.mlp_bias,
        )
    builder.add(GatedActivation(gate=_GATE, up=_UP, out=_GATE))
    builder.linear(
        layer,
        "mlp.down",
        _GATE,
        _BRANCH,
        num_rows=config.hidden_size,
        num_columns=config.intermediate_size,
        bias=config.mlp_bias,
        role=WeightRole.MLP_DOWN,
    )
    builder.add(Add(x=HIDDEN, y=_BRANCH))


def _add_experts(
    builder: _Builder, config: ModelConfig, experts: ExpertsConfig, layer: int
) -> None:
    hidden_size, width = config.hidden_size, experts.width
    _add_norm(builder, config, layer_tensor(layer, "mlp_norm.weight"))
    router = builder.weight(
        layer_tensor(layer, "mlp.router.weight"),
        experts.num_experts,
        hidden_size,
        role=WeightRole.ROUTER,
        layer=layer,
    )
    builder.add(Linear(x=_BRANCH, weight=router, out=_ROUTER_LOGITS))
    shapes = {
        "gate": (width, hidden_size),
        "up": (width, hidden_size),
        "down": (hidden_size, width),
    }
    names = {
        part: builder.weight(
            layer_tensor(layer, f"mlp.experts.{part}.weight"),
            experts.num_experts,
            *shape,
            role=WeightRole.MLP_DOWN if part == "down" else WeightRole.OTHER,
            layer=layer,
        )
        for part, shape in shapes.items()
    }
    builder.add(
        Moe(
            x=_BRANCH,
            logits=_ROUTER_LOGITS,
            gate=names["gate"],
            up=names["up"],
            down=names["down"],
            out=_BRANCH,
            num_experts=experts.num_experts,
            num_experts_per_token=experts.num_experts_per_token,
            expert_width=width,
            normalize_shares=experts.normalize_shares,
        )
    )
    builder.add(Add(x=HIDDEN, y=_BRANCH))


def _add_norm(builder: _Builder, config: ModelConfig, weight: str) -> None:
    builder.add(
        RmsNorm(
            x=HIDDEN,
            weight=builder.weight(weight, config.hidden_size),
            out=_BRANCH,
            group=config.hidden_size,
            epsilon=config.rms_norm_epsilon,
        )
    )
