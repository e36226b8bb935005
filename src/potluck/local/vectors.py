"""Compute embeddings of texts and scores of documents, and wait for the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from potluck.errors import PotluckError
from potluck.serving.dispatcher import Dispatcher
from potluck.serving.ledger import Update
from potluck.serving.vectors import embedding_of, pooled_request, score_of
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.step import Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """One vector per input, float32 ``[num_inputs, dimensions]``, and the total tokens."""

    vectors: NDArray[np.float32]
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentScore:
    """The relevance of the document with ``index``, from 0 to 1."""

    index: int
    score: float


def embed_tokens(
    dispatcher: Dispatcher,
    inputs: Sequence[Sequence[int]],
    config: EmbeddingConfig,
    dimensions: int | None,
    vector_size: int,
) -> Embeddings:
    """Compute the embeddings of ``inputs``, which must be valid."""
    vectors = _vectors(dispatcher, inputs, config.pooling)
    rows = [embedding_of(vector, config, dimensions) for vector in vectors]
    shape = (len(inputs), dimensions or vector_size)
    return Embeddings(
        vectors=np.array(rows, dtype=np.float32).reshape(shape),
        num_tokens=sum(len(tokens) for tokens in inputs),
    )


def rank_documents(
    dispatcher: Dispatcher, prompts: Sequence[Sequence[int]], config: RerankConfig
) -> tuple[DocumentScore, ...]:
    """Score documents by their prompts, which must be valid; return the most relevant first."""
    vectors = _vectors(dispatcher, prompts, config.pooling)
    scores = [
        DocumentScore(index=index, score=score_of(vector, config))
        for index, vector in enumerate(vectors)
    ]
    return tuple(sorted(scores, key=lambda each: (-each.score, each.index)))


def _vectors(
    dispatcher: Dispatcher, prompts: Sequence[Sequence[int]], pooling: Pooling
) -> list[bytes]:
    """Compute all vectors together. Raise the error of the first sequence that failed."""
    waiting: list[SimpleQueue[Update]] = []
    sequences = []
    try:
        for tokens in prompts:
            updates: SimpleQueue[Update] = SimpleQueue()
            sequences.append(dispatcher.add(pooled_request(tuple(tokens), pooling), updates.put))
            waiting.append(updates)
        return [_received(updates.get()) for updates in waiting]
    finally:
        for sequence_id in sequences:
            dispatcher.cancel(sequence_id)


def _received(update: Update) -> bytes:
    if isinstance(update, PotluckError):
        raise update
    vector = update.tokens[0].vector
    assert vector is not None  # a pooled sequence has no other updates
    return vector
