"""A planned stage, made and filled."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.catalog import ModelDescription, canonical_source
from potluck.engines.native import NativeEngine, convert_on
from potluck.formats.source import FileTensorSource
from potluck.kernels.runner import ThreadPool
from potluck.loading.plan import StagePlan, program_to_count
from potluck.models.program import build_program
from potluck.models.rope import rope_table
from potluck.types.program import Program
from potluck.weights.load import Progress, load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStage:
    """An engine with its weights, and what it runs. The engine is the owner's to close."""

    engine: NativeEngine
    program: Program


def load_stage(
    description: ModelDescription,
    tensors: FileTensorSource,
    plan: StagePlan,
    *,
    pool: ThreadPool,
    isa: str,
    on_progress: Progress | None = None,
) -> LoadedStage:
    """Make the engine of a planned stage and fill it, in the memory that the plan counts.

    ``on_progress`` is called with bytes read and bytes in all. Raises as ``load_weights``, and
    ``ModelFileError`` when a file changed since ``tensors`` was opened. After an error nothing
    stays open.
    """
    size = plan.size
    config, shard = description.config, plan.shard
    if shard.start_layer < shard.end_layer:
        rope = rope_table(config, size.context_tokens)
        program = build_program(config, shard, context_tokens=size.context_tokens, rope=rope)
    else:
        program = program_to_count(config, shard, size.context_tokens)
    engine = NativeEngine(
        program,
        num_blocks=size.num_blocks,
        max_step_tokens=size.max_step_tokens,
        pool=pool,
        isa=isa,
    )
    try:
        load_weights(
            program,
            canonical_source(description, tensors, program),
            engine.sink(),
            convert=convert_on(pool),
            quantization=size.quantization,
            path=str(description.files.path),
            on_progress=on_progress,
        )
        tensors.check_unchanged()
    except BaseException:
        engine.close()
        raise
    return LoadedStage(engine=engine, program=program)
