"""What the native engine can do. Importable without the compiled core."""

from __future__ import annotations

from potluck.types.abilities import ALL_FEATURES, BackendAbilities
from potluck.types.tensor import COMPUTED_FORMATS

_NOT_YET = frozenset(
    each
    for each in ALL_FEATURES
    if each.partition(" ")[0] in ("HeadLinear", "CopyColumns")
    or each.endswith(
        (" value_dim", " value_start", " activation product", " activation relu_squared")
    )
    or each in ("GatedActivation without gate", "Moe without gate")
)

ABILITIES = BackendAbilities(
    features=ALL_FEATURES - _NOT_YET,
    formats=frozenset(COMPUTED_FORMATS),
    has_arithmetics=True,
    maps_weights=True,
    is_built_in=True,
)
"""Every op. Formats without kernels become others when they are loaded."""
