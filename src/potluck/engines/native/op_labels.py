"""Labels by which the times of ops are summed: the role of an op in a layer."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.types.program import (
    Add,
    AllGather,
    Attention,
    CausalConv,
    CopyColumns,
    Embed,
    GatedActivation,
    GatedDelta,
    Head,
    HeadLinear,
    LayerNorm,
    Linear,
    Moe,
    Multiply,
    Op,
    RmsNorm,
    Rope,
    Scale,
    SigmoidGate,
    StateScan,
)

_LAYERS = "layers."

_CONVERSION = "rounding"
"""The conversion of a register that is part of the next op: activations to 8 bits or to bf16."""


def label_of(ops: Sequence[Op]) -> str:
    """Return the label of ops that run together; matrices of one part of a layer share its name:
    ``attn.q+k+v``.
    """
    names = list(dict.fromkeys(_name(op) for op in ops))
    if not names:
        return _CONVERSION
    first, dot, _ = names[0].partition(".")
    prefix = first + dot
    if dot and all(name.startswith(prefix) for name in names):
        return prefix + "+".join(name.removeprefix(prefix) for name in names)
    return "+".join(names)


def _name(op: Op) -> str:
    match op:
        case Embed():
            return "embedding"
        case RmsNorm() | LayerNorm():
            return "norms"
        case Linear() | HeadLinear():
            return _role(op.weight)
        case CopyColumns():
            return "copies"
        case CausalConv():
            return "convolution"
        case GatedDelta() | StateScan():
            return "recurrence"
        case Rope():
            return "rope"
        case Attention():
            return "attention"
        case GatedActivation() | SigmoidGate():
            return "activation"
        case Moe():
            return "experts"
        case Add() | Scale() | Multiply():
            return "add"
        case AllGather():
            return "exchange"
        case Head():
            return "head"


def _role(weight: str) -> str:
    """Return the role of a weight: ``layers.3.attn.q.weight`` → ``attn.q``."""
    name = weight.removesuffix(".weight")
    if name.startswith(_LAYERS):
        name = name.removeprefix(_LAYERS).partition(".")[2]
    return name
