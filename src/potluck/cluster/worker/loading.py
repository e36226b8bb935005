"""Loading one stage in its worker."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace

from potluck.catalog import describe_model, open_weights, read_profile
from potluck.cluster.worker.messages import Load
from potluck.cluster.worker.plan import plan_worker
from potluck.engines.native import make_pool
from potluck.engines.opening import module_named, open_engine
from potluck.loading import (
    NotPackedError,
    PackedCache,
    Room,
    StageSize,
    default_packed_folder,
    require_memory,
)
from potluck.loading.load import LoadedStage, load_stage
from potluck.loading.pack import packed_weights
from potluck.probe.memory import available_memory, held_bytes
from potluck.quantities import format_bytes, format_seconds
from potluck.types.engine import LoadableEngine
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.program import Shard
from potluck.weights.report import remark_lines

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedShare:
    """A stage, the plan that it was loaded by, and what that took."""

    stage: LoadedStage
    memory: MemoryPlan
    read_bytes: int
    seconds: float


def load_for(
    load: Load,
    on_progress: Callable[[int, int], None],
    on_fetch: Callable[[int, int], None],
    on_warm_up: Callable[[], None],
    make_engine: Callable[..., LoadableEngine] = open_engine,
) -> LoadedShare:
    """Make the engine of ``load`` and fill it, from files that are fetched if need be.

    Weights that are to be mapped and cannot be kept packed are loaded, if they fit. Raises a
    ``PotluckError``, also when the memory does not suffice; nothing is left open then.
    """
    started = time.monotonic()
    spec = load.spec
    description = describe_model(spec.model)
    shard = Shard(
        start_layer=spec.start_layer,
        end_layer=spec.end_layer,
        num_layers=description.config.num_layers,
        has_embedding=spec.has_embedding,
        has_head=spec.has_head,
    )
    size = StageSize(
        context_tokens=spec.context_tokens,
        num_blocks=spec.num_blocks,
        max_step_tokens=spec.max_step_tokens,
        num_threads=load.num_threads,
        quantization=spec.quantization,
        is_mapped=spec.is_mapped,
        arithmetic=spec.arithmetic,
        backend=load.unit.backend,
        is_on_device=load.device_free_bytes is not None,
    )
    cost = module_named(load.unit.engine).COST
    profile = read_profile(description, [shard])

    def count(size: StageSize) -> MemoryPlan:
        return plan_worker(profile, shard, size, cost=cost).memory

    plan = plan_worker(profile, shard, size, cost=cost)
    require_memory(plan.memory, _room(load), size, count)
    with closing(open_weights(description, [shard], on_fetch)) as tensors:
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
                plan = plan_worker(profile, shard, size, cost=cost)
                because = f"weights cannot be mapped ({error}): "
                require_memory(plan.memory, _room(load), size, count, because=because)
                _log.warning("weights are loaded, not mapped: %s", error)
        stage = load_stage(
            description,
            tensors,
            plan,
            unit=load.unit,
            pool=pool,
            packed=packed,
            on_progress=on_progress,
            on_warm_up=on_warm_up,
            make_engine=make_engine,
        )
        read_bytes = tensors.num_bytes_read
    report = stage.report
    _log.info("read %s in %s", format_bytes(report.read_bytes), format_seconds(report.seconds))
    for line in remark_lines(plan.remarks):
        _log.info("%s", line)
    return LoadedShare(
        stage=stage,
        memory=plan.memory,
        read_bytes=read_bytes,
        seconds=time.monotonic() - started,
    )


def _room(load: Load) -> Room:
    """What this process may hold: what it may still take and what it has, which plans count too."""
    free = available_memory()
    own = load.device_free_bytes
    return Room(
        host=MemoryLimit(bytes=free.bytes + held_bytes(), reason=free.reason),
        device=None if own is None else MemoryLimit(bytes=own, reason="what is free there"),
    )
