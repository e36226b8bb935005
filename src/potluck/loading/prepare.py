"""From shards of a model to loaded stages: planned, checked against the memory, made and filled.

Workers and models in one process both load in this way. Importing this module needs the compiled
core.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Protocol

from potluck.catalog import ModelDescription, open_weights
from potluck.engines.native import make_pool
from potluck.engines.opening import module_named, open_engine
from potluck.loading.budget import Room, combined, require_memory
from potluck.loading.load import LoadedStage, load_stage
from potluck.loading.pack import packed_weights
from potluck.loading.packed_cache import NotPackedError, PackedCache, PackedWeights
from potluck.loading.plan import plan_stage
from potluck.types.engine import EngineCost, LoadableEngine
from potluck.types.memory import MemoryPlan
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.stage import StagePlan, StageSize
from potluck.types.unit import UnitAddress
from potluck.weights.load import Progress

_log = logging.getLogger(__name__)


class PlanStage(Protocol):
    """Plans one stage: ``plan_stage``, or a function that adds what its process takes."""

    def __call__(
        self,
        profile: ModelProfile,
        shard: Shard,
        size: StageSize,
        *,
        cost: EngineCost | None = None,
    ) -> StagePlan:
        """Return the plan of ``shard``. Raises as ``plan_stage``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The stages of one model in one process, the unit that computes them, and what they take.

    ``memory`` is what they take together.
    """

    profile: ModelProfile
    unit: UnitAddress
    stages: tuple[StagePlan, ...]
    size: StageSize
    memory: MemoryPlan

    @property
    def product_formats(self) -> frozenset[str]:
        """Of all stages (see ``StagePlan``)."""
        return frozenset().union(*(stage.product_formats for stage in self.stages))

    @property
    def shards(self) -> tuple[Shard, ...]:
        """Of all stages, in their order."""
        return tuple(stage.shard for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStages:
    """The stages, whose engines are the owner's to close, and the plan that they were made by.

    ``read_bytes`` came from the model's files, headers included.
    """

    stages: tuple[LoadedStage, ...]
    plan: LoadPlan
    read_bytes: int


def count_stages(
    profile: ModelProfile,
    shards: Sequence[Shard],
    size: StageSize,
    unit: UnitAddress,
    *,
    plan_one: PlanStage = plan_stage,
) -> LoadPlan:
    """Return what the stages take on ``unit``, whether or not there is room for them.

    Raises as ``plan_one``.
    """
    cost = module_named(unit.engine).COST
    stages = tuple(plan_one(profile, shard, size, cost=cost) for shard in shards)
    memory = combined([stage.memory for stage in stages])
    return LoadPlan(profile=profile, unit=unit, stages=stages, size=size, memory=memory)


def plan_stages(
    profile: ModelProfile,
    shards: Sequence[Shard],
    size: StageSize,
    unit: UnitAddress,
    room: Room,
    *,
    plan_one: PlanStage = plan_stage,
    because: str = "",
) -> LoadPlan:
    """Return a plan of stages that fit into ``room`` together. Nothing is loaded.

    Raise ``InsufficientMemoryError`` if they do not fit: its message begins with ``because`` and
    says what would. Raises as ``plan_one`` too.
    """

    def count(size: StageSize) -> LoadPlan:
        return count_stages(profile, shards, size, unit, plan_one=plan_one)

    plan = count(size)
    require_memory(plan.memory, room, size, lambda other: count(other).memory, because=because)
    return plan


def prepare_stages(
    description: ModelDescription,
    plan: LoadPlan,
    *,
    room: Callable[[], Room],
    cache: PackedCache,
    plan_one: PlanStage = plan_stage,
    make_engine: Callable[..., LoadableEngine] = open_engine,
    on_fetch: Progress | None = None,
    on_progress: Progress | None = None,
    on_warm_up: Progress | None = None,
    with_key: bool = False,
) -> PreparedStages:
    """Make the engine of every planned stage, stream or map its weights, and warm it up.

    Files that are only on a hub are fetched first. ``room`` returns what may be used when it is
    called, ``plan_one`` is what the stages were planned with. Weights that are to be mapped and
    that ``cache`` cannot keep are loaded instead if there is room for them, with a warning; the
    plan that is returned says so. ``make_engine``, ``with_key``: see ``load_stage``.

    ``on_fetch`` and then ``on_progress`` are called with bytes done and bytes in all, and so is
    ``on_warm_up`` whenever the weights of a stage are in. Raises as ``open_weights``,
    ``packed_weights`` and ``load_stage``, and ``InsufficientMemoryError`` for weights that cannot
    be mapped. After an error nothing stays open.
    """
    progress = _progress_of(plan, on_progress)
    warming_up = _progress_of(plan, on_warm_up)
    opened = open_weights(description, plan.shards, on_fetch)
    with closing(opened) as tensors, ExitStack() as on_failure:
        pool = make_pool(plan.size.num_threads)
        packed: Sequence[PackedWeights | None] = [None] * len(plan.stages)
        if plan.size.is_mapped:
            try:
                packed = [
                    packed_weights(
                        description, tensors, stage, pool=pool, cache=cache, on_progress=report
                    )
                    for stage, report in zip(plan.stages, progress, strict=True)
                ]
            except NotPackedError as error:
                plan = plan_stages(
                    plan.profile,
                    plan.shards,
                    replace(plan.size, is_mapped=False),
                    plan.unit,
                    room(),
                    plan_one=plan_one,
                    because=f"weights cannot be mapped ({error}): ",
                )
                _log.warning("weights are loaded, not mapped: %s", error)
        stages = []
        for stage, weights, report, warm in zip(
            plan.stages, packed, progress, warming_up, strict=True
        ):
            loaded = load_stage(
                description,
                tensors,
                stage,
                unit=plan.unit,
                pool=pool,
                packed=weights,
                on_progress=report,
                on_warm_up=None if warm is None else partial(warm, stage.read_bytes, 0),
                make_engine=make_engine,
                with_key=with_key,
            )
            on_failure.callback(loaded.engine.close)
            stages.append(loaded)
        read_bytes = tensors.num_bytes_read
        on_failure.pop_all()
        return PreparedStages(stages=tuple(stages), plan=plan, read_bytes=read_bytes)


def _progress_of(plan: LoadPlan, on_progress: Progress | None) -> list[Progress | None]:
    """Return the progress of every stage, told as that of all of them one after another."""
    total = sum(stage.read_bytes for stage in plan.stages)
    starts = accumulate((stage.read_bytes for stage in plan.stages), initial=0)

    def of_stage(start: int) -> Progress | None:
        if on_progress is None:
            return None
        return lambda done, _: on_progress(start + done, total)

    return [of_stage(start) for start, _ in zip(starts, plan.stages, strict=False)]
