"""Loading one stage in its worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from potluck.catalog import describe_model, open_tensors
from potluck.cluster.worker.messages import Load
from potluck.engines.native import choose_isa, make_pool
from potluck.loading import LoadedStage, StageSize, load_stage, plan_stage, require_memory
from potluck.probe.memory import available_memory
from potluck.quantities import format_bytes, format_seconds
from potluck.types.memory import MemoryPlan
from potluck.types.program import Shard

_log = logging.getLogger(__name__)


def load_for(load: Load, on_progress: Callable[[int, int], None]) -> LoadedStage:
    """Make the engine of ``load`` and fill it.

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
    size = StageSize(
        context_tokens=spec.context_tokens,
        num_blocks=spec.num_blocks,
        max_step_tokens=spec.max_step_tokens,
        num_threads=load.num_threads,
        quantization=spec.quantization,
    )
    with closing(open_tensors(description.files)) as tensors:

        def count(size: StageSize) -> MemoryPlan:
            return plan_stage(description, tensors, shard, size).memory

        plan = plan_stage(description, tensors, shard, size)
        require_memory(plan.memory, available_memory(), size, count)
        loaded = load_stage(
            description,
            tensors,
            plan,
            pool=make_pool(load.num_threads),
            isa=choose_isa(load.isa),
            on_progress=on_progress,
        )
    report = loaded.report
    _log.info("read %s in %s", format_bytes(report.read_bytes), format_seconds(report.seconds))
    for line in report.remark_lines():
        _log.warning("%s", line)
    return loaded
