"""What ops are called where their times are added up."""

from __future__ import annotations

from potluck.types.program import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Op,
    RmsNorm,
    Rope,
)

_LAYERS = "layers."


def op_label(op: Op) -> str:
    """What an op is called in a table: its role in the layer, of which a model has many."""
    match op:
        case Embed():
            return "embedding"
        case RmsNorm():
            return "norms"
        case Linear():
            return _role(op.weight)
        case Rope():
            return "rope"
        case Attention():
            return "attention"
        case GatedActivation():
            return "activation"
        case Add():
            return "add"
        case Head():
            return "head"


def _role(weight: str) -> str:
    """``layers.3.attn.q.weight`` → ``attn.q``."""
    name = weight.removesuffix(".weight")
    if name.startswith(_LAYERS):
        name = name.removeprefix(_LAYERS).partition(".")[2]
    return name
