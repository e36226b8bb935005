"""How placement counts the cost of a model, independently of files and engines."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from potluck.errors import EngineError, UnsupportedModelError
from potluck.loading.sizes import stronger_quantizations
from potluck.placement.divided_work import DividedWork
from potluck.placement.work import ModelWork
from potluck.types.arithmetic import Arithmetic
from potluck.types.backend import BackendAbilities
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


def shapes_of(counting: Counting, size: StageSize, backends: Collection[str]) -> tuple[str, ...]:
    """Return the shapes that a plan may need: in every quantization and arithmetic.

    There are none for backends that this node cannot count or that cannot compute the model.

    Nodes store their measurements of the model under these shapes.
    """
    shapes: set[str] = set()
    for backend in backends:
        for each in (size, *stronger_quantizations(size)):
            try:
                counting.check_backend(backend, each.quantization)
                work = counting.work(replace(each, backend=backend))
            except (EngineError, UnsupportedModelError):
                continue
            has_several = counting.abilities(backend).has_arithmetics
            arithmetics = Arithmetic if has_several else (Arithmetic.EXACT,)
            shapes.update(work.shape(arithmetic) for arithmetic in arithmetics)
    return tuple(sorted(shapes))
