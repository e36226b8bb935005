"""How placement counts the cost of a model, independently of files and engines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from potluck.placement.divided_work import DividedWork
from potluck.placement.work import ModelWork
from potluck.types.abilities import BackendAbilities
from potluck.types.choices import Quantization
from potluck.types.program import Shard
from potluck.types.stage import StagePlan, StageSize

CountStage = Callable[[Shard, StageSize], StagePlan]
"""Counts the memory of a stage on a unit of the size's backend, exactly as its worker will.

Raises the ``EngineError``, ``ModelFileError`` or ``UnsupportedModelError`` of a stage that the
backend cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """One model, counted for units of every backend.

    ``can_cut_before`` is that of the model's configuration. ``check_backend`` raises
    ``UnsupportedModelError`` for a backend that cannot compute the model with its quantization, and
    ``EngineError`` for a backend that this node cannot count; so does ``abilities``, which returns
    the abilities of a backend. ``work`` returns what the parts of the model read and compute on
    units of a size's backend, and ``divided`` what the members of a group with given shares
    compute; None if no group can hold the model.
    """

    num_layers: int
    can_cut_before: Callable[[int], bool]
    stage: CountStage
    work: Callable[[StageSize], ModelWork]
    check_backend: Callable[[str, Quantization], None]
    abilities: Callable[[str], BackendAbilities]
    divided: Callable[[StageSize, tuple[int, ...]], DividedWork] | None = None
