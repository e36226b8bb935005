"""What engines can compute and what they take, by the name of their backend.

Importable where no backend is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from potluck.engines.backends import BACKENDS, engine_module
from potluck.engines.opening import module_named
from potluck.errors import UnsupportedModelError
from potluck.types.unit import NATIVE

if TYPE_CHECKING:
    from potluck.types.engine import EngineCost
    from potluck.types.hardware import BackendSpec
    from potluck.types.program import Program
    from potluck.types.tensor import TensorFormat

CostOf = Callable[[str], "EngineCost"]
"""``cost_of`` with a table of backends."""


def cost_of(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> EngineCost:
    """What engines of ``backend`` take, on this node or another.

    Raises ``EngineError`` for a backend that this node does not know, and for ``native`` where the
    compiled core cannot be loaded.
    """
    return module_named(engine_module(backend, backends)).COST


def check_backend(
    backend: str, cost: EngineCost, program: Program, formats: Iterable[TensorFormat] = ()
) -> None:
    """Raise ``UnsupportedModelError`` if engines of ``backend`` do not compute ``program``.

    ``formats`` are those that its matrices are loaded in. ``missing`` names the ops and what of
    them is not computed, or the formats.
    """
    if missing := cost.abilities.missing_features(program):
        problem = f"does not compute {', '.join(missing)}"
    elif missing := cost.abilities.missing_formats(formats):
        problem = f"does not compute with weights in {', '.join(missing)}"
    else:
        return
    raise UnsupportedModelError(
        f"the backend {backend} {problem}",
        missing=missing,
        hint=f"use the CPU: --backend {NATIVE} of run and bench, or of a node's potluck up",
    )
