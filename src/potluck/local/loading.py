"""Planning and loading the stages of a model in this process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

from potluck.catalog import ModelDescription, open_weights, read_profile
from potluck.engines.arithmetic_choice import arithmetic_of_weights, arithmetic_on
from potluck.engines.native import make_pool
from potluck.engines.opening import module_named
from potluck.formats.source import FileTensorSource
from potluck.kernels.runner import ThreadPool
from potluck.loading import (
    NotPackedError,
    PackedCache,
    PackedWeights,
    Room,
    StagePlan,
    StageSize,
    combined,
    plan_stage,
    require_memory,
)
from potluck.loading.load import LoadedStage, load_stage
from potluck.loading.pack import packed_weights
from potluck.local.stages import split_evenly
from potluck.local.units import LocalUnit
from potluck.placement.sizes import stronger_quantizations
from potluck.probe.cores import default_num_threads
from potluck.probe.memory import available_memory
from potluck.scheduling import MAX_STEP_TOKENS
from potluck.scheduling.blocks import blocks_for
from potluck.types.arithmetic import ArithmeticChoice
from potluck.types.memory import MemoryPlan
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.quantization import Quantization
from potluck.types.ranges import require_number
from potluck.weights.load import Progress

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """The stages of a model in this process, and the unit that computes them."""

    stages: tuple[StagePlan, ...]
    size: StageSize
    memory: MemoryPlan
    unit: LocalUnit
    profile: ModelProfile

    @property
    def product_formats(self) -> frozenset[str]:
        """Of all stages (see ``StagePlan``)."""
        return _product_formats(self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedStages:
    """The stages, whose engines are the owner's to close, and the plan that they were made by."""

    stages: tuple[LoadedStage, ...]
    plan: LoadPlan


def plan_load(
    description: ModelDescription,
    *,
    num_stages: int,
    context_tokens: int,
    cache_tokens: int,
    num_threads: int | None,
    unit: LocalUnit,
    quantization: Quantization | None = Quantization.NONE,
    is_mapped: bool = False,
    arithmetic: ArithmeticChoice = ArithmeticChoice.EXACT,
) -> LoadPlan:
    """Cut the model and count its bytes on ``unit``; nothing is loaded.

    ``quantization`` None takes the most precise one that fits. Weights that are mapped take no
    memory. Arithmetic is fast only where ``unit`` has it. Raises ``InsufficientMemoryError`` if it
    would not fit, and ``ParameterError``.
    """
    if num_threads is not None:
        require_number("threads", num_threads)
    shards = split_evenly(description.config.num_layers, num_stages)
    size = StageSize(
        context_tokens=context_tokens,
        num_blocks=blocks_for(cache_tokens),
        max_step_tokens=min(MAX_STEP_TOKENS, context_tokens),
        num_threads=num_threads or default_num_threads(),
        quantization=quantization or Quantization.NONE,
        is_mapped=is_mapped,
        arithmetic=arithmetic_on(unit.address, arithmetic),
        backend=unit.address.backend,
        is_on_device=unit.memory is not None,
    )
    room = Room(host=available_memory(), device=unit.memory)
    profile = read_profile(description)

    def count(size: StageSize) -> MemoryPlan:
        return combined([each.memory for each in _plan(profile, shards, size, unit)])

    if quantization is None:
        sizes = [size, *stronger_quantizations(size)]
        fitting = (each for each in sizes if room.holds(count(each)))
        size = next(fitting, sizes[-1])
    stages = _plan(profile, shards, size, unit)
    memory = combined([stage.memory for stage in stages])
    of_weights = arithmetic_of_weights(size.arithmetic, _product_formats(stages))
    if of_weights is not size.arithmetic:
        size = replace(size, arithmetic=of_weights)
        stages = _plan(profile, shards, size, unit)
        memory = combined([stage.memory for stage in stages])
    require_memory(memory, room, size, count)
    return LoadPlan(stages=stages, size=size, memory=memory, unit=unit, profile=profile)


def _product_formats(stages: Sequence[StagePlan]) -> frozenset[str]:
    return frozenset().union(*(stage.product_formats for stage in stages))


def _in_memory(plan: LoadPlan, because: str) -> LoadPlan:
    """The same without mapped weights; ``InsufficientMemoryError`` if that does not fit."""
    shards = [stage.shard for stage in plan.stages]
    size = replace(plan.size, is_mapped=False)
    profile = plan.profile

    def count(size: StageSize) -> MemoryPlan:
        return combined([each.memory for each in _plan(profile, shards, size, plan.unit)])

    memory = count(size)
    room = Room(host=available_memory(), device=plan.unit.memory)
    require_memory(memory, room, size, count, because=because)
    stages = _plan(profile, shards, size, plan.unit)
    return replace(plan, stages=stages, size=size, memory=memory)


def _plan(
    profile: ModelProfile,
    shards: Sequence[Shard],
    size: StageSize,
    unit: LocalUnit,
) -> tuple[StagePlan, ...]:
    cost = module_named(unit.address.engine).COST
    return tuple(plan_stage(profile, shard, size, cost=cost) for shard in shards)


def load_stages(
    description: ModelDescription,
    plan: LoadPlan,
    *,
    cache: PackedCache,
    on_progress: Progress | None = None,
    on_fetch: Progress | None = None,
    on_warm_up: Progress | None = None,
) -> LoadedStages:
    """Make every stage's engine, load its weights and warm it up.

    Weights that are to be mapped and that ``cache`` cannot keep are loaded after all, with a
    warning, if they fit into memory: the plan that comes back says so. ``on_fetch`` and then
    ``on_progress`` are called with bytes done and bytes in all, ``on_warm_up`` so whenever a
    stage's weights are in. After an error nothing stays open.
    """
    pool = make_pool(plan.size.num_threads)
    progress = _progress_of(plan, on_progress)
    shards = [stage.shard for stage in plan.stages]
    opened = open_weights(description, shards, on_fetch)
    with closing(opened) as tensors, ExitStack() as on_failure:
        packed: list[PackedWeights] | list[None] = [None] * len(plan.stages)
        if plan.size.is_mapped:
            try:
                packed = _packed(description, tensors, plan, pool, cache, progress)
            except NotPackedError as error:
                because = f"weights cannot be mapped ({error}): "
                plan = _in_memory(plan, because)
                _log.warning("weights are loaded, not mapped: %s", error)
        stages = []
        warming_up = _progress_of(plan, on_warm_up)
        for stage, weights, report, warm in zip(
            plan.stages, packed, progress, warming_up, strict=True
        ):
            loaded = load_stage(
                description,
                tensors,
                stage,
                unit=plan.unit.address,
                pool=pool,
                packed=weights,
                on_progress=report,
                on_warm_up=None if warm is None else partial(warm, stage.read_bytes, 0),
            )
            on_failure.callback(loaded.engine.close)
            stages.append(loaded)
        on_failure.pop_all()
        return LoadedStages(stages=tuple(stages), plan=plan)


def _packed(
    description: ModelDescription,
    tensors: FileTensorSource,
    plan: LoadPlan,
    pool: ThreadPool,
    cache: PackedCache,
    progress: Sequence[Progress | None],
) -> list[PackedWeights]:
    return [
        packed_weights(description, tensors, stage, pool=pool, cache=cache, on_progress=report)
        for stage, report in zip(plan.stages, progress, strict=True)
    ]


def _progress_of(plan: LoadPlan, on_progress: Progress | None) -> list[Progress | None]:
    """Progress of every stage, told as progress of all of them one after another."""
    total = sum(stage.read_bytes for stage in plan.stages)
    starts = accumulate((stage.read_bytes for stage in plan.stages), initial=0)

    def of_stage(start: int) -> Progress | None:
        if on_progress is None:
            return None
        return lambda done, _: on_progress(start + done, total)

    return [of_stage(start) for start, _ in zip(starts, plan.stages, strict=False)]
