"""What engines can compute and what they take, by the name of their backend.

Importable where no backend is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from potluck.engines.backends import BACKENDS, engine_module
from potluck.engines.opening import module_named
from potluck.errors import UnsupportedModelError
from potluck.types.unit import NATIVE

if TYPE_CHECKING:
    from potluck.types.engine import EngineCost
    from potluck.types.hardware import BackendSpec
    from potluck.types.program import Program

CostOf = Callable[[str], "EngineCost"]
"""``cost_of`` with a table of backends."""


def cost_of(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> EngineCost:
    """What engines of ``backend`` take, on this node or another.

    Raises ``EngineError`` for a backend that this node does not know, and for ``native`` where the
    compiled core cannot be loaded.
    """
    return module_named(engine_module(backend, backends)).COST


def check_backend(backend: str, cost: EngineCost, program: Program) -> None:
    """Raise ``UnsupportedModelError`` if engines of ``backend`` do not compute ``program``."""
    if missing := cost.missing(program):
        raise UnsupportedModelError(
            f"the backend {backend} does not compute {', '.join(missing)}",
            missing=missing,
            hint=f"use the CPU: --backend {NATIVE} of run and bench, or of a node's potluck up",
        )
