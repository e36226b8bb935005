"""Requests for vectors, independent of dialects: embeddings and document scores.

A dialect takes the inputs from a body, and renders the result; ``ApiService.vectors`` computes the
vectors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from potluck.api.answer import Arrivals
from potluck.api.config import ApiLimits
from potluck.api.errors import invalid
from potluck.api.jobs import checked_prompt
from potluck.api.metrics import ApiMetrics
from potluck.errors import EngineError
from potluck.scheduling.vectors import check_dimensions, embedding_of, pooled_request, score_of
from potluck.types.gateway import Gateway, ServedModel
from potluck.types.sequence import Cancel, SequenceRequest, SequenceUpdate

MAX_INPUTS = 2048
"""Maximum number of inputs of a request, as in OpenAI's API."""

MAX_NUMBERS = 2**21
"""Maximum number of numbers in an answer; each takes about 100 bytes while it is written as JSON.
"""

_MAX_AT_ONCE = 32
"""Maximum number of a request's sequences in progress. More would not be faster: a step has at most
64 sequences, and only of short texts."""

_TICK_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorJob:
    """The sequences of one request, in the order of its inputs."""

    model: ServedModel
    requests: tuple[SequenceRequest, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens of all inputs together."""
        return sum(len(each.prompt_tokens) for each in self.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedVectors:
    """A request that has been parsed and validated, and the renderer of its answer.

    ``write`` renders the vectors of the sequences, in their order, and may take a while.
    """

    job: VectorJob
    request_id: str
    write: Callable[[Sequence[bytes]], bytes]
    user: str | None = None


def embed_job(
    inputs: Sequence[str | Sequence[int]],
    model: ServedModel,
    limits: ApiLimits,
    *,
    dimensions: int | None = None,
    truncates: bool = False,
    param: str = "input",
) -> VectorJob:
    """Build the job that embeds ``inputs``, each a text or tokens. Raises ``PotluckError``.

    With ``truncates``, texts that are too long are truncated at the end. ``param`` is the dialect's
    name of the inputs.
    """
    config = model.embedding
    if config is None:
        raise invalid(
            "model", f"{model.model_id} is a reranking model and does not support embeddings"
        )
    check_dimensions(dimensions, model.vector_size)
    num_inputs = _checked_count(len(inputs), param)
    size = dimensions or model.vector_size
    if num_inputs * size > MAX_NUMBERS:
        raise invalid(
            param,
            f"{num_inputs} embeddings of {size} numbers exceed the limit of {MAX_NUMBERS} numbers "
            "per response: send fewer inputs",
        )
    prompts = []
    for each in inputs:
        if not each:
            raise invalid(param, f"{param} has an empty text: send at least one character")
        tokens = (
            _embedded_tokens(each, model, limits, truncates=truncates)
            if isinstance(each, str)
            else each
        )
        prompts.append(checked_prompt(tokens, model, limits, param, num_new_tokens=0))
    return VectorJob(
        model=model,
        requests=tuple(pooled_request(prompt, config.pooling) for prompt in prompts),
    )


def _embedded_tokens(
    text: str, model: ServedModel, limits: ApiLimits, *, truncates: bool
) -> list[int]:
    tokenizer = model.tokenizer
    closing = tokenizer.closing_tokens
    if not truncates:
        return [*tokenizer.encode(text, max_tokens=model.context_tokens), *closing]
    room = min(model.context_tokens, limits.max_prompt_tokens or model.context_tokens)
    return [*tokenizer.encode(text)[: max(0, room - len(closing))], *closing]


def rank_job(
    pairs: Sequence[tuple[str, str]],
    model: ServedModel,
    limits: ApiLimits,
    *,
    instruction: str | None = None,
    param: str = "documents",
) -> VectorJob:
    """Build the job that scores pairs of a query and a document. ``param`` is the dialect's name of
    the documents. Raises ``PotluckError``.
    """
    if model.rerank is None or model.encode_pair is None:
        raise invalid("model", f"{model.model_id} is not a reranking model")
    _checked_count(len(pairs), param)
    prompts = [
        checked_prompt(
            model.encode_pair(query, document, instruction=instruction),
            model,
            limits,
            param,
            num_new_tokens=0,
        )
        for query, document in pairs
    ]
    pooling = model.rerank.pooling
    return VectorJob(
        model=model, requests=tuple(pooled_request(prompt, pooling) for prompt in prompts)
    )


def embeddings(
    vectors: Sequence[bytes], model: ServedModel, dimensions: int | None
) -> list[NDArray[np.float32]]:
    """Convert ``vectors`` of an ``embed_job`` to embeddings."""
    if model.embedding is None:
        raise ValueError("the model does not support embeddings")
    return [embedding_of(each, model.embedding, dimensions) for each in vectors]


def scores(vectors: Sequence[bytes], model: ServedModel) -> list[float]:
    """Convert ``vectors`` of a ``rank_job`` to scores."""
    if model.rerank is None:
        raise ValueError("the model is not a reranking model")
    return [score_of(each, model.rerank) for each in vectors]


async def compute(prepared: PreparedVectors, gateway: Gateway, metrics: ApiMetrics) -> list[bytes]:
    """Compute the vectors of the sequences; if cancelled, cancel all of them. Raises
    ``PotluckError``.
    """
    job = prepared.job
    metrics.meter(job.model.model_id, time.perf_counter()).prompts(job.num_prompt_tokens)
    requests = [replace(each, request_id=prepared.request_id) for each in job.requests]
    arrivals = Arrivals(tick_seconds=_TICK_SECONDS)
    waiting = iter(enumerate(requests))
    cancels: dict[int, Cancel] = {}
    vectors: dict[int, bytes] = {}

    def start_some() -> None:
        for index, request in islice(waiting, _MAX_AT_ONCE - len(cancels)):
            on_update = partial(arrivals.put, index)
            cancels[index] = gateway.start(job.model.model_id, request, on_update)

    try:
        start_some()
        while cancels:
            for index, update in await arrivals.take():
                vectors[index] = _vector_of(update)
                cancels.pop(index)()
            start_some()
    finally:
        arrivals.close()
        for cancel in cancels.values():
            cancel()
    return [vectors[index] for index in range(len(requests))]


def _vector_of(update: SequenceUpdate | Exception) -> bytes:
    if isinstance(update, Exception):
        raise update
    vector = update.tokens[0].vector
    if vector is None:
        raise EngineError("the model returned a token instead of a vector")
    return vector


def _checked_count(count: int, param: str) -> int:
    if not 1 <= count <= MAX_INPUTS:
        raise invalid(param, f"{param} has {count} entries; it must have 1 to {MAX_INPUTS}")
    return count
