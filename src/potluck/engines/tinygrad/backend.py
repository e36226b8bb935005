"""The interface of tinygrad's backends for loading and planning (``engines.opening.EngineModule``).

It does not import tinygrad before an engine is opened, because the environment selects the device.
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
    from potluck.engines.native.pool import ThreadPool
    from potluck.engines.tinygrad.engine import TinygradEngine
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

    It changes this process's environment permanently: a process can use only one device through
    tinygrad.
    """
    environment = tinygrad_environment(address.backend, address.interface, address.variant)
    _enter(environment, is_imported="tinygrad" in sys.modules)
    from potluck.engines.native.pool import make_pool
    from potluck.engines.tinygrad.engine import TinygradEngine

    return TinygradEngine(
        program,
        num_blocks=num_blocks,
        max_step_tokens=max_step_tokens,
        device=tinygrad_device(address.backend, address.interface),
        pool=pool or make_pool(num_threads),
    )


def _enter(environment: Mapping[str, str], *, is_imported: bool) -> None:
    """Set this process's environment, which must not change once tinygrad has read it."""
    if not is_imported:
        os.environ.update(environment)
        return
    differing = [name for name, value in environment.items() if os.environ.get(name) != value]
    if differing:
        raise EngineError(
            f"this process already uses tinygrad on {os.environ.get('DEV') or 'another device'}",
            hint="tinygrad supports one device per process; start another process for this device",
        )
