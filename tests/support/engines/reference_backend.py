"""The reference engine as a backend, for tests of what has more than one.

It is in no table of this build: an agent that is to have it is told so (``AgentConfig.backends``).
Its trials are those of a fake that passes; what it computes is right by definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.reference.engine import ReferenceEngine

from potluck.types.backend import ALL_FEATURES, BackendAbilities, BackendSpec, DeviceKind
from potluck.types.engine import NO_EXPERTS, ExpertUse
from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from potluck.engines.native.pool import ThreadPool
    from potluck.types.arithmetic import Arithmetic
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo
    from potluck.types.unit import UnitAddress

ABILITIES = BackendAbilities(features=ALL_FEATURES, formats=frozenset(TensorFormat))

SPEC = BackendSpec(
    name="reference",
    module="support.engines.fake_backends.works",
    engine="support.engines.reference_backend",
    kinds=frozenset({DeviceKind.CPU}),
    abilities=ABILITIES,
)


class _Cost:
    """Everything is float32. Arrays of a step's size come and go: some twenty are alive at once."""

    @property
    def abilities(self) -> BackendAbilities:
        return ABILITIES

    @property
    def process_bytes(self) -> int:
        return 8 * 2**20

    def loaded_bytes(self, info: TensorInfo) -> int:
        return 4 * info.num_rows * info.num_columns

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        of_blocks = sum(
            4 * num_blocks * 16 * spec.num_kv_heads * (spec.head_dim + spec.value_dim)
            for spec in program.caches
        )
        return of_blocks + num_states * sum(spec.num_bytes for spec in program.states)

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        return 20 * 4 * max_step_tokens * program.hidden_size

    def staging_bytes(self, loaded: TensorInfo) -> int:
        return 0


COST = _Cost()


class _ReferenceUnit(ReferenceEngine):
    def __init__(self, program: Program, *, num_blocks: int, num_states: int) -> None:
        super().__init__(program, num_blocks=num_blocks, num_states=num_states)
        self.weights_bytes = 4 * sum(
            spec.shape[0] * (spec.shape[1] if len(spec.shape) > 1 else 1)
            for spec in program.weights
        )

    @property
    def expert_use(self) -> ExpertUse:
        return NO_EXPERTS

    def warm_up(self) -> None:
        """There is nothing to compile."""


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
) -> _ReferenceUnit:
    if address.backend != SPEC.name:
        raise ValueError(f"{address.backend} is another backend")
    return _ReferenceUnit(program, num_blocks=num_blocks, num_states=num_states)
