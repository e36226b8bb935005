"""How placement has a model counted, without knowing files or engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from potluck.placement.work import ModelWork
from potluck.types.abilities import BackendAbilities
from potluck.types.program import Shard
from potluck.types.quantization import Quantization
from potluck.types.stage import StagePlan, StageSize

CountStage = Callable[[Shard, StageSize], StagePlan]
"""Counts what a stage takes on a unit of its size's backend, as its worker will.

Raises the ``EngineError``, ``ModelFileError`` or ``UnsupportedModelError`` of a stage that cannot
be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """One model, as it is counted for units of every backend.

    ``can_cut_before`` is that of the model's configuration. ``check_backend`` raises
    ``UnsupportedModelError`` for a backend that does not compute the model as it is quantized, and
    ``EngineError`` for one that this node cannot count; the latter is also raised by ``abilities``,
    which are those of a backend. ``work`` is what the parts of the model read and compute on units
    of a size's backend.
    """

    num_layers: int
    can_cut_before: Callable[[int], bool]
    stage: CountStage
    work: Callable[[StageSize], ModelWork]
    check_backend: Callable[[str, Quantization], None]
    abilities: Callable[[str], BackendAbilities]
