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

from potluck import kernels
from potluck.catalog import ModelDescription, canonical_source, open_weights
from potluck.catalog.needs import announce
from potluck.engines.backends import module_named, open_engine
from potluck.engines.dequantize import dequantize
from potluck.engines.loading.load import LoadedStage, load_stage
from potluck.engines.loading.packed_cache import NotPackedError, PackedCache, PackedWeights, Write
from potluck.engines.loading.packed_key import packed_key
from potluck.engines.loading.plan import plan_stage
from potluck.engines.loading.sizes import Room, combined, require_memory
from potluck.engines.native.engine import convert_on, loaded_bytes
from potluck.engines.native.packing import PackingSink, packed_info
from potluck.engines.native.pool import ThreadPool, make_pool
from potluck.formats.packed import packed_layout
from potluck.formats.source import FileTensorSource
from potluck.models.program import program_to_count
from potluck.types.engine import EngineCost, LoadableEngine
from potluck.types.memory import MemoryPlan
from potluck.types.profile import ModelProfile
from potluck.types.program import Shard
from potluck.types.stage import StagePlan, StageSize
from potluck.types.unit import UnitAddress
from potluck.weights.load import Progress, check_weights, load_weights, loaded_weights

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


def packed_weights(
    description: ModelDescription,
    tensors: FileTensorSource,
    plan: StagePlan,
    *,
    pool: ThreadPool,
    cache: PackedCache,
    on_progress: Progress | None = None,
) -> PackedWeights:
    """Map the packed file of a planned stage, creating it first if there is none.

    Creating it needs the memory that ``plan`` has for staging. Raise ``NotPackedError`` if it
    cannot be stored, and the errors of reading the model.
    """
    path = description.files.label
    quantization = plan.size.quantization
    program = program_to_count(description.config, plan.shard, plan.size.context_tokens)
    source = canonical_source(description, tensors, program, dequantize=dequantize)
    stored = check_weights(program, source, path=path)
    loaded = [packed_info(info) for info in loaded_weights(program, stored, quantization)]
    key = packed_key(description, tensors, program, loaded)
    layout = packed_layout(
        [(info, loaded_bytes(info)) for info in loaded],
        key=key,
        panel_layout=kernels.PANEL_LAYOUT,
    )
    offsets = {tensor.info.name: tensor.offset for tensor in layout.tensors}

    def make(write: Write) -> None:
        announce(description, tensors, program)
        load_weights(
            program,
            source,
            PackingSink(pool, lambda name, offset, data: write(offsets[name] + offset, data)),
            convert=convert_on(pool),
            quantization=quantization,
            path=path,
            on_progress=on_progress,
        )
        tensors.check_unchanged()

    weights = cache.weights(key, layout, make)
    if on_progress is not None:
        on_progress(plan.read_bytes, plan.read_bytes)
    return weights
