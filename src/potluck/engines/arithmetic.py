"""The arithmetic of the backends, by the format of the weights.

No backend multiplies in f16: sums of thousands of products are float32 everywhere, so that neither
weights nor activations overflow.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.types.capabilities import Support

_UNKNOWN = Support(is_supported=False, reason="not documented for this backend in this build")

_TINYGRAD = "tinygrad:"

_F16: Mapping[str, Support] = {
    "native": Support(
        is_supported=True, reason="weights stay f16, and are multiplied and summed in f32"
    ),
    _TINYGRAD: Support(
        is_supported=True,
        reason="weights stay f16 on the device, even if it has no native f16, and are"
        " multiplied and summed in f32",
    ),
}
_INT8: Mapping[str, Support] = {
    "native": Support(
        is_supported=True,
        reason="Q8_0 weights stay packed; activations are quantized to int8, and sums of products "
        "are exact",
    ),
    _TINYGRAD: Support(
        is_supported=True,
        reason="Q8_0 weights stay packed on the device, and are multiplied and summed in f32",
    ),
}


def f16_support(backend: str) -> Support:
    """Return whether a unit of this backend runs models in f16, and its arithmetic."""
    return _F16.get(_kind(backend), _UNKNOWN)


def int8_support(backend: str) -> Support:
    """Return the same for 8-bit weights with a scale per group (Q8_0)."""
    return _INT8.get(_kind(backend), _UNKNOWN)


def _kind(backend: str) -> str:
    return _TINYGRAD if backend.startswith(_TINYGRAD) else backend
