"""Score texts (the log-probability of each token, given those before it), and compute embeddings of
texts and scores of documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from potluck.errors import PotluckError
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.scheduling.vectors import embedding_of, pooled_request, score_of
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.sequence import CommittedToken, SequenceRequest
from potluck.types.step import Pooling, SamplingParams, TokenLogprob
from potluck.types.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScore:
    """A token of a text, and its natural-log probability in the model's own distribution.

    ``logprob`` is None and ``top`` empty for the first token, which has no context. ``top`` are the
    most likely tokens at this position, the most likely first. ``text`` is the decoded token alone:
    U+FFFD for a part of a character, and empty for a control token.
    """

    token: int
    text: str
    logprob: float | None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The tokens of a text with their log-probabilities."""

    tokens: tuple[TokenScore, ...]

    @property
    def num_scored(self) -> int:
        """The number of tokens that have a log-probability, which are all but the first."""
        return len(self.tokens) - 1

    @property
    def total_logprob(self) -> float:
        """The log-probability of the whole text after its first token."""
        return math.fsum(each.logprob for each in self.tokens if each.logprob is not None)

    @property
    def perplexity(self) -> float | None:
        """``exp`` of the mean negative log-probability; None for a single token."""
        return math.exp(-self.total_logprob / self.num_scored) if self.num_scored else None


def score_tokens(
    dispatcher: Dispatcher, tokenizer: Tokenizer, tokens: Sequence[int], top_logprobs: int
) -> Scores:
    """Compute ``tokens``, which must be valid, and wait for the scores.

    Raise ``PromptTooLongError``, and the error that ended the computation.
    """
    request = SequenceRequest(
        prompt_tokens=tuple(tokens),
        sampling=SamplingParams(temperature=0.0, logprobs=True, top_logprobs=top_logprobs),
        max_new_tokens=0,
        score_prompt=True,
    )
    scored = () if request.generates_nothing else _committed(dispatcher, request)
    first = TokenScore(token=tokens[0], text=_text(tokenizer, tokens[0]), logprob=None)
    others = (
        TokenScore(
            token=each.token,
            text=_text(tokenizer, each.token),
            logprob=each.logprob,
            top=each.top,
        )
        for each in scored
    )
    return Scores(tokens=(first, *others))


def _committed(dispatcher: Dispatcher, request: SequenceRequest) -> Sequence[CommittedToken]:
    updates: SimpleQueue[Update] = SimpleQueue()
    sequence_id = dispatcher.add(request, updates.put)
    committed: list[CommittedToken] = []
    try:
        while not committed or committed[-1].finish_reason is None:
            update = updates.get()
            if isinstance(update, PotluckError):
                raise update
            committed.append(update.tokens[0])
    finally:
        dispatcher.cancel(sequence_id)
    return committed


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode(errors="replace")


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
