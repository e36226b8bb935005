"""Loading one stage in its worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from potluck.catalog import canonical_source, describe_model, open_headers, open_weights
from potluck.cluster.worker.messages import Load
from potluck.engines.native import (
    NativeEngine,
    cache_bytes,
    choose_isa,
    make_pool,
    scratch_bytes,
)
from potluck.models.program import build_program
from potluck.models.rope import rope_table, rope_table_bytes
from potluck.probe.memory import available_memory
from potluck.types.program import Program, Shard
from potluck.weights.budget import require_memory, weights_bytes
from potluck.weights.load import load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStage:
    """An engine with its weights, and what it runs."""

    engine: NativeEngine
    program: Program
    weights_bytes: int


def load_stage(
    load: Load,
    on_progress: Callable[[int, int], None],
    on_fetch: Callable[[int, int], None],
) -> LoadedStage:
    """Make the engine of ``load`` and fill it, from files that are fetched if need be.

    Raises a ``PotluckError``, also when the memory does not suffice; nothing is left open then.
    """
    spec = load.spec
    description = describe_model(spec.model)
    shard = Shard(
        start_layer=spec.start_layer,
        end_layer=spec.end_layer,
        num_layers=description.config.num_layers,
        has_embedding=spec.index == 0,
        has_head=spec.index == spec.num_stages - 1,
    )
    program = build_program(
        description.config,
        shard,
        context_tokens=spec.context_tokens,
        rope=rope_table(description.config, spec.context_tokens),
    )
    path = str(description.files.path)
    with closing(open_headers(description, [shard])) as headers:
        source = canonical_source(description, headers, program)
        num_bytes = weights_bytes(program, source, path=path)
    require_memory(
        {
            "weights": num_bytes,
            # One here, and one that the stage keeps.
            "rope tables": 2 * rope_table_bytes(description.config, spec.context_tokens),
            "cache": cache_bytes(program, spec.num_blocks),
            "scratch": scratch_bytes(program, spec.max_step_tokens, num_threads=load.num_threads),
        },
        available_memory(),
    )
    with closing(open_weights(description, [shard], on_fetch)) as tensors:
        source = canonical_source(description, tensors, program)
        engine = NativeEngine(
            program,
            num_blocks=spec.num_blocks,
            max_step_tokens=spec.max_step_tokens,
            pool=make_pool(load.num_threads),
            isa=choose_isa(load.isa),
        )
        load_weights(program, source, engine.sink(), path=path, on_progress=on_progress)
    return LoadedStage(engine=engine, program=program, weights_bytes=num_bytes)
