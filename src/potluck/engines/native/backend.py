"""The native backend's interface for loading and planning (``engines.opening.EngineModule``).

Importing it requires the compiled core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.engines.abilities import NATIVE_ABILITIES
from potluck.engines.native import engine as native
from potluck.engines.native.engine import NativeEngine
from potluck.engines.native.pool import make_pool

if TYPE_CHECKING:
    from potluck.engines.native.pool import ThreadPool
    from potluck.types.arithmetic import Arithmetic
    from potluck.types.backend import BackendAbilities
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo
    from potluck.types.unit import UnitAddress


class NativeCost:
    """See ``EngineCost``."""

    @property
    def abilities(self) -> BackendAbilities:
        """See ``engines.abilities``."""
        return NATIVE_ABILITIES

    @property
    def process_bytes(self) -> int:
        """Return 0: nothing in addition to what every worker loads."""
        return 0

    def loaded_bytes(self, info: TensorInfo) -> int:
        """See ``native.loaded_bytes``."""
        return native.loaded_bytes(info)

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        """See ``native.cache_bytes``."""
        return native.cache_bytes(program, num_blocks, num_states)

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        """See ``native.scratch_bytes``."""
        return native.scratch_bytes(
            program, max_step_tokens, num_threads=num_threads, arithmetic=arithmetic
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
    """See ``engines.opening.open_engine``; without a ``pool`` it creates one of ``num_threads``.

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
