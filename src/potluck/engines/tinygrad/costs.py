"""What a stage on tinygrad takes. Imports no tinygrad: a planner counts without a driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.engines.tinygrad import sizes
from potluck.engines.tinygrad.abilities import ABILITIES
from potluck.engines.tinygrad.layout import MatrixLayout

if TYPE_CHECKING:
    from potluck.types.abilities import BackendAbilities
    from potluck.types.arithmetic import Arithmetic
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo

_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class TinygradCost:
    """An ``EngineCost``."""

    @property
    def abilities(self) -> BackendAbilities:
        """See ``tinygrad.abilities``."""
        return ABILITIES

    @property
    def process_bytes(self) -> int:
        """Python with tinygrad, its expressions, and what a driver and its compiler hold.

        Besides weights, after products by three matrices: 56 MiB with tinygrad's CPU backend, whose
        clang is a process of its own, and 196 MiB with PoCL, which has LLVM within
        (``tests/integration/test_tinygrad_loading.py``). A program has some more kernels, and a
        CUDA context is as large as PoCL.
        """
        return 384 * 2**20

    def loaded_bytes(self, info: TensorInfo) -> int:
        """Matrices packed in panels, vectors as float32: what ``DeviceWeights`` allocates."""
        if len(info.shape) == 1:
            return info.num_columns * _F32_BYTES
        return MatrixLayout.of(info).num_bytes

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        """As of a device without f16, whose caches are float32: at most twice what is taken.

        No program that is computed here has states.
        """
        return sizes.cache_bytes(program, num_blocks, has_f16=False)

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        """The same for any number of threads, and in any arithmetic."""
        return sizes.scratch_bytes(program, max_step_tokens)

    def staging_bytes(self, loaded: TensorInfo) -> int:
        """Of groups of panels on their way, or of a vector as it came and as float32."""
        if len(loaded.shape) == 1:
            return loaded.num_columns * (2 * _F32_BYTES)
        return MatrixLayout.of(loaded).staging_bytes
