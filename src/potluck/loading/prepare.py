"""Plan the stages of a model, check them against the available memory, and load them.

Workers and in-process models both use this. Importing this module needs the compiled core.
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
from potluck.engines.native.pool import make_pool
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
    """Plans one stage: ``plan_stage``, or a function that adds the memory of its process."""

    def __call__(
        self,
        profile: ModelProfile,
        shard: Shard,
        size: StageSize,
        *,
        cost: EngineCost | None = None,
    ) -> StagePlan:
        """Return the plan of ``shard``. Raise the errors of ``plan_stage``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The stages of one model in one process, their unit, and their memory requirements.

    ``memory`` is the total.
    """

    profile: ModelProfile
    unit: UnitAddress
    stages: tuple[StagePlan, ...]
    size: StageSize
    memory: MemoryPlan

    @property
    def product_formats(self) -> frozenset[str]:
        """The product formats of all stages (see ``StagePlan``)."""
        return frozenset().union(*(stage.product_formats for stage in self.stages))

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shards of all stages, in order."""
        return tuple(stage.shard for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStages:
    """The loaded stages, whose engines the owner must close, and their plan.

    ``read_bytes`` were read from the model's files, including headers.
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
    """Return the plan of the stages on ``unit``, whether or not they fit.

    Raise the errors of ``plan_one``.
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

    Raise ``InsufficientMemoryError`` if they do not fit; its message begins with ``because`` and
    suggests a size that would. Raise the errors of ``plan_one``.
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
    """Create the engine of every planned stage, load or map its weights, and warm it up.

    Files that are only on a hub are downloaded first. ``room`` returns the memory that is usable
    when it is called, and ``plan_one`` is the function with which the stages were planned. If
    weights should be mapped but ``cache`` cannot store them, they are loaded instead if there is
    enough memory, with a warning and an updated plan in the result. See ``load_stage`` for
    ``make_engine`` and ``with_key``.

    ``on_fetch`` and then ``on_progress`` are called with the bytes done and the total bytes, and
    so is ``on_warm_up`` whenever the weights of a stage are loaded. Raise the errors of
    ``open_weights``, ``packed_weights`` and ``load_stage``, and ``InsufficientMemoryError`` if
    weights can be neither mapped nor loaded. After an error nothing is left open.
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
                    because=f"weights cannot be memory-mapped ({error}): ",
                )
                _log.warning("weights are loaded instead of memory-mapped: %s", error)
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
    """Return callbacks that combine the progress of all stages, which load in sequence."""
    total = sum(stage.read_bytes for stage in plan.stages)
    starts = accumulate((stage.read_bytes for stage in plan.stages), initial=0)

    def of_stage(start: int) -> Progress | None:
        if on_progress is None:
            return None
        return lambda done, _: on_progress(start + done, total)

    return [of_stage(start) for start, _ in zip(starts, plan.stages, strict=False)]
