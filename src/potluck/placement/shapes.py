"""The shapes of a model under which nodes store their measurements of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from potluck.errors import EngineError, UnsupportedModelError
from potluck.loading.sizes import stronger_quantizations
from potluck.placement.counting import Counting
from potluck.types.arithmetic import Arithmetic
from potluck.types.stage import StageSize


def shapes_of(counting: Counting, size: StageSize, backends: Collection[str]) -> tuple[str, ...]:
    """Return the shapes that a plan may need: in every quantization and arithmetic.

    There are none for backends that this node cannot count or that cannot compute the model.
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
