"""A planned stage, made and filled."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import numpy as np

from potluck.catalog import ModelDescription, canonical_source
from potluck.engines.native import NativeEngine, convert_on
from potluck.formats.source import FileTensorSource
from potluck.kernels.runner import ThreadPool
from potluck.loading.packed_cache import PackedWeights
from potluck.loading.plan import StagePlan, program_to_count
from potluck.models.program import build_program
from potluck.models.rope import rope_table
from potluck.types.program import Program
from potluck.weights.load import Progress, load_weights
from potluck.weights.report import LoadReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStage:
    """An engine with its weights, and what it runs. The engine is the owner's to close.

    ``packed`` is the file that the weights are in, if they are mapped. The report's weights are
    those of the plan, and its ``read_bytes`` came from the model's files.
    """

    engine: NativeEngine
    program: Program
    packed: PackedWeights | None
    report: LoadReport


def load_stage(
    description: ModelDescription,
    tensors: FileTensorSource,
    plan: StagePlan,
    *,
    pool: ThreadPool,
    isa: str,
    packed: PackedWeights | None = None,
    on_progress: Progress | None = None,
) -> LoadedStage:
    """Make the engine of a planned stage and fill it, in the memory that the plan counts.

    A plan for mapped weights needs them ``packed``. ``on_progress`` is called with bytes read and
    bytes in all, where something is read. After an error nothing stays open.
    """
    if plan.size.is_mapped != (packed is not None):
        raise ValueError("weights are packed if, and only if, they are planned to be mapped")
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
    read_before = tensors.num_bytes_read
    try:
        if packed is not None:
            started = time.monotonic()
            for tensor in packed.layout.tensors:
                data = np.frombuffer(packed.bytes_of(tensor), dtype=np.uint8)
                engine.map_weight(tensor.info, data)
            seconds = time.monotonic() - started
            report = LoadReport(read_bytes=0, seconds=seconds, weights=(), remarks=())
        else:
            report = load_weights(
                program,
                canonical_source(description, tensors, program),
                engine.sink(),
                convert=convert_on(pool),
                quantization=size.quantization,
                path=str(description.files.path),
                on_progress=on_progress,
            )
    except BaseException:
        engine.close()
        raise
    report = dataclasses.replace(
        report, read_bytes=tensors.num_bytes_read - read_before, weights=plan.memory.weights
    )
    return LoadedStage(engine=engine, program=program, packed=packed, report=report)
