"""What the backends compute with: whether weights of a format are run, and in which arithmetic.

No backend computes products in f16: sums of thousands of products are float32 everywhere, so that
no weight and no activation overflows.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.types.capabilities import Support

_UNKNOWN = Support(is_supported=False, reason="this build does not say it of this backend")

_TINYGRAD = "tinygrad:"

_F16: Mapping[str, Support] = {
    "native": Support(
        is_supported=True, reason="weights stay f16, and are multiplied and summed in f32"
    ),
    _TINYGRAD: Support(
        is_supported=True,
        reason="weights stay f16 on the device, also on one without f16 of its own, and are "
        "multiplied and summed in f32",
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
    """Whether a unit of this backend runs models in f16, and what it computes in."""
    return _F16.get(_kind(backend), _UNKNOWN)


def int8_support(backend: str) -> Support:
    """The same for weights of 8 bits with a scale per group (Q8_0)."""
    return _INT8.get(_kind(backend), _UNKNOWN)


def _kind(backend: str) -> str:
    return _TINYGRAD if backend.startswith(_TINYGRAD) else backend
