"""What ops are called where their times are added up: by their role in a layer, of which a model
has many.
"""

from __future__ import annotations

from collections.abc import Sequence

from potluck.types.program import (
    Add,
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
"""What the next op takes of a register, made without an op of its own: activations in 8 bits or in
bf16.
"""


def label_of(ops: Sequence[Op]) -> str:
    """Ops that run together; matrices of one part of a layer share its name: ``attn.q+k+v``."""
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
        case Head():
            return "head"


def _role(weight: str) -> str:
    """``layers.3.attn.q.weight`` → ``attn.q``."""
    name = weight.removesuffix(".weight")
    if name.startswith(_LAYERS):
        name = name.removeprefix(_LAYERS).partition(".")[2]
    return name
