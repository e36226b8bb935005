"""What the tinygrad engine can do. Imports no tinygrad."""

from __future__ import annotations

from potluck.engines.tinygrad.layout import BLOCKS
from potluck.types.abilities import BackendAbilities

ABILITIES = BackendAbilities(
    features=frozenset(
        {
            "Add",
            "Attention",
            "Attention with window",
            "Embed",
            "GatedActivation",
            "Head",
            "Head without weight",
            "Linear",
            "Linear with bias",
            "RmsNorm",
            "Rope",
        }
    ),
    formats=frozenset(BLOCKS),
)
"""No mixtures of experts: which of them a token needs is known only when the graph runs."""
