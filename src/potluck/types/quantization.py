"""Quantization of floating-point weights while they are loaded.

Each ``Quantization`` is a mixture, in which the format of a weight depends on its role in the
model. The mixtures, and the fallback formats for rows of other lengths, are those that llama.cpp's
``llama-quantize`` uses under the same names (``llama_tensor_get_type_impl`` and
``tensor_type_fallback`` in its ``src/llama-quant.cpp``; its Q4_K is Q4_K_M, and its Q3_K is
Q3_K_M), without an importance matrix and without its special cases for models with 8 experts or
80 layers. There is no quantizer for Q5_K: matrices for which llama.cpp uses it (some
``_SENSITIVE`` matrices of its Q3_K_M and IQ4_NL) have the format of the other matrices of their
kind, and so has the attention output in Q3_K_M, which is Q4_K in llama.cpp. Rows that fit no format
are not converted; llama.cpp converts them to F16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from potluck.types.choices import Quantization
from potluck.types.program import WeightRole, WeightSpec
from potluck.types.tensor import TensorFormat, TensorInfo

_CONVERTED = frozenset({TensorFormat.F32, TensorFormat.F16, TensorFormat.BF16})


def wanted_format(
    quantization: Quantization, weight: WeightSpec, stored: TensorInfo, num_layers: int
) -> TensorFormat:
    """Return the mixture's format for ``weight``, regardless of its number of columns.

    ``num_layers`` is the number of layers of the whole model. Vectors keep their ``stored`` format.
    So do weights that are already quantized, because quantizing twice loses precision twice, if
    their format has kernels (``TensorFormat.loaded_as``). A router becomes float32.
    """
    if stored.format not in _CONVERTED:
        return stored.format.loaded_as
    if weight.role is WeightRole.ROUTER:
        return TensorFormat.F32
    is_vector = len(stored.shape) < 2 or weight.role is WeightRole.EXPERT_BIAS
    if quantization is Quantization.NONE or is_vector:
        return stored.format
    mixture = _MIXTURES[quantization]
    if weight.role is WeightRole.HEAD:
        return mixture.head
    if weight.role in _SENSITIVE and (
        mixture.in_all_layers or _gets_more_bits(weight.layer, num_layers)
    ):
        return mixture.sensitive
    return mixture.others


def target_format(
    quantization: Quantization, weight: WeightSpec, stored: TensorInfo, num_layers: int
) -> TensorFormat:
    """Return the format in which a stored tensor is loaded.

    It is that of ``wanted_format``, or if rows do not consist of whole blocks of it, another one
    that is at least as precise.
    """
    wanted = wanted_format(quantization, weight, stored, num_layers)
    for format in (wanted, _FALLBACKS.get(wanted)):
        if format is not None and stored.num_columns % format.block_elements == 0:
            return format
    return stored.format


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixture:
    """The formats of the head (or of the embedding that is also the head), of the ``_SENSITIVE``
    matrices in layers that get more bits (or ``in_all_layers``), and of all other matrices.
    """

    head: TensorFormat
    sensitive: TensorFormat
    others: TensorFormat
    in_all_layers: bool = False


_MIXTURES: Mapping[Quantization, _Mixture] = {
    Quantization.Q8_0: _Mixture(
        head=TensorFormat.Q8_0, sensitive=TensorFormat.Q8_0, others=TensorFormat.Q8_0
    ),
    Quantization.Q6_K: _Mixture(
        head=TensorFormat.Q6_K, sensitive=TensorFormat.Q6_K, others=TensorFormat.Q6_K
    ),
    Quantization.Q4_K: _Mixture(
        head=TensorFormat.Q6_K, sensitive=TensorFormat.Q6_K, others=TensorFormat.Q4_K
    ),
    Quantization.Q4_0: _Mixture(
        head=TensorFormat.Q6_K, sensitive=TensorFormat.Q4_0, others=TensorFormat.Q4_0
    ),
    Quantization.IQ4_NL: _Mixture(
        head=TensorFormat.Q6_K, sensitive=TensorFormat.IQ4_NL, others=TensorFormat.IQ4_NL
    ),
    Quantization.Q3_K: _Mixture(
        head=TensorFormat.Q6_K,
        sensitive=TensorFormat.Q4_K,
        others=TensorFormat.Q3_K,
        in_all_layers=True,
    ),
}

AUTOMATIC = (
    Quantization.NONE,
    Quantization.Q8_0,
    Quantization.Q6_K,
    Quantization.Q4_K,
    Quantization.Q4_0,
)
"""The choices of ``--quant auto``: those that every backend supports, the most precise first."""

_SENSITIVE = frozenset({WeightRole.ATTENTION_VALUE, WeightRole.MLP_DOWN})
"""The weights that are most sensitive to rounding."""

_FALLBACKS: Mapping[TensorFormat, TensorFormat] = {
    TensorFormat.Q6_K: TensorFormat.Q8_0,
    TensorFormat.Q4_K: TensorFormat.Q5_0,
    TensorFormat.Q3_K: TensorFormat.IQ4_NL,
}
"""Formats with blocks of 32, for rows that are not whole blocks of 256."""


def _gets_more_bits(layer: int | None, num_layers: int) -> bool:
    """Return whether ``layer`` is in the first or last eighth, or is every third one between."""
    if layer is None:
        return False
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
