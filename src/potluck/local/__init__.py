"""A model in this process: stages on threads, a scheduler, and the Python interface."""

from potluck.loading import StagePlan
from potluck.local.generation import Generation, GenerationResult, Piece, Timings
from potluck.local.loading import LoadPlan
from potluck.local.model import LoadProgress, Model, SamplingOptions

__all__ = [
    "Generation",
    "GenerationResult",
    "LoadPlan",
    "LoadProgress",
    "Model",
    "Piece",
    "SamplingOptions",
    "StagePlan",
    "Timings",
]
