"""What the native engine supports. Importable without the compiled core."""

from __future__ import annotations

from potluck.types.abilities import ALL_FEATURES, BackendAbilities
from potluck.types.tensor import COMPUTED_FORMATS

ABILITIES = BackendAbilities(
    features=ALL_FEATURES,
    formats=frozenset(COMPUTED_FORMATS),
    has_arithmetics=True,
    maps_weights=True,
    is_built_in=True,
)
"""Every op. Weights in formats without kernels are converted when they are loaded."""
