"""From the vector of a sequence to the result of a request: an embedding, or a score."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from potluck.errors import ParameterError
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.sequence import SequenceRequest
from potluck.types.step import Pooling, SamplingParams


def pooled_request(tokens: tuple[int, ...], pooling: Pooling) -> SequenceRequest:
    """Return the request for one vector of ``tokens``."""
    return SequenceRequest(
        prompt_tokens=tokens,
        sampling=SamplingParams(temperature=0.0),
        max_new_tokens=0,
        pooling=pooling,
    )


def check_dimensions(dimensions: int | None, vector_size: int) -> None:
    """Raise ``ParameterError`` unless an embedding can be cut to ``dimensions``."""
    if dimensions is not None and not 1 <= dimensions <= vector_size:
        raise ParameterError(
            "dimensions",
            f"{dimensions} dimensions were requested",
            hint=f"this model's embeddings have {vector_size}: request 1 to {vector_size}",
        )


def embedding_of(
    vector: bytes, config: EmbeddingConfig, dimensions: int | None = None
) -> NDArray[np.float32]:
    """Return the embedding given by the vector of a sequence.

    It is truncated to its first ``dimensions`` numbers before it is normalized, as for models
    trained for that (Kusupati et al. 2022). A vector of zeros stays one.
    """
    values = np.frombuffer(vector, "<f4")[:dimensions].astype(np.float64)
    if config.is_normalized and (length := math.sqrt(float(values @ values))):
        values /= length
    return values.astype(np.float32)


def score_of(vector: bytes, config: RerankConfig) -> float:
    """Return how relevant the document is, from 0 to 1 (see ``RerankConfig``)."""
    labels = np.frombuffer(vector, "<f4").astype(np.float64)
    others = np.delete(labels, config.positive_label)
    # One over one plus the odds against it; a single label is compared with 0.
    against = others - labels[config.positive_label] if len(others) else -labels
    with np.errstate(over="ignore"):  # infinite odds: a score of 0
        return float(1.0 / (1.0 + np.exp(against).sum()))
