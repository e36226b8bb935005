"""The ops of attention."""

from __future__ import annotations

from potluck.models.builder import BRANCH, Builder
from potluck.models.names import layer_tensor
from potluck.types.model import AttentionConfig, HeadNorm, LatentAttentionConfig
from potluck.types.program import (
    Attention,
    CacheSpec,
    CopyColumns,
    HeadLinear,
    SigmoidGate,
    WeightRole,
)

_Q, _K, _V, _ATTENDED = "q", "k", "v", "attended"
_Q_AND_GATE, _GATE = "q_and_gate", "attention_gate"
_Q_LOW, _Q_HEADS = "q_low", "q_heads"
_LATENT, _K_ROPE, _LATENT_ATTENDED = "latent", "k_rope", "latent_attended"


def add_attention(builder: Builder, layer: int, config: AttentionConfig, x: str) -> None:
    """Add attention from ``x`` to the branch."""
    head_dim = config.head_dim
    q_width, kv_width = config.num_heads * head_dim, config.num_kv_heads * head_dim
    q = builder.register(_Q, q_width)
    gate = None
    if config.has_output_gate:
        gate = _add_gated_queries(builder, layer, config, x, q)
    else:
        builder.linear(layer, "attn.q", x, q, bias=config.qkv_bias)
    k = v = None
    if config.shared_layer is None:
        k, v = builder.register(_K, kv_width), builder.register(_V, kv_width)
        builder.linear(layer, "attn.k", x, k, bias=config.qkv_bias)
        if not config.values_are_keys:
            builder.linear(
                layer, "attn.v", x, v, bias=config.qkv_bias, role=WeightRole.ATTENTION_VALUE
            )
        builder.scale(k, config.key_scale)
        if config.values_are_keys and not config.has_value_norm:
            raise ValueError("values shared with keys need the key norm")
        if config.has_value_norm:
            builder.norm(None, k if config.values_are_keys else v, v, group=head_dim)
    _rotate_heads(builder, layer, config, "q", q, config.num_heads)
    if k is not None:
        _rotate_heads(builder, layer, config, "k", k, config.num_kv_heads)
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
            cache_index=_cache(builder, layer, config),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=head_dim,
            scale=config.scale,
            window=config.window,
            softcap=config.softcap,
            sinks=sinks,
        )
    )
    if gate is not None:
        builder.add(SigmoidGate(x=attended, gate=gate))
    builder.linear(layer, "attn.o", attended, BRANCH, bias=config.output_bias)
    builder.scale(BRANCH, config.output_scale)


def _cache(builder: Builder, layer: int, config: AttentionConfig) -> int:
    if config.shared_layer is not None:
        return builder.shared_cache(layer, config.shared_layer)
    head_dim = config.head_dim
    return builder.cache(
        layer,
        CacheSpec(num_kv_heads=config.num_kv_heads, head_dim=head_dim, value_dim=head_dim),
    )


def _add_gated_queries(
    builder: Builder, layer: int, config: AttentionConfig, x: str, q: str
) -> str:
    """Add interleaved queries and output gates (``Qwen3NextAttention``); return the gates."""
    num_heads, head_dim = config.num_heads, config.head_dim
    both = builder.register(_Q_AND_GATE, 2 * num_heads * head_dim)
    gate = builder.register(_GATE, num_heads * head_dim)
    builder.linear(layer, "attn.q", x, both, bias=config.qkv_bias)
    for out, start in ((q, 0), (gate, head_dim)):
        builder.add(
            CopyColumns(
                x=both,
                out=out,
                num_groups=num_heads,
                count=head_dim,
                x_stride=2 * head_dim,
                out_stride=head_dim,
                x_start=start,
            )
        )
    return gate


def add_latent_attention(
    builder: Builder, layer: int, config: LatentAttentionConfig, x: str
) -> None:
    """Add latent attention from ``x`` to the branch, with absorbed matrices (DeepSeek V2, section
    2.1.2).

    The first ``rope_dim`` columns of each query and key head are rotated; the others are latent,
    and those of the keys are also the values.
    """
    num_heads, head_dim = config.num_heads, config.rope_dim + config.latent_rank
    q = _add_latent_queries(builder, layer, config, x)
    latent = builder.register(_LATENT, config.latent_rank)
    k_rope = builder.register(_K_ROPE, config.rope_dim)
    builder.linear(layer, "attn.latent", x, latent, bias=config.has_bias)
    builder.linear(layer, "attn.k_rope", x, k_rope, bias=config.has_bias)
    builder.norm(
        layer_tensor(layer, "attn.latent_norm.weight"), latent, latent, epsilon=config.norm_epsilon
    )
    k = builder.register(_K, head_dim)
    builder.copy(k_rope, k, 0)
    builder.copy(latent, k, config.rope_dim)
    builder.rotate(q, num_heads, head_dim, config.rope)
    builder.rotate(k, 1, head_dim, config.rope)
    attended = builder.register(_LATENT_ATTENDED, num_heads * config.latent_rank)
    spec = CacheSpec(num_kv_heads=1, head_dim=head_dim, value_dim=0)
    builder.add(
        Attention(
            q=q,
            k=k,
            v=None,
            out=attended,
            cache_index=builder.cache(layer, spec),
            num_heads=num_heads,
            num_kv_heads=1,
            head_dim=head_dim,
            scale=config.scale,
            value_dim=config.latent_rank,
            value_start=config.rope_dim,
        )
    )
    out = builder.register(_ATTENDED, num_heads * config.value_dim)
    builder.add(
        HeadLinear(
            x=attended,
            weight=builder.weight(
                layer_tensor(layer, "attn.v_up.weight"),
                num_heads,
                config.value_dim,
                config.latent_rank,
                role=WeightRole.ATTENTION_VALUE,
                layer=layer,
            ),
            out=out,
            num_heads=num_heads,
            rows=config.value_dim,
            columns=config.latent_rank,
            x_stride=config.latent_rank,
            out_stride=config.value_dim,
        )
    )
    builder.linear(layer, "attn.o", out, BRANCH, bias=config.has_bias)


def _add_latent_queries(builder: Builder, layer: int, config: LatentAttentionConfig, x: str) -> str:
    """Add queries whose heads have the rotated columns first, then the latent ones."""
    num_heads, head_dim = config.num_heads, config.rope_dim + config.latent_rank
    made_dim = config.nope_dim + config.rope_dim
    if config.query_rank is not None:
        low = builder.register(_Q_LOW, config.query_rank)
        builder.linear(layer, "attn.q_down", x, low, bias=config.has_bias)
        builder.norm(
            layer_tensor(layer, "attn.q_down_norm.weight"), low, low, epsilon=config.norm_epsilon
        )
        x = low
    made = builder.register(_Q_HEADS, num_heads * made_dim)
    builder.linear(layer, "attn.q", x, made)
    q = builder.register(_Q, num_heads * head_dim)
    builder.add(
        CopyColumns(
            x=made,
            out=q,
            num_groups=num_heads,
            count=config.rope_dim,
            x_stride=made_dim,
            out_stride=head_dim,
            x_start=config.nope_dim,
        )
    )
    builder.add(
        HeadLinear(
            x=made,
            weight=builder.weight(
                layer_tensor(layer, "attn.k_up.weight"),
                num_heads,
                config.latent_rank,
                config.nope_dim,
                layer=layer,
            ),
            out=q,
            num_heads=num_heads,
            rows=config.latent_rank,
            columns=config.nope_dim,
            x_stride=made_dim,
            out_stride=head_dim,
            out_start=config.rope_dim,
        )
    )
    return q


def _rotate_heads(
    builder: Builder, layer: int, config: AttentionConfig, part: str, x: str, num_heads: int
) -> None:
    """Add the norm of queries or keys and their rotation, in the model's order."""

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
        builder.rotate(x, num_heads, config.head_dim, table)
    if config.norms_after_rope:
        add_norm()
