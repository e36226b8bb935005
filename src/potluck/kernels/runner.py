"""The program runner of the compiled core, and what measures the machine that it runs on.

Names are those of the corresponding types in ``potluck.types``; import the module, not the names.
"""

from __future__ import annotations

from potluck.kernels._core import (
    CacheSpec,
    Error,
    MemoryReader,
    NonFiniteError,
    Opening,
    OutOfMemoryError,
    PooledVector,
    Pooling,
    Program,
    Register,
    SampledToken,
    Sampler,
    SamplingParams,
    Slice,
    Stage,
    StateSpec,
    ThreadPool,
    WeightSpec,
    measure_peak,
    pack_rows_on,
    peak_instruction,
)

__all__ = [
    "CacheSpec",
    "Error",
    "MemoryReader",
    "NonFiniteError",
    "Opening",
    "OutOfMemoryError",
    "PooledVector",
    "Pooling",
    "Program",
    "Register",
    "SampledToken",
    "Sampler",
    "SamplingParams",
    "Slice",
    "Stage",
    "StateSpec",
    "ThreadPool",
    "WeightSpec",
    "measure_peak",
    "pack_rows_on",
    "peak_instruction",
]
