"""Planning and loading the stages of a model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

from potluck.catalog import ModelDescription, open_tensors
from potluck.engines.native import choose_isa, make_pool
from potluck.errors import ParameterError
from potluck.formats.source import FileTensorSource
from potluck.loading import (
    LoadedStage,
    StagePlan,
    StageSize,
    combined,
    load_stage,
    plan_stage,
    require_memory,
    stronger_quantizations,
)
from potluck.local.stages import split_evenly
from potluck.probe.cores import default_num_threads
from potluck.probe.memory import available_memory
from potluck.scheduling import MAX_STEP_TOKENS
from potluck.scheduling.blocks import blocks_for
from potluck.types.memory import MemoryPlan
from potluck.types.program import Shard
from potluck.types.quantization import Quantization
from potluck.weights.load import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The stages of a model in this process, and how they compute."""

    stages: tuple[StagePlan, ...]
    size: StageSize
    memory: MemoryPlan
    isa: str


def plan_load(
    description: ModelDescription,
    *,
    num_stages: int,
    context_tokens: int,
    cache_tokens: int,
    num_threads: int | None,
    isa: str | None,
    quantization: Quantization | None = Quantization.NONE,
) -> LoadPlan:
    """Cut the model and count its bytes; nothing is loaded.

    ``quantization`` None takes the most precise one that fits. Raises ``InsufficientMemoryError``
    if it would not fit, and ``ParameterError``.
    """
    if num_threads is not None and num_threads < 1:
        raise ParameterError("threads", f"{num_threads} threads", hint="give a number from 1")
    shards = split_evenly(description.config.num_layers, num_stages)
    size = StageSize(
        context_tokens=context_tokens,
        num_blocks=blocks_for(cache_tokens),
        max_step_tokens=min(MAX_STEP_TOKENS, context_tokens),
        num_threads=num_threads or default_num_threads(),
        quantization=quantization or Quantization.NONE,
    )
    available = available_memory()
    with closing(open_tensors(description.files)) as tensors:

        def count(size: StageSize) -> MemoryPlan:
            return combined([each.memory for each in _plan(description, tensors, shards, size)])

        if quantization is None:
            sizes = [size, *stronger_quantizations(size)]
            fitting = (each for each in sizes if count(each).total_bytes <= available.bytes)
            size = next(fitting, sizes[-1])
        stages = _plan(description, tensors, shards, size)
        memory = combined([stage.memory for stage in stages])
        require_memory(memory, available, size, count)
    return LoadPlan(stages=stages, size=size, memory=memory, isa=choose_isa(isa))


def _plan(
    description: ModelDescription,
    tensors: FileTensorSource,
    shards: Sequence[Shard],
    size: StageSize,
) -> tuple[StagePlan, ...]:
    return tuple(plan_stage(description, tensors, shard, size) for shard in shards)


def load_stages(
    description: ModelDescription,
    plan: LoadPlan,
    *,
    on_progress: Progress | None = None,
) -> list[LoadedStage]:
    """Make every stage's engine and load its weights. The caller closes the engines.

    ``on_progress`` is called with bytes done and bytes in all. After an error nothing stays open.
    """
    total_bytes = sum(stage.read_bytes for stage in plan.stages)
    pool = make_pool(plan.size.num_threads)
    with closing(open_tensors(description.files)) as tensors, ExitStack() as on_failure:
        stages = []
        read_bytes = 0
        for stage in plan.stages:
            loaded = load_stage(
                description,
                tensors,
                stage,
                pool=pool,
                isa=plan.isa,
                on_progress=_from_byte(read_bytes, total_bytes, on_progress),
            )
            on_failure.callback(loaded.engine.close)
            stages.append(loaded)
            read_bytes += stage.read_bytes
        on_failure.pop_all()
        return stages


def _from_byte(start: int, total: int, on_progress: Progress | None) -> Progress | None:
    """Progress of one stage, told as progress of all: it begins at byte ``start`` of ``total``."""
    if on_progress is None:
        return None
    return lambda done, _: on_progress(start + done, total)
