"""What a stage will take, counted from headers alone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potluck.catalog import ModelDescription, canonical_source
from potluck.engines.backends import NATIVE
from potluck.engines.costs import cost_of
from potluck.errors import ParameterError
from potluck.formats.source import FileTensorSource
from potluck.models.program import build_program
from potluck.models.rope import rope_table_bytes
from potluck.types.engine import EngineCost
from potluck.types.memory import MemoryPlan
from potluck.types.model import ModelConfig
from potluck.types.prefill import Prefill
from potluck.types.program import Program, RopeTable, Shard
from potluck.types.quantization import Quantization
from potluck.types.tensor import TensorInfo
from potluck.weights.load import check_weights, staging_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSize:
    """What every stage of a model allocates, and how its weights are held.

    Weights that are mapped stay in a packed file, and take no memory. ``prefill`` Fast counts what
    a unit takes that has it. ``backend`` is that of the
    unit, ``is_on_device`` whether the unit has memory of its own.
    """

    context_tokens: int
    num_blocks: int
    max_step_tokens: int
    num_threads: int
    quantization: Quantization = Quantization.NONE
    is_mapped: bool = False
    prefill: Prefill = Prefill.EXACT
    backend: str = NATIVE
    is_on_device: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """A stage that fits or not; ``read_bytes`` come from its files when it is loaded."""

    shard: Shard
    size: StageSize
    memory: MemoryPlan
    read_bytes: int


def plan_stage(
    description: ModelDescription,
    tensors: FileTensorSource,
    shard: Shard,
    size: StageSize,
    *,
    process_bytes: int = 0,
    cost: EngineCost | None = None,
) -> StagePlan:
    """Count what ``shard`` takes. ``tensors`` are those of the model's files.

    ``process_bytes`` are the process's own without its engine, ``cost`` is the engine's: that of
    ``size.backend``, unless this build does not have it. A head tied to the embedding is the same
    tensor and counts once. Raises ``ParameterError`` for a context the model was not made for and
    for weights that cannot be mapped, as ``check_weights``, and as ``cost_of``.
    """
    if size.is_mapped and size.backend != NATIVE:
        raise ParameterError(
            "mmap",
            f"weights cannot be mapped for the backend {size.backend}",
            hint=f"leave out --mmap, or use --backend {NATIVE}",
        )
    engine = cost or cost_of(size.backend)
    program = program_to_count(description.config, shard, size.context_tokens)
    stored = check_weights(
        program,
        canonical_source(description, tensors, program),
        path=str(description.files.path),
    )
    loaded = [dataclasses.replace(info, format=size.quantization.target(info)) for info in stored]
    weights: Counter[str] = Counter()
    for info in loaded:
        weights[info.format.label] += engine.loaded_bytes(info)
    by_format = tuple(weights.most_common())
    staging = staging_bytes(stored, size.quantization)
    if size.is_mapped:
        staging += _packing_bytes(loaded)
    else:
        staging += max(map(engine.staging_bytes, loaded), default=0)
    has_rope = program.rope is not None
    memory = MemoryPlan(
        weights=() if size.is_mapped else by_format,
        mapped=by_format if size.is_mapped else (),
        cache_bytes=engine.cache_bytes(program, size.num_blocks),
        rope_bytes=rope_table_bytes(description.config, size.context_tokens) if has_rope else 0,
        scratch_bytes=engine.scratch_bytes(
            program, size.max_step_tokens, num_threads=size.num_threads, prefill=size.prefill
        ),
        staging_bytes=staging,
        process_bytes=process_bytes + engine.process_bytes,
        is_on_device=size.is_on_device,
    )
    return StagePlan(
        shard=shard, size=size, memory=memory, read_bytes=sum(info.num_bytes for info in stored)
    )


def _packing_bytes(loaded: Sequence[TensorInfo]) -> int:
    # Who plans nothing does without the core: an agent starts where there is none.
    from potluck.engines.native_packing import packing_bytes

    return packing_bytes(loaded)


def program_to_count(config: ModelConfig, shard: Shard, context_tokens: int) -> Program:
    """The program without the numbers of its rope table, whose pages are never touched."""
    shape = (context_tokens, config.head_dim // 2)
    nothing = np.zeros(shape, dtype=np.float32)
    rope = RopeTable(cos=nothing, sin=nothing)
    return build_program(config, shard, context_tokens=context_tokens, rope=rope)
