"""The arithmetic with which CPUs multiply activations and weights."""

from __future__ import annotations

import enum

from potluck.types.choices import ArithmeticChoice
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat


class Arithmetic(enum.Enum):
    """The arithmetic of the native backend; the results of different arithmetics differ.

    With exact arithmetic, logits are bit-identical on every instruction set for weights of every
    format, and prefill results are bit-identical to those of decoding the same tokens.

    The others are the fast arithmetics. Each is named after the instruction set whose bf16 products
    it uses, and is bit-identical on all CPUs that have it; no two of them agree (see
    ``docs/adr/0026``). BF16 weights are multiplied with activations rounded to bf16, in prefill and
    decoding alike. With AMX, this also applies to quantized weights if a sequence has more than one
    token in a step and no drafts. A single token is computed exactly, even if it is the last chunk
    of a prompt, so a sequence that is recomputed from its tokens (after a preemption or the loss of
    a node) may continue differently. F32 and F16 weights are always computed exactly.
    """

    EXACT = "exact"
    AVX512_BF16 = "avx512_bf16"
    AMX = "amx"
    I8MM = "i8mm"

    @property
    def choice(self) -> ArithmeticChoice:
        """The user's choice that results in this arithmetic."""
        is_exact = self is Arithmetic.EXACT
        return ArithmeticChoice.EXACT if is_exact else ArithmeticChoice.FAST

    @property
    def isa(self) -> str | None:
        """The required instruction set; None for exact, which every CPU supports."""
        return None if self is Arithmetic.EXACT else self.value

    @property
    def fast_formats(self) -> frozenset[TensorFormat]:
        """The weight formats that it multiplies faster than exact arithmetic.

        Tests compare it with the core's table.
        """
        return _FAST_FORMATS[self]


_QUANTIZED = frozenset(each for each in COMPUTED_FORMATS if each.is_quantized)
_FAST_FORMATS = {
    Arithmetic.EXACT: frozenset[TensorFormat](),
    Arithmetic.AVX512_BF16: frozenset({TensorFormat.BF16}),
    Arithmetic.AMX: frozenset({TensorFormat.BF16}) | _QUANTIZED,
    Arithmetic.I8MM: frozenset({TensorFormat.BF16}),
}

FASTEST_FIRST = (Arithmetic.AMX, Arithmetic.I8MM, Arithmetic.AVX512_BF16)
"""The fast arithmetics."""


def arithmetics_with(isas: tuple[str, ...]) -> tuple[Arithmetic, ...]:
    """Return the arithmetics of a CPU with these instruction sets."""
    return tuple(each for each in Arithmetic if each.isa is None or each.isa in isas)
