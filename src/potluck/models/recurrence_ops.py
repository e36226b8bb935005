"""The ops of recurrences: convolutions over a few tokens, and states that every token updates."""

from __future__ import annotations

from potluck.models.builder import Builder
from potluck.models.names import layer_tensor
from potluck.types.model import (
    GatedDeltaConfig,
    MambaConfig,
    MambaScales,
    Recurrence,
    ShortConvConfig,
)
from potluck.types.program import (
    Activation,
    CausalConv,
    GatedActivation,
    GatedDelta,
    Multiply,
    StateScan,
    WeightRole,
)

_GATE_IN, _GATE_OUT, _CONVOLVED = "conv_gate_in", "conv_gate_out", "convolved"
_GATE, _OUT = "recurrence_gate", "recurrence_out"
_BETA, _DECAY, _STEP = "beta", "decay", "step"
_INPUTS, _VECTORS_B, _VECTORS_C = "mamba_x", "mamba_b", "mamba_c"


def add_recurrence(builder: Builder, layer: int, config: Recurrence, x: str, out: str) -> None:
    """Add a recurrence from ``x``, which is preserved, to ``out``; they may be the same."""
    match config:
        case ShortConvConfig():
            _add_short_conv(builder, layer, config, x, out)
        case GatedDeltaConfig():
            _add_gated_delta(builder, layer, config, x, out)
        case MambaConfig():
            _add_mamba(builder, layer, config, x, out)


def _add_conv(
    builder: Builder, layer: int, stem: str, x: str, kernel: int, *, bias: bool, has_silu: bool
) -> None:
    width = builder.registers[x]
    name = layer_tensor(layer, f"{stem}.kernel")
    builder.add(
        CausalConv(
            x=x,
            weight=builder.weight(f"{name}.weight", width * kernel),
            out=x,
            state_index=builder.state(kernel - 1, width),
            kernel=kernel,
            bias=builder.weight(f"{name}.bias", width) if bias else None,
            has_silu=has_silu,
        )
    )


def _add_short_conv(
    builder: Builder, layer: int, config: ShortConvConfig, x: str, out: str
) -> None:
    """Add ``Lfm2ShortConv`` of ``transformers``."""
    width, bias = builder.config.hidden_size, config.has_bias
    gate_in, gate_out = builder.register(_GATE_IN, width), builder.register(_GATE_OUT, width)
    convolved = builder.register(_CONVOLVED, width)
    builder.linear(layer, "conv.gate_in", x, gate_in, bias=bias)
    builder.linear(layer, "conv.gate_out", x, gate_out, bias=bias)
    builder.linear(layer, "conv.x", x, convolved, bias=bias)
    _multiply(builder, gate_in, convolved)
    _add_conv(builder, layer, "conv", convolved, config.kernel, bias=bias, has_silu=False)
    _multiply(builder, gate_out, convolved)
    builder.linear(layer, "conv.out", convolved, out, bias=bias)


def _multiply(builder: Builder, gate: str, x: str) -> None:
    builder.add(GatedActivation(gate=gate, up=x, out=x, activation=Activation.PRODUCT))


def _add_gated_delta(
    builder: Builder, layer: int, config: GatedDeltaConfig, x: str, out: str
) -> None:
    """Add ``Qwen3NextGatedDeltaNet`` of ``transformers``."""
    num_heads, value_width = config.num_heads, config.num_heads * config.value_dim
    key_width = config.num_key_heads * config.key_dim
    qkv = builder.register(_CONVOLVED, 2 * key_width + value_width)
    gate = builder.register(_GATE, value_width)
    beta, decay = builder.register(_BETA, num_heads), builder.register(_DECAY, num_heads)
    builder.linear(layer, "delta.qkv", x, qkv)
    builder.linear(layer, "delta.gate", x, gate)
    builder.linear(layer, "delta.beta", x, beta, role=WeightRole.ROUTER)
    builder.linear(layer, "delta.decay", x, decay, role=WeightRole.ROUTER)
    _add_conv(builder, layer, "delta", qkv, config.kernel, bias=False, has_silu=True)
    made = builder.register(_OUT, value_width)
    builder.add(
        GatedDelta(
            x=qkv,
            decay=decay,
            beta=beta,
            rate=builder.weight(layer_tensor(layer, "delta.rate.weight"), num_heads),
            decay_bias=builder.weight(layer_tensor(layer, "delta.decay_bias.weight"), num_heads),
            out=made,
            state_index=builder.state(num_heads * config.key_dim, config.value_dim),
            num_heads=num_heads,
            num_key_heads=config.num_key_heads,
            key_dim=config.key_dim,
            value_dim=config.value_dim,
            epsilon=config.epsilon,
            is_tiled=config.is_tiled,
        )
    )
    norm = layer_tensor(layer, "delta.norm.weight")
    builder.norm(norm, made, made, group=config.value_dim)
    builder.add(GatedActivation(gate=gate, up=made, out=made))
    builder.linear(layer, "delta.out", made, out)


def _add_mamba(builder: Builder, layer: int, config: MambaConfig, x: str, out: str) -> None:
    """Add ``Mamba2Mixer`` of ``transformers``."""
    num_heads, inner = config.num_heads, config.num_heads * config.head_dim
    width = inner + 2 * config.num_groups * config.state_dim
    gate, convolved = builder.register(_GATE, inner), builder.register(_CONVOLVED, width)
    step = builder.register(_STEP, num_heads)
    builder.linear(layer, "mamba.gate", x, gate, bias=config.has_bias)
    if config.scales is None:
        builder.linear(layer, "mamba.x", x, convolved, bias=config.has_bias)
        builder.linear(layer, "mamba.step", x, step, bias=config.has_bias)
    else:
        _add_scaled_parts(builder, layer, config, config.scales, x, convolved, step)
        builder.scale(gate, config.scales.gate)
    _add_conv(
        builder,
        layer,
        "mamba",
        convolved,
        config.kernel,
        bias=config.has_conv_bias,
        has_silu=True,
    )
    made = builder.register(_OUT, inner)

    def vector(part: str, width: int = num_heads) -> str:
        return builder.weight(layer_tensor(layer, f"mamba.{part}.weight"), width)

    builder.add(
        StateScan(
            x=convolved,
            step=step,
            rate=vector("rate"),
            step_bias=vector("step_bias"),
            skip=vector("skip"),
            out=made,
            state_index=builder.state(num_heads * config.state_dim, config.head_dim),
            num_heads=num_heads,
            head_dim=config.head_dim,
            num_groups=config.num_groups,
            state_dim=config.state_dim,
            least_step=config.least_step,
            largest_step=config.largest_step,
        )
    )

    def add_norm() -> None:
        if config.norm_groups is not None:
            builder.norm(None, made, made, group=inner // config.norm_groups)
            builder.add(Multiply(x=made, weight=vector("norm", inner)))

    if config.norm_before_gate:
        add_norm()
    builder.add(GatedActivation(gate=gate, up=made, out=made))
    if not config.norm_before_gate:
        add_norm()
    bias = config.has_bias if config.has_output_bias is None else config.has_output_bias
    builder.linear(layer, "mamba.out", made, out, bias=bias)
    builder.scale(out, config.output_scale)


def _add_scaled_parts(
    builder: Builder,
    layer: int,
    config: MambaConfig,
    scales: MambaScales,
    x: str,
    out: str,
    step: str,
) -> None:
    """Add the inputs and the vectors ``b`` and ``c``, concatenated in ``out``, and the steps."""
    vectors = config.num_groups * config.state_dim
    parts = (
        ("x", builder.register(_INPUTS, builder.registers[out] - 2 * vectors), scales.x),
        ("b", builder.register(_VECTORS_B, vectors), scales.b),
        ("c", builder.register(_VECTORS_C, vectors), scales.c),
    )
    # Consecutive products share a phase.
    for part, made, _ in (*parts, ("step", step, scales.step)):
        builder.linear(layer, f"mamba.{part}", x, made, bias=config.has_bias)
    start = 0
    for _, made, factor in parts:
        builder.scale(made, factor)
        builder.copy(made, out, start)
        start += builder.registers[made]
    builder.scale(step, scales.step)
