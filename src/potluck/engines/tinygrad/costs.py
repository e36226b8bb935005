"""The memory requirements of a stage on tinygrad. Does not import tinygrad, since planning requires
no driver.
"""

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
        """Return the memory of Python with tinygrad, its expressions, the driver and its compiler.

        In addition to weights, after products with three matrices: 56 MiB with tinygrad's CPU
        backend, whose clang is a separate process, and 196 MiB with PoCL, which includes LLVM
        (``tests/integration/test_tinygrad_loading.py``). A program has a few more kernels, and a
        CUDA context is as large as PoCL.
        """
        return 384 * 2**20

    def loaded_bytes(self, info: TensorInfo) -> int:
        """Return the size of matrices in panels and vectors as float32: what ``DeviceWeights``
        allocates.
        """
        if len(info.shape) == 1:
            return info.num_columns * _F32_BYTES
        return MatrixLayout.of(info).num_bytes

    def cache_bytes(self, program: Program, num_blocks: int, num_states: int = 0) -> int:
        """Return the size on a device without f16, with float32 caches: at most twice the actual
        size.

        Programs with states are not supported.
        """
        return sizes.cache_bytes(program, num_blocks, has_f16=False)

    def scratch_bytes(
        self, program: Program, max_step_tokens: int, *, num_threads: int, arithmetic: Arithmetic
    ) -> int:
        """Return the size, which does not depend on the number of threads and the arithmetic."""
        return sizes.scratch_bytes(program, max_step_tokens)

    def staging_bytes(self, loaded: TensorInfo) -> int:
        """Return the size of groups of panels in transfer, or of a vector as received and as
        float32.
        """
        if len(loaded.shape) == 1:
            return loaded.num_columns * (2 * _F32_BYTES)
        return MatrixLayout.of(loaded).staging_bytes
