"""The native backend's interface for loading and planning (``engines.backends.EngineModule``).

Importing it requires the compiled core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.engines.abilities import NATIVE_ABILITIES
from potluck.engines.native.engine import NativeEngine, loaded_bytes
from potluck.engines.native.pool import make_pool
from potluck.engines.native.program import core_errors, core_program
from potluck.kernels import runner
from potluck.types.arithmetic import Arithmetic

if TYPE_CHECKING:
    from potluck.engines.native.pool import ThreadPool
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo
    from potluck.types.unit import UnitAddress


class NativeCost:
    """An ``EngineCost``. Its process loads nothing in addition to what every worker loads."""

    abilities = NATIVE_ABILITIES
    process_bytes = 0

    def loaded_bytes(self, info: TensorInfo) -> int:
        """See ``native.engine.loaded_bytes``."""
        return loaded_bytes(info)

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        """Return the size of blocks and state slots without allocating them."""
        with core_errors():
            return runner.Stage.cache_bytes(
                program=core_program(program), num_blocks=num_blocks, num_states=num_states
            )

    def scratch_bytes(
        self,
        program: Program,
        max_step_tokens: int,
        *,
        num_threads: int,
        arithmetic: Arithmetic = Arithmetic.EXACT,
    ) -> int:
        """Return the memory of a stage in addition to weights and caches, without allocating it."""
        with core_errors():
            return runner.Stage.scratch_bytes(
                program=core_program(program),
                max_step_tokens=max_step_tokens,
                num_threads=num_threads,
                is_fast=arithmetic is not Arithmetic.EXACT,
            )

    def staging_bytes(self, loaded: TensorInfo) -> int:
        """Return 0: rows are copied from the loader's buffer to their final place."""
        return 0


COST = NativeCost()


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
) -> NativeEngine:
    """See ``engines.backends.open_engine``; without a ``pool`` it creates one of ``num_threads``.

    If ``arithmetic`` is fast, its instruction set is used.
    """
    return NativeEngine(
        program,
        num_blocks=num_blocks,
        num_states=num_states,
        max_step_tokens=max_step_tokens,
        pool=pool or make_pool(num_threads),
        isa=arithmetic.isa or address.variant or None,
        arithmetic=arithmetic,
    )
