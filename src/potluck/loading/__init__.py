"""A stage's memory is planned, then its weights are loaded into what was planned."""

from potluck.loading.budget import (
    combined,
    require_memory,
    smaller_contexts,
    stronger_quantizations,
    what_fits,
)
from potluck.loading.load import LoadedStage, load_stage
from potluck.loading.pack import packed_weights
from potluck.loading.packed_cache import (
    NotPackedError,
    PackedCache,
    PackedWeights,
    default_packed_folder,
)
from potluck.loading.plan import StagePlan, StageSize, plan_stage

__all__ = [
    "LoadedStage",
    "NotPackedError",
    "PackedCache",
    "PackedWeights",
    "StagePlan",
    "StageSize",
    "combined",
    "default_packed_folder",
    "load_stage",
    "packed_weights",
    "plan_stage",
    "require_memory",
    "smaller_contexts",
    "stronger_quantizations",
    "what_fits",
]
