"""In-process models: stages on threads, a scheduler, and the Python API."""

from potluck.engines.loading.prepare import LoadPlan
from potluck.local.generation import Generation, GenerationResult, Piece, Timings
from potluck.local.model import LoadProgress, Model, SamplingOptions
from potluck.local.scoring import DocumentScore, Embeddings, Scores, TokenScore
from potluck.types.stage import StagePlan

__all__ = [
    "DocumentScore",
    "Embeddings",
    "Generation",
    "GenerationResult",
    "LoadPlan",
    "LoadProgress",
    "Model",
    "Piece",
    "SamplingOptions",
    "Scores",
    "StagePlan",
    "Timings",
    "TokenScore",
    "bounds",
    "check",
    "check_document",
    "measuring",
]
