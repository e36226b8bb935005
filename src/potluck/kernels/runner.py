"""The program runner of the compiled core: programs, stages, thread pool and sampler.

Names are those of ``potluck.types`` for what is the same thing in the core's form; import the
module, not the names.
"""

from __future__ import annotations

from potluck.kernels._core import (
    Add,
    Attention,
    CacheSpec,
    Embed,
    Error,
    GatedActivation,
    Head,
    Linear,
    Moe,
    NonFiniteError,
    Opening,
    OutOfMemoryError,
    Program,
    Register,
    RmsNorm,
    Rope,
    SampledToken,
    Sampler,
    SamplingParams,
    Slice,
    Stage,
    ThreadPool,
    WeightSpec,
    pack_rows_on,
)

Op = Embed | RmsNorm | Linear | Rope | Attention | GatedActivation | Moe | Add | Head

__all__ = [
    "Add",
    "Attention",
    "CacheSpec",
    "Embed",
    "Error",
    "GatedActivation",
    "Head",
    "Linear",
    "Moe",
    "NonFiniteError",
    "Op",
    "Opening",
    "OutOfMemoryError",
    "Program",
    "Register",
    "RmsNorm",
    "Rope",
    "SampledToken",
    "Sampler",
    "SamplingParams",
    "Slice",
    "Stage",
    "ThreadPool",
    "WeightSpec",
    "pack_rows_on",
]
