"""What engines support and what memory they need, by backend name.

Importable without any backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from potluck.engines.backends import BACKENDS, engine_module
from potluck.engines.opening import module_named
from potluck.errors import UnsupportedModelError
from potluck.types.unit import NATIVE

if TYPE_CHECKING:
    from potluck.types.backend import BackendSpec
    from potluck.types.engine import EngineCost
    from potluck.types.program import Program
    from potluck.types.tensor import TensorFormat

CostOf = Callable[[str], "EngineCost"]
"""``cost_of`` with a table of backends."""


def cost_of(backend: str, backends: Sequence[BackendSpec] = BACKENDS) -> EngineCost:
    """Return the memory requirements of engines of ``backend``, on this node or another.

    Raises ``EngineError`` for an unknown backend, and for ``native`` if the compiled core cannot be
    loaded.
    """
    return module_named(engine_module(backend, backends)).COST


def check_backend(
    backend: str, cost: EngineCost, program: Program, formats: Iterable[TensorFormat] = ()
) -> None:
    """Raise ``UnsupportedModelError`` if engines of ``backend`` do not support ``program``.

    ``formats`` are the formats in which its matrices are loaded. ``missing`` names the unsupported
    ops and their options, or the formats.
    """
    if missing := cost.abilities.missing_features(program):
        problem = f"does not support {', '.join(missing)}"
    elif missing := cost.abilities.missing_formats(formats):
        problem = f"does not support weights in {', '.join(missing)}"
    else:
        return
    raise UnsupportedModelError(
        f"the backend {backend} {problem}",
        missing=missing,
        hint=f"use the CPU: give --backend {NATIVE} to run, bench or potluck up",
    )
