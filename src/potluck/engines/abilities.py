"""The ops and weight formats that the engines of each backend support."""

from __future__ import annotations

from potluck.types.backend import ALL_FEATURES, BackendAbilities
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

NATIVE_ABILITIES = BackendAbilities(
    features=ALL_FEATURES,
    formats=frozenset(COMPUTED_FORMATS),
    has_arithmetics=True,
    maps_weights=True,
    is_built_in=True,
)
"""Every op. Weights in formats without kernels are converted when they are loaded."""

TINYGRAD_ABILITIES = BackendAbilities(
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
    formats=frozenset(  # the same as ``tinygrad.layout.BLOCKS``; a test compares the two
        {
            TensorFormat.F32,
            TensorFormat.F16,
            TensorFormat.BF16,
            TensorFormat.Q8_0,
            TensorFormat.Q4_0,
            TensorFormat.Q4_1,
            TensorFormat.Q5_0,
            TensorFormat.Q5_1,
            TensorFormat.Q4_K,
            TensorFormat.Q5_K,
            TensorFormat.Q6_K,
        }
    ),
)
"""There is no ``Moe``: which experts a token needs is known only when the graph runs. Without it,
the sinks and the activation of gpt-oss would be of no use."""
