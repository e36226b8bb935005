"""What the backends compute with: whether weights of a format are run, and in which arithmetic."""

from __future__ import annotations

from potluck.types.capabilities import Support

_UNKNOWN = Support(is_supported=False, reason="this build does not say it of this backend")

_F16 = {
    "native": Support(is_supported=True, reason="weights stay f16, and are computed with in f32"),
}
_INT8 = {
    "native": Support(
        is_supported=True,
        reason="Q8_0 weights stay packed; activations are quantized, sums of products exact",
    ),
}


def f16_support(backend: str) -> Support:
    """Whether a unit of this backend runs models in f16, and what it computes in."""
    return _F16.get(backend, _UNKNOWN)


def int8_support(backend: str) -> Support:
    """The same for weights of 8 bits with a scale per group (Q8_0)."""
    return _INT8.get(backend, _UNKNOWN)
