"""Planning and loading the stages of a model in this process."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass

from potluck.catalog import ModelDescription, canonical_source, open_headers, open_weights
from potluck.engines.native import (
    NativeEngine,
    cache_bytes,
    choose_isa,
    make_pool,
    scratch_bytes,
)
from potluck.errors import ParameterError
from potluck.local.stages import split_evenly
from potluck.models.program import build_program
from potluck.models.rope import rope_table, rope_table_bytes
from potluck.probe.cores import default_num_threads
from potluck.probe.memory import available_memory
from potluck.scheduling import MAX_STEP_TOKENS
from potluck.scheduling.blocks import blocks_for
from potluck.types.model import ModelConfig
from potluck.types.program import Program, Shard
from potluck.weights.budget import require_memory, weights_bytes
from potluck.weights.load import Progress, load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage and what it will need."""

    program: Program
    weights_bytes: int
    cache_bytes: int
    scratch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The stages, the cache they share out, and how they compute."""

    stages: tuple[StagePlan, ...]
    context_tokens: int
    num_blocks: int
    max_step_tokens: int
    num_threads: int
    isa: str


def plan_load(
    description: ModelDescription,
    *,
    num_stages: int,
    context_tokens: int,
    cache_tokens: int,
    num_threads: int | None,
    isa: str | None,
) -> LoadPlan:
    """Cut the model and count its bytes; nothing is loaded.

    Raises ``InsufficientMemoryError`` if it would not fit, and ``ParameterError``.
    """
    if num_threads is not None and num_threads < 1:
        raise ParameterError("threads", f"{num_threads} threads", hint="give a number from 1")
    threads = num_threads or default_num_threads()
    num_blocks = blocks_for(cache_tokens)
    max_step_tokens = min(MAX_STEP_TOKENS, context_tokens)
    shards = split_evenly(description.config.num_layers, num_stages)
    # One here, and one that each stage keeps.
    rope_bytes = (1 + num_stages) * rope_table_bytes(description.config, context_tokens)
    _require_memory_for_context(description.config, num_blocks, rope_bytes)
    rope = rope_table(description.config, context_tokens)
    path = str(description.files.path)
    stages = []
    with closing(open_headers(description)) as tensors:
        for shard in shards:
            program = build_program(
                description.config, shard, context_tokens=context_tokens, rope=rope
            )
            source = canonical_source(description, tensors, program)
            stages.append(
                StagePlan(
                    program=program,
                    weights_bytes=weights_bytes(program, source, path=path),
                    cache_bytes=cache_bytes(program, num_blocks),
                    scratch_bytes=scratch_bytes(program, max_step_tokens, num_threads=threads),
                )
            )
    require_memory(
        {
            "weights": sum(stage.weights_bytes for stage in stages),
            "cache": sum(stage.cache_bytes for stage in stages),
            "scratch": sum(stage.scratch_bytes for stage in stages),
            "rope tables": rope_bytes,
        },
        available_memory(),
    )
    return LoadPlan(
        stages=tuple(stages),
        context_tokens=context_tokens,
        num_blocks=num_blocks,
        max_step_tokens=max_step_tokens,
        num_threads=threads,
        isa=choose_isa(isa),
    )


def _require_memory_for_context(config: ModelConfig, num_blocks: int, rope_bytes: int) -> None:
    """Refuse a context that cannot fit before its tables are made, which takes as much memory."""
    whole = build_program(
        config, Shard.whole(config.num_layers), context_tokens=1, rope=rope_table(config, 1)
    )
    needed = {"cache": cache_bytes(whole, num_blocks), "rope tables": rope_bytes}
    require_memory(needed, available_memory())


def load_stages(
    description: ModelDescription,
    plan: LoadPlan,
    *,
    on_progress: Progress | None = None,
    on_fetch: Progress | None = None,
) -> list[NativeEngine]:
    """Make every stage's engine and load its weights. The caller closes the engines.

    ``on_fetch`` and then ``on_progress`` are called with bytes done and bytes in all. After an
    error nothing stays open.
    """
    total_bytes = sum(stage.weights_bytes for stage in plan.stages)
    pool = make_pool(plan.num_threads)
    shards = [stage.program.shard for stage in plan.stages]
    weights = open_weights(description, shards, on_fetch)
    with closing(weights) as tensors, ExitStack() as on_failure:
        engines = []
        loaded_bytes = 0
        for stage in plan.stages:
            engine = NativeEngine(
                stage.program,
                num_blocks=plan.num_blocks,
                max_step_tokens=plan.max_step_tokens,
                pool=pool,
                isa=plan.isa,
            )
            on_failure.callback(engine.close)
            engines.append(engine)
            load_weights(
                stage.program,
                canonical_source(description, tensors, stage.program),
                engine.sink(),
                path=str(description.files.path),
                on_progress=_from_byte(loaded_bytes, total_bytes, on_progress),
            )
            loaded_bytes += stage.weights_bytes
        on_failure.pop_all()
        return engines


def _from_byte(start: int, total: int, on_progress: Progress | None) -> Progress | None:
    """Progress of one stage, told as progress of all: it begins at byte ``start`` of ``total``."""
    if on_progress is None:
        return None
    return lambda done, _: on_progress(start + done, total)
