"""A stage's memory is planned, then its weights are loaded into what was planned."""

from potluck.loading.budget import (
    combined,
    require_memory,
    smaller_contexts,
    stronger_quantizations,
    what_fits,
)
from potluck.loading.load import LoadedStage, load_stage
from potluck.loading.plan import StagePlan, StageSize, plan_stage

__all__ = [
    "LoadedStage",
    "StagePlan",
    "StageSize",
    "combined",
    "load_stage",
    "plan_stage",
    "require_memory",
    "smaller_contexts",
    "stronger_quantizations",
    "what_fits",
]
