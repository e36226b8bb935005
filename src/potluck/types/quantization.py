"""What weights stored as floats become while they are loaded.

Each ``Quantization`` is a mixture: which format a weight gets follows from its role in the model.
The mixtures, and the formats that rows of other lengths get instead, are those that llama.cpp's
``llama-quantize`` chooses under the same names (``llama_tensor_get_type_impl`` and
``tensor_type_fallback`` in its ``src/llama-quant.cpp``; its Q4_K is Q4_K_M and its
Q3_K Q3_K_M), without an importance matrix, and without what it does for models of 8 experts and of
80 layers. There is no quantizer for Q5_K: where llama.cpp chooses it (some ``_SENSITIVE`` matrices
of its Q3_K_M and IQ4_NL), these have the format of the others of their kind, and so does the
output of attention in Q3_K_M, which is Q4_K there. Rows that fit no
format stay as they are here; llama.cpp makes them F16.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from potluck.types.program import WeightRole, WeightSpec
from potluck.types.tensor import TensorFormat, TensorInfo

_CONVERTED = frozenset({TensorFormat.F32, TensorFormat.F16, TensorFormat.BF16})


class Quantization(enum.Enum):
    """A mixture of formats by its name, the most precise first."""

    NONE = "none"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q4_K = "q4_k"
    IQ4_NL = "iq4_nl"
    Q4_0 = "q4_0"
    Q3_K = "q3_k"

    def wanted(self, weight: WeightSpec, stored: TensorInfo, num_layers: int) -> TensorFormat:
        """The format that the mixture has for ``weight``, whatever its columns.

        ``num_layers`` are those of the whole model. Vectors stay as they are ``stored``, and so
        does what is quantized already, as quantizing twice loses twice, where its format has
        kernels (``TensorFormat.loaded_as``). A router becomes float32.
        """
        if stored.format not in _CONVERTED:
            return stored.format.loaded_as
        if weight.role is WeightRole.ROUTER:
            return TensorFormat.F32
        if self is Quantization.NONE or len(stored.shape) < 2:
            return stored.format
        mixture = _MIXTURES[self]
        if weight.role is WeightRole.HEAD:
            return mixture.head
        if weight.role in _SENSITIVE and (
            mixture.in_all_layers or _gets_more_bits(weight.layer, num_layers)
        ):
            return mixture.sensitive
        return mixture.others

    def target(self, weight: WeightSpec, stored: TensorInfo, num_layers: int) -> TensorFormat:
        """The format that a stored tensor is loaded in.

        That is the one ``wanted``, or where its blocks do not make up the rows, another one that
        is at least as precise.
        """
        wanted = self.wanted(weight, stored, num_layers)
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
"""What ``--quant auto`` chooses from: what every backend computes with, the most precise first."""

_SENSITIVE = frozenset({WeightRole.ATTENTION_VALUE, WeightRole.MLP_DOWN})
"""What loses most by being rounded."""

_FALLBACKS: Mapping[TensorFormat, TensorFormat] = {
    TensorFormat.Q6_K: TensorFormat.Q8_0,
    TensorFormat.Q4_K: TensorFormat.Q5_0,
    TensorFormat.Q3_K: TensorFormat.IQ4_NL,
}
"""For rows that are not whole blocks of 256: formats with blocks of 32."""


def _gets_more_bits(layer: int | None, num_layers: int) -> bool:
    """Whether it is one of the first or last eighth of the layers, or every third between."""
    if layer is None:
        return False
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
