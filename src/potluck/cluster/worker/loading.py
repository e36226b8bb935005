"""Loading one stage in its worker."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from potluck.catalog import describe_model, open_tensors
from potluck.cluster.worker.messages import Load
from potluck.engines.native import choose_isa, make_pool
from potluck.loading import (
    LoadedStage,
    NotPackedError,
    PackedCache,
    StageSize,
    default_packed_folder,
    load_stage,
    packed_weights,
    plan_stage,
    require_memory,
)
from potluck.probe.memory import available_memory
from potluck.types.memory import MemoryPlan
from potluck.types.program import Shard

_log = logging.getLogger(__name__)


def load_for(load: Load, on_progress: Callable[[int, int], None]) -> LoadedStage:
    """Make the engine of ``load`` and fill it.

    Weights that are to be mapped and cannot be kept packed are loaded, if they fit. Raises a
    ``PotluckError``, also when the memory does not suffice; nothing is left open then.
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
    size = StageSize(
        context_tokens=spec.context_tokens,
        num_blocks=spec.num_blocks,
        max_step_tokens=spec.max_step_tokens,
        num_threads=load.num_threads,
        quantization=spec.quantization,
        is_mapped=spec.is_mapped,
    )
    with closing(open_tensors(description.files)) as tensors:

        def count(size: StageSize) -> MemoryPlan:
            return plan_stage(description, tensors, shard, size).memory

        plan = plan_stage(description, tensors, shard, size)
        require_memory(plan.memory, available_memory(), size, count)
        pool = make_pool(load.num_threads)
        packed = None
        if size.is_mapped:
            cache = PackedCache(default_packed_folder(os.environ), load.packed_cache_bytes)
            try:
                packed = packed_weights(
                    description, tensors, plan, pool=pool, cache=cache, on_progress=on_progress
                )
            except NotPackedError as error:
                size = replace(size, is_mapped=False)
                plan = plan_stage(description, tensors, shard, size)
                because = f"weights cannot be mapped ({error}): "
                require_memory(plan.memory, available_memory(), size, count, because=because)
                _log.warning("weights are loaded, not mapped: %s", error)
        return load_stage(
            description,
            tensors,
            plan,
            pool=pool,
            isa=choose_isa(load.isa),
            packed=packed,
            on_progress=on_progress,
        )
