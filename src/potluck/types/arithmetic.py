"""In which arithmetic the CPU multiplies activations with weights."""

from __future__ import annotations

import enum

from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat


class ArithmeticChoice(enum.Enum):
    """What a user asks for: results that are the same on every CPU, or the fastest products."""

    EXACT = "exact"
    FAST = "fast"


class Arithmetic(enum.Enum):
    """What the native backend computes in; each has bits of its own.

    Exact: for weights of every format, logits are bit-identical on every instruction set, and a
    prompt's tokens have the bits that decoding them would give.

    The others are the fast ones, named after the instruction set whose products of bf16 they use
    (no two of them agree, see ``docs/adr/0026``), and are bit-identical on all CPUs that have it.
    BF16 weights are multiplied with activations rounded to bf16, in prompts and decodes alike. With
    AMX, quantized weights are as well, where a sequence brings more than one token to a step: a
    single token, also if it is the last chunk of a prompt, is exact, so that a sequence computed
    again from its tokens (after a preemption or a lost node) may go on differently. F32 and F16
    weights are computed exactly in each.
    """

    EXACT = "exact"
    AVX512_BF16 = "avx512_bf16"
    AMX = "amx"
    I8MM = "i8mm"

    @property
    def choice(self) -> ArithmeticChoice:
        """What it is an answer to."""
        is_exact = self is Arithmetic.EXACT
        return ArithmeticChoice.EXACT if is_exact else ArithmeticChoice.FAST

    @property
    def isa(self) -> str | None:
        """The instruction set that it needs; None for exact, which every one has."""
        return None if self is Arithmetic.EXACT else self.value

    @property
    def fast_formats(self) -> frozenset[TensorFormat]:
        """The formats of weights that it multiplies faster than exact; tests hold it against the
        core's table.
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
"""The fast ones."""


def arithmetics_with(isas: tuple[str, ...]) -> tuple[Arithmetic, ...]:
    """What a CPU can compute in that may use these instruction sets."""
    return tuple(each for each in Arithmetic if each.isa is None or each.isa in isas)
