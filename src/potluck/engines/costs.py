"""What engines take, by the name of their backend. Importable where no backend is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from potluck.engines.backends import BACKENDS, engine_module
from potluck.engines.opening import module_named

if TYPE_CHECKING:
    from potluck.types.engine import EngineCost
    from potluck.types.hardware import BackendSpec

CostOf = Callable[[str], "EngineCost"]
"""``cost_of`` with a table of backends."""


def cost_of(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> EngineCost:
    """What engines of ``backend`` take, on this node or another.

    Raises ``EngineError`` for a backend that this node does not know, and for ``native`` where the
    compiled core cannot be loaded.
    """
    return module_named(engine_module(backend, backends)).COST
