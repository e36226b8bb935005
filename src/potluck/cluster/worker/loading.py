"""Loading one stage in its worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from potluck.catalog import describe_model, open_tensors
from potluck.cluster.worker.messages import Load
from potluck.cluster.worker.plan import plan_worker
from potluck.engines.native import choose_isa, make_pool
from potluck.loading import LoadedStage, StageSize, load_stage, require_memory
from potluck.probe.memory import available_memory, held_bytes
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.program import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedShare:
    """A stage, the plan that it was loaded by, and what that took."""

    stage: LoadedStage
    memory: MemoryPlan
    read_bytes: int
    seconds: float


def load_for(load: Load, on_progress: Callable[[int, int], None]) -> LoadedShare:
    """Make the engine of ``load`` and fill it.

    Raises a ``PotluckError``, also when the memory does not suffice; nothing is left open then.
    """
    started = time.monotonic()
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
    )
    with closing(open_tensors(description.files)) as tensors:

        def count(size: StageSize) -> MemoryPlan:
            return plan_worker(description, tensors, shard, size).memory

        plan = plan_worker(description, tensors, shard, size)
        require_memory(plan.memory, _available(), size, count)
        stage = load_stage(
            description,
            tensors,
            plan,
            pool=make_pool(load.num_threads),
            isa=choose_isa(load.isa),
            on_progress=on_progress,
        )
        return LoadedShare(
            stage=stage,
            memory=plan.memory,
            read_bytes=tensors.num_bytes_read,
            seconds=time.monotonic() - started,
        )


def _available() -> MemoryLimit:
    """What this process may hold: what it may still take and what it has, which plans count too."""
    free = available_memory()
    return MemoryLimit(bytes=free.bytes + held_bytes(), reason=free.reason)
