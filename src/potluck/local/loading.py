"""Plan and load the stages of a model in this process."""

from __future__ import annotations

from dataclasses import replace

from potluck.catalog import ModelDescription, read_profile
from potluck.engines.arithmetic_choice import arithmetic_of_weights, arithmetic_on
from potluck.loading import PackedCache, Room, StageSize
from potluck.loading.prepare import (
    LoadPlan,
    PreparedStages,
    count_stages,
    plan_stages,
    prepare_stages,
)
from potluck.loading.sizes import stronger_quantizations
from potluck.local.stages import split_evenly
from potluck.local.units import LocalUnit
from potluck.probe.machine.cores import own_usable_cores
from potluck.probe.machine.memory import available_memory
from potluck.scheduling.blocks import blocks_for
from potluck.scheduling.frame_limits import MAX_STEP_TOKENS
from potluck.types.choices import ArithmeticChoice, Quantization
from potluck.types.ranges import require_number
from potluck.weights.load import Progress


def plan_load(
    description: ModelDescription,
    *,
    num_stages: int,
    context_tokens: int,
    cache_tokens: int,
    num_threads: int | None,
    unit: LocalUnit,
    num_states: int = 0,
    quantization: Quantization | None = Quantization.NONE,
    is_mapped: bool = False,
    arithmetic: ArithmeticChoice = ArithmeticChoice.EXACT,
) -> LoadPlan:
    """Divide the model into stages, and compute their memory on ``unit``; nothing is loaded.

    A ``quantization`` of None uses the most precise one that fits. Mapped weights need no memory.
    Fast arithmetic is only used if ``unit`` supports it. Raise ``InsufficientMemoryError`` if the
    model does not fit, and ``ParameterError``.
    """
    if num_threads is not None:
        require_number("threads", num_threads)
    shards = split_evenly(
        description.config.num_layers, num_stages, description.config.can_cut_before
    )
    size = StageSize(
        context_tokens=context_tokens,
        num_blocks=blocks_for(cache_tokens),
        num_states=num_states,
        max_step_tokens=min(MAX_STEP_TOKENS, context_tokens),
        num_threads=num_threads or own_usable_cores().max_threads,
        quantization=quantization or Quantization.NONE,
        is_mapped=is_mapped,
        arithmetic=arithmetic_on(unit.address, arithmetic),
        backend=unit.address.backend,
        is_on_device=unit.memory is not None,
    )
    room = _room(unit)
    profile = read_profile(description)

    def count(size: StageSize) -> LoadPlan:
        return count_stages(profile, shards, size, unit.address)

    if quantization is None:
        sizes = [size, *stronger_quantizations(size)]
        fitting = (each for each in sizes if room.holds(count(each).memory))
        size = next(fitting, sizes[-1])
    of_weights = arithmetic_of_weights(size.arithmetic, count(size).product_formats)
    size = replace(size, arithmetic=of_weights)
    return plan_stages(profile, shards, size, unit.address, room)


def load_stages(
    description: ModelDescription,
    plan: LoadPlan,
    *,
    unit: LocalUnit,
    cache: PackedCache,
    on_progress: Progress | None = None,
    on_fetch: Progress | None = None,
    on_warm_up: Progress | None = None,
) -> PreparedStages:
    """Load the stages of ``plan``, which is for ``unit``. See ``prepare_stages``."""
    return prepare_stages(
        description,
        plan,
        room=lambda: _room(unit),
        cache=cache,
        on_fetch=on_fetch,
        on_progress=on_progress,
        on_warm_up=on_warm_up,
    )


def _room(unit: LocalUnit) -> Room:
    return Room(host=available_memory(), device=unit.memory)
