"""Load a planned stage."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from potluck.catalog import ModelDescription, canonical_source
from potluck.catalog.needs import announce
from potluck.engines.backends import open_engine
from potluck.engines.dequantize import dequantize
from potluck.engines.loading.packed_cache import PackedWeights
from potluck.engines.loading.packed_key import weights_key
from potluck.engines.native.engine import NativeEngine, convert_on
from potluck.engines.native.pool import ThreadPool
from potluck.formats.source import FileTensorSource
from potluck.models.program import build_program, program_to_count
from potluck.models.rope import rope_tables
from potluck.types.engine import LoadableEngine
from potluck.types.program import Program
from potluck.types.stage import StagePlan
from potluck.types.unit import UnitAddress
from potluck.weights.load import LoadReport, Progress, load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStage:
    """An engine with its weights, and its program. The owner must close the engine.

    ``packed`` is the file with the weights, if they are mapped. The report's weights and remarks
    are those of the plan, and its ``read_bytes`` were read from the model's files. ``weights_key``
    identifies the contents of the weights, if it was requested.
    """

    engine: LoadableEngine
    program: Program
    packed: PackedWeights | None
    report: LoadReport
    weights_key: str | None = None


def load_stage(
    description: ModelDescription,
    tensors: FileTensorSource,
    plan: StagePlan,
    *,
    unit: UnitAddress,
    pool: ThreadPool,
    packed: PackedWeights | None = None,
    on_progress: Progress | None = None,
    on_warm_up: Callable[[], None] | None = None,
    make_engine: Callable[..., LoadableEngine] = open_engine,
    with_key: bool = False,
) -> LoadedStage:
    """Create the engine of a planned stage on ``unit``, load its weights within the memory of the
    plan, and warm it up.

    ``pool`` is used for quantization, on any backend. A plan with mapped weights requires
    ``packed``. ``on_progress`` is called with the bytes read and the total bytes, if anything is
    read, and ``on_warm_up`` when all weights are loaded. ``make_engine`` is ``open_engine`` or a
    wrapper of it. ``with_key`` requests the stage's ``weights_key``. Raise the errors of
    ``open_engine`` and ``load_weights``, and ``ModelFileError`` if a file has changed since
    ``tensors`` was opened. After an error nothing is left open.
    """
    if plan.size.backend != unit.backend:
        raise ValueError(f"planned for {plan.size.backend}, but loaded on {unit.unit_id}")
    if plan.size.is_mapped != (packed is not None):
        raise ValueError("weights are packed if and only if they are planned to be mapped")
    size = plan.size
    config, shard = description.config, plan.shard
    if shard.start_layer < shard.end_layer:
        ropes = rope_tables(config, size.context_tokens)
        program = build_program(config, shard, context_tokens=size.context_tokens, ropes=ropes)
    else:
        program = program_to_count(config, shard, size.context_tokens)
    engine = make_engine(
        unit,
        program,
        num_blocks=size.num_blocks,
        num_states=size.num_states,
        max_step_tokens=size.max_step_tokens,
        num_threads=size.num_threads,
        arithmetic=size.arithmetic,
        pool=pool,
    )
    read_before = tensors.num_bytes_read
    try:
        key = weights_key(description, tensors, plan) if with_key else None
        if packed is not None:
            report = _map_weights(engine, packed)
        else:
            announce(description, tensors, program)
            report = load_weights(
                program,
                canonical_source(description, tensors, program, dequantize=dequantize),
                engine.sink(),
                convert=convert_on(pool),
                quantization=size.quantization,
                path=description.files.label,
                on_progress=on_progress,
            )
            tensors.check_unchanged()
        if on_warm_up is not None:
            on_warm_up()
        engine.warm_up()
    except BaseException:
        engine.close()
        raise
    report = dataclasses.replace(
        report,
        read_bytes=tensors.num_bytes_read - read_before,
        weights=plan.memory.weights,
        remarks=plan.remarks,
    )
    return LoadedStage(
        engine=engine, program=program, packed=packed, report=report, weights_key=key
    )


def _map_weights(engine: LoadableEngine, packed: PackedWeights) -> LoadReport:
    if not isinstance(engine, NativeEngine):
        raise TypeError("only the native engine supports memory-mapped weights")
    started = time.monotonic()
    for tensor in packed.layout.tensors:
        data = np.frombuffer(packed.bytes_of(tensor), dtype=np.uint8)
        engine.map_weight(tensor.info, data)
    seconds = time.monotonic() - started
    return LoadReport(read_bytes=0, seconds=seconds, weights=())
