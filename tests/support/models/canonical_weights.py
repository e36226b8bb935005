"""Random float32 weights of a program, loaded by their canonical names."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from potluck.types.tensor import TensorFormat, TensorInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.types.engine import Engine
    from potluck.types.program import Program, WeightSpec


def canonical_weight(spec: WeightSpec) -> NDArray[np.float32]:
    """The same numbers for a name and a shape, whatever else the program has.

    Norms are near 1, rates negative, and matrices keep the size of what they multiply.
    """
    generator = np.random.default_rng(zlib.crc32(spec.name.encode()))
    values = generator.standard_normal(spec.shape)
    if len(spec.shape) > 1:
        values /= np.sqrt(spec.shape[-1])
    elif "norm" in spec.name:
        values = 1 + 0.1 * values
    elif "rate" in spec.name:
        values = -np.exp(0.5 * values)
    elif "kernel" in spec.name:
        values *= 0.5
    return values.astype(np.float32)


def load_canonical_weights(engine: Engine, program: Program) -> None:
    """Feed an engine ``canonical_weight`` of every tensor that its program reads."""
    sink = engine.sink()
    for spec in program.weights:
        info = TensorInfo(name=spec.name, shape=spec.shape, format=TensorFormat.F32)
        sink.begin(info)
        sink.write_rows(spec.name, 0, info.num_rows, memoryview(canonical_weight(spec).tobytes()))
        sink.finish(spec.name)
