"""Plan the memory of a stage, and load its weights within the plan.

The modules ``load`` and ``prepare`` need the compiled core when they are imported.
"""

from potluck.engines.loading.packed_cache import (
    NotPackedError,
    PackedCache,
    PackedWeights,
    default_packed_folder,
)
from potluck.engines.loading.plan import matrix_formats, plan_stage
from potluck.engines.loading.sizes import Room, combined, require_memory

__all__ = [
    "NotPackedError",
    "PackedCache",
    "PackedWeights",
    "Room",
    "combined",
    "default_packed_folder",
    "load",
    "matrix_formats",
    "plan",
    "plan_stage",
    "prepare",
    "require_memory",
    "sizes",
]
