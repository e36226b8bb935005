"""What the tinygrad engine can do. Imports no tinygrad."""

from __future__ import annotations

from potluck.engines.tinygrad.layout import BLOCKS
from potluck.types.abilities import BackendAbilities

ABILITIES = BackendAbilities(
    features=frozenset(
        {
            "Add",
            "Add with scale",
            "Attention",
            "Attention with softcap",
            "Attention with window",
            "Attention without k",
            "Attention without v",
            "Embed",
            "GatedActivation",
            "GatedActivation with activation gelu_tanh",
            "GatedActivation with up_start",
            "Head",
            "Head with scale",
            "Head with softcap",
            "Head without weight",
            "LayerNorm",
            "Linear",
            "Linear with bias",
            "Multiply",
            "RmsNorm",
            "RmsNorm without weight",
            "Rope",
            "Rope with table",
            "Scale",
            "SigmoidGate",
        }
    ),
    formats=frozenset(BLOCKS),
)
"""No ``Moe``: which experts a token needs is known only when the graph runs. The sinks and the
activation of gpt-oss are of no use without."""
