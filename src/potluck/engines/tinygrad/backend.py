"""tinygrad's backends as loading and planning see them (``engines.opening.EngineModule``).

Imports no tinygrad before an engine is opened: by then the environment must say which device.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from potluck.engines.tinygrad.costs import TinygradCost
from potluck.engines.tinygrad.environment import tinygrad_device, tinygrad_environment
from potluck.errors import EngineError

if TYPE_CHECKING:
    from potluck.engines.tinygrad.engine import TinygradEngine
    from potluck.kernels.runner import ThreadPool
    from potluck.types.arithmetic import Arithmetic
    from potluck.types.program import Program
    from potluck.types.unit import UnitAddress

COST = TinygradCost()


def open_engine(
    address: UnitAddress,
    program: Program,
    *,
    num_blocks: int,
    max_step_tokens: int,
    num_threads: int,
    arithmetic: Arithmetic,
    pool: ThreadPool | None,
    num_states: int = 0,
) -> TinygradEngine:
    """See ``engines.opening.open_engine``. ``pool`` is for sampling; whatever the
    ``arithmetic``, it has one of its own. No program that it computes has states.

    Changes this process's environment, for good: a process can use one device through tinygrad.
    """
    environment = tinygrad_environment(address.backend, address.interface, address.variant)
    _enter(environment, is_imported="tinygrad" in sys.modules)
    from potluck.engines.native import make_pool
    from potluck.engines.tinygrad.engine import TinygradEngine

    return TinygradEngine(
        program,
        num_blocks=num_blocks,
        max_step_tokens=max_step_tokens,
        device=tinygrad_device(address.backend, address.interface),
        pool=pool or make_pool(num_threads),
    )


def _enter(environment: Mapping[str, str], *, is_imported: bool) -> None:
    """Have this process's environment be this one; once tinygrad has read it, it must be so."""
    if not is_imported:
        os.environ.update(environment)
        return
    differing = [name for name, value in environment.items() if os.environ.get(name) != value]
    if differing:
        raise EngineError(
            f"this process computes with tinygrad on {os.environ.get('DEV') or 'another device'}",
            hint="use one device through tinygrad in a process; start another for this one",
        )
