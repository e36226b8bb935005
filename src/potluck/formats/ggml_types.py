"""The storage types of GGUF files.

The numbers are those of ``enum ggml_type`` in ggml's ``docs/gguf.md``, and the block sizes those of
``ggml-common.h``. Types that this build cannot use are included so that messages can name them and
their extent in the file can be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from potluck.types.tensor import TensorFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class GgmlType:
    """A storage type: blocks of ``block_elements`` values in ``block_bytes`` bytes.

    ``format`` is None for types that this build cannot use; ``block_bytes`` is 0 if their size is
    unknown.
    """

    name: str
    block_elements: int
    block_bytes: int
    format: TensorFormat | None = None


def _usable(format: TensorFormat) -> GgmlType:
    return GgmlType(
        name=format.name,
        block_elements=format.block_elements,
        block_bytes=format.block_bytes,
        format=format,
    )


def _known(name: str, block_elements: int, block_bytes: int) -> GgmlType:
    return GgmlType(name=name, block_elements=block_elements, block_bytes=block_bytes)


def _named(name: str) -> GgmlType:
    """Return a type that was abandoned before it had a definite size."""
    return _known(name, 1, 0)


GGML_TYPES: Mapping[int, GgmlType] = MappingProxyType(
    {
        0: _usable(TensorFormat.F32),
        1: _usable(TensorFormat.F16),
        2: _usable(TensorFormat.Q4_0),
        3: _usable(TensorFormat.Q4_1),
        4: _named("Q4_2"),
        5: _named("Q4_3"),
        6: _usable(TensorFormat.Q5_0),
        7: _usable(TensorFormat.Q5_1),
        8: _usable(TensorFormat.Q8_0),
        9: _known("Q8_1", 32, 40),
        10: _usable(TensorFormat.Q2_K),
        11: _usable(TensorFormat.Q3_K),
        12: _usable(TensorFormat.Q4_K),
        13: _usable(TensorFormat.Q5_K),
        14: _usable(TensorFormat.Q6_K),
        15: _known("Q8_K", 256, 292),
        16: _usable(TensorFormat.IQ2_XXS),
        17: _usable(TensorFormat.IQ2_XS),
        18: _usable(TensorFormat.IQ3_XXS),
        19: _usable(TensorFormat.IQ1_S),
        20: _usable(TensorFormat.IQ4_NL),
        21: _usable(TensorFormat.IQ3_S),
        22: _usable(TensorFormat.IQ2_S),
        23: _usable(TensorFormat.IQ4_XS),
        24: _known("I8", 1, 1),
        25: _known("I16", 1, 2),
        26: _known("I32", 1, 4),
        27: _known("I64", 1, 8),
        28: _known("F64", 1, 8),
        29: _usable(TensorFormat.IQ1_M),
        30: _usable(TensorFormat.BF16),
        # Rows of Q4_0 or IQ4_NL interleaved for one CPU; no longer written, but still in use.
        31: _known("Q4_0_4_4", 32, 18),
        32: _known("Q4_0_4_8", 32, 18),
        33: _known("Q4_0_8_8", 32, 18),
        34: _usable(TensorFormat.TQ1_0),
        35: _usable(TensorFormat.TQ2_0),
        36: _known("IQ4_NL_4_4", 32, 18),
        37: _known("IQ4_NL_4_8", 32, 18),
        38: _known("IQ4_NL_8_8", 32, 18),
        39: _usable(TensorFormat.MXFP4),
        40: _known("NVFP4", 64, 36),
        41: _known("Q1_0", 128, 18),
        42: _known("Q2_0", 64, 18),
    }
)
