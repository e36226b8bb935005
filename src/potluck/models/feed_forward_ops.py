"""The ops of MLPs and experts."""

from __future__ import annotations

from potluck.models.builder import BESIDE, BRANCH, Builder
from potluck.models.names import layer_tensor
from potluck.types.model import ExpertsConfig, LayerConfig, MlpConfig
from potluck.types.program import (
    HIDDEN,
    Add,
    GatedActivation,
    Moe,
    Scale,
    SigmoidGate,
    WeightRole,
)

_GATE, _UP = "gate", "up"
_ROUTER_INPUT, _ROUTER_LOGITS = "router_input", "router_logits"
_SHARED_GATE = "shared_gate"
_LATENT = "experts_latent"


def add_feed_forward(builder: Builder, layer: int, config: LayerConfig, x: str) -> None:
    """Add the feed-forward part from ``x`` to the branch: an MLP, experts, or both."""
    mlp, experts = config.mlp, config.experts
    if mlp is not None:
        _add_mlp(builder, layer, "mlp", mlp, x, BRANCH)
        if experts is not None:
            _add_experts_beside(builder, layer, experts)
    elif experts is not None:
        _add_router(builder, layer, experts, x)
        beside = None
        if experts.shared is not None:
            beside = _add_shared(builder, layer, experts, experts.shared, x)
        if experts.latent_width is None:
            _add_moe(builder, layer, experts, x, BRANCH)
        else:
            latent = builder.register(_LATENT, experts.latent_width)
            builder.linear(layer, "mlp.latent_down", x, latent)
            _add_moe(builder, layer, experts, latent, latent)
            builder.linear(layer, "mlp.latent_up", latent, BRANCH)
        if beside is not None:
            builder.add(Add(x=BRANCH, y=beside))
    else:
        raise ValueError(f"layer {layer} has neither an MLP nor experts")


def add_gate_and_up(builder: Builder, layer: int, stem: str, mlp: MlpConfig, x: str) -> str:
    """Add gate, up and the activation; return the register with the result."""
    gate = None
    if mlp.activation.has_gate:
        gate = builder.register(_GATE, mlp.width)
        builder.linear(layer, f"{stem}.gate", x, gate, bias=mlp.has_bias)
    up = builder.register(_UP, mlp.width)
    builder.linear(layer, f"{stem}.up", x, up, bias=mlp.has_bias)
    if gate is not None:
        builder.scale(gate, mlp.gate_scale)
    out = gate or up
    builder.add(GatedActivation(gate=gate, up=up, out=out, activation=mlp.activation))
    return out


def add_down(builder: Builder, layer: int, stem: str, mlp: MlpConfig, gate: str, out: str) -> None:
    """Add the last matrix of an MLP."""
    builder.linear(layer, f"{stem}.down", gate, out, bias=mlp.has_bias, role=WeightRole.MLP_DOWN)
    builder.scale(out, mlp.output_scale)


def _add_mlp(builder: Builder, layer: int, stem: str, mlp: MlpConfig, x: str, out: str) -> None:
    gate = add_gate_and_up(builder, layer, stem, mlp, x)
    add_down(builder, layer, stem, mlp, gate, out)


def _add_shared(
    builder: Builder, layer: int, experts: ExpertsConfig, shared: MlpConfig, x: str
) -> str:
    """Add the shared experts, which every token uses in addition to those that it selects."""
    beside = builder.register(BESIDE, builder.config.hidden_size)
    _add_mlp(builder, layer, "mlp.shared", shared, x, beside)
    if experts.has_shared_gate:
        gate = builder.register(_SHARED_GATE, 1)
        builder.linear(layer, "mlp.shared_gate", x, gate, role=WeightRole.ROUTER)
        builder.add(SigmoidGate(x=beside, gate=gate))
    return beside


def _add_experts_beside(builder: Builder, layer: int, experts: ExpertsConfig) -> None:
    """Add Gemma 4's experts, which read the residual stream, have their own norms and add to the
    MLP's output.
    """
    hidden_size = builder.config.hidden_size
    builder.norm(layer_tensor(layer, "mlp_only_post_norm.weight"), BRANCH, BRANCH)
    router_input = builder.register(_ROUTER_INPUT, hidden_size)
    builder.norm(layer_tensor(layer, "mlp.router_scale.weight"), HIDDEN, router_input)
    builder.add(Scale(x=router_input, factor=hidden_size**-0.5))
    _add_router(builder, layer, experts, router_input)
    beside = builder.register(BESIDE, hidden_size)
    builder.norm(layer_tensor(layer, "experts_norm.weight"), HIDDEN, beside)
    _add_moe(builder, layer, experts, beside, beside)
    builder.norm(layer_tensor(layer, "experts_post_norm.weight"), beside, beside)
    builder.add(Add(x=BRANCH, y=beside))


def _add_router(builder: Builder, layer: int, experts: ExpertsConfig, x: str) -> None:
    logits = builder.register(_ROUTER_LOGITS, experts.num_experts)
    builder.linear(layer, "mlp.router", x, logits, bias=experts.has_bias, role=WeightRole.ROUTER)


def _add_moe(builder: Builder, layer: int, experts: ExpertsConfig, x: str, out: str) -> None:
    width, num_experts = builder.registers[x], experts.num_experts
    shapes = {
        **({"gate": (experts.width, width)} if experts.activation.has_gate else {}),
        "up": (experts.width, width),
        "down": (width, experts.width),
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
        part: builder.weight(
            layer_tensor(layer, f"mlp.experts.{part}.bias"),
            num_experts,
            shape[0],
            role=WeightRole.EXPERT_BIAS,
        )
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
            gate=names.get("gate"),
            up=names["up"],
            down=names["down"],
            out=out,
            num_experts=num_experts,
            num_experts_per_token=experts.num_experts_per_token,
            expert_width=experts.width,
            norm_topk_prob=experts.norm_topk_prob,
            activation=experts.activation,
            score=experts.score,
            e_score_correction_bias=per_expert(
                "mlp.correction", is_there=experts.has_score_correction_bias
            ),
            num_groups=experts.num_groups,
            num_groups_used=experts.num_groups_used,
            share_scale=experts.share_scale,
            expert_scale=per_expert("mlp.expert_scale", is_there=experts.has_expert_scale),
            gate_bias=biases.get("gate"),
            up_bias=biases.get("up"),
            down_bias=biases.get("down"),
        )
    )
