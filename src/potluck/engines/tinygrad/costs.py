"""What a stage on tinygrad takes. Imports no tinygrad: a planner counts without a driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.engines.tinygrad import sizes

if TYPE_CHECKING:
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo

_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class TinygradCost:
    """See ``EngineCost``."""

    @property
    def process_bytes(self) -> int:
        """Python with tinygrad, its expressions, and what a driver and its compiler hold."""
        return 500 * 2**20

    def loaded_bytes(self, info: TensorInfo) -> int:
        """As float32."""
        return info.num_rows * info.num_columns * _F32_BYTES

    def cache_bytes(self, program: Program, num_blocks: int) -> int:
        """As of a device without f16, whose caches are float32: at most twice what is taken."""
        return sizes.cache_bytes(program, num_blocks, has_f16=False)

    def scratch_bytes(self, program: Program, max_step_tokens: int, *, num_threads: int) -> int:
        """The same for any number of threads."""
        return sizes.scratch_bytes(program, max_step_tokens)

    def staging_bytes(self, loaded: TensorInfo) -> int:
        """The whole tensor as float32, before it is on the device."""
        return 2 * self.loaded_bytes(loaded)
