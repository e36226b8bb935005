"""What engines that can join groups take, counted without the core: for tests of placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from potluck.types.backend import ALL_FEATURES, BackendAbilities
from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from potluck.types.arithmetic import Arithmetic
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo

_BLOCK_TOKENS, _F16_BYTES = 16, 2


class GroupCost:
    """See ``EngineCost``. The figures are about those of the native engine."""

    @property
    def abilities(self) -> BackendAbilities:
        return BackendAbilities(
            features=ALL_FEATURES,
            formats=frozenset(TensorFormat),
            has_arithmetics=True,
            maps_weights=True,
            is_built_in=True,
        )

    @property
    def process_bytes(self) -> int:
        return 0

    def loaded_bytes(self, info: TensorInfo) -> int:
        return info.num_bytes

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        of_blocks = sum(
            _F16_BYTES
            * num_blocks
            * _BLOCK_TOKENS
            * spec.num_kv_heads
            * (spec.head_dim + spec.value_dim)
            for spec in program.caches
        )
        return of_blocks + num_states * sum(spec.num_bytes for spec in program.states)

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        return 4 * max_step_tokens * sum(register.width for register in program.registers)

    def staging_bytes(self, loaded: TensorInfo) -> int:
        return 0


def cost_with_groups(backend: str) -> GroupCost:
    """Return what engines of every backend take (``engines.backends.cost_of``)."""
    return GroupCost()
