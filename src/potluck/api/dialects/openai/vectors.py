"""``/v1/embeddings``, ``/v1/rerank`` and ``/v1/score``."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial

import msgspec

from potluck.api.config import ApiLimits
from potluck.api.dialect import Endpoint
from potluck.api.dialects.openai.rendering import Identity
from potluck.api.dialects.openai.requests import texts_or_tokens
from potluck.api.dialects.openai.vector_bodies import (
    EmbeddingBody,
    RerankBody,
    ScoreBody,
    parse_embedding,
    parse_rerank,
    parse_score,
)
from potluck.api.errors import invalid
from potluck.api.rendering import Json
from potluck.api.service import ApiService
from potluck.api.vectors import (
    PreparedVectors,
    VectorJob,
    embed_job,
    embeddings,
    rank_job,
    scores,
)
from potluck.types.gateway import ServedModel
from potluck.types.ranges import require_number


def vector_endpoints(service: ApiService) -> Sequence[Endpoint]:
    """Return the endpoints for embeddings and document scores, including the unversioned paths that
    other servers also have.
    """
    answer = service.vectors
    embed = partial(answer, parse=parse_embedding, prepare=_prepare_embedding, prompt_param="input")
    rerank = partial(answer, parse=parse_rerank, prepare=_prepare_rerank, prompt_param="documents")
    score = partial(answer, parse=parse_score, prepare=_prepare_score, prompt_param="text_2")
    return (
        Endpoint(method="POST", path="/v1/embeddings", answer=embed),
        Endpoint(method="POST", path="/v1/rerank", answer=rerank),
        Endpoint(method="POST", path="/rerank", answer=rerank),
        Endpoint(method="POST", path="/v1/score", answer=score),
        Endpoint(method="POST", path="/score", answer=score),
    )


def _prepare_embedding(
    body: EmbeddingBody, model: ServedModel, limits: ApiLimits
) -> PreparedVectors:
    inputs = texts_or_tokens(body.input, "input")
    job = embed_job(inputs, model, limits, dimensions=body.dimensions)
    is_base64 = body.encoding_format == "base64"
    return PreparedVectors(
        job=job,
        request_id=Identity.new("embd", model.model_id).request_id,
        write=partial(_write_embeddings, job=job, dimensions=body.dimensions, is_base64=is_base64),
        user=body.user,
    )


def _prepare_rerank(body: RerankBody, model: ServedModel, limits: ApiLimits) -> PreparedVectors:
    if body.top_n is not None:
        require_number("top_n", body.top_n)
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    pairs = [(body.query, document) for document in documents]
    job = rank_job(pairs, model, limits, instruction=body.instruction)
    identity = Identity.new("rerank", model.model_id)
    shown = None if body.return_documents is False else documents
    return PreparedVectors(
        job=job,
        request_id=identity.request_id,
        write=partial(
            _write_ranking, job=job, identity=identity, documents=shown, top_n=body.top_n
        ),
        user=body.user,
    )


def _prepare_score(body: ScoreBody, model: ServedModel, limits: ApiLimits) -> PreparedVectors:
    pairs = _pairs(body.text_1, body.text_2)
    job = rank_job(pairs, model, limits, instruction=body.instruction, param="text_2")
    identity = Identity.new("score", model.model_id)
    return PreparedVectors(
        job=job,
        request_id=identity.request_id,
        write=partial(_write_scores, job=job, identity=identity),
        user=body.user,
    )


def _pairs(first: str | Sequence[str], second: str | Sequence[str]) -> list[tuple[str, str]]:
    """Pair one text with several others, or two lists of the same length."""
    seconds = [second] if isinstance(second, str) else list(second)
    firsts = [first] * len(seconds) if isinstance(first, str) else list(first)
    if len(firsts) == 1:
        firsts *= len(seconds)
    if len(firsts) != len(seconds):
        raise invalid(
            "text_2",
            f"text_1 has {len(firsts)} texts and text_2 has {len(seconds)}: both must "
            "have the same number",
        )
    return list(zip(firsts, seconds, strict=True))


def _write_embeddings(
    vectors: Sequence[bytes], *, job: VectorJob, dimensions: int | None, is_base64: bool
) -> bytes:
    data: list[Json] = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(values.astype("<f4").tobytes()).decode()
            if is_base64
            else values.tolist(),
        }
        for index, values in enumerate(embeddings(vectors, job.model, dimensions))
    ]
    answer = {
        "object": "list",
        "data": data,
        "model": job.model.model_id,
        "usage": _usage(job),
    }
    return msgspec.json.encode(answer)


def _write_ranking(
    vectors: Sequence[bytes],
    *,
    job: VectorJob,
    identity: Identity,
    documents: Sequence[str] | None,
    top_n: int | None,
) -> bytes:
    ranked = sorted(enumerate(scores(vectors, job.model)), key=lambda each: (-each[1], each[0]))
    results: list[Json] = [
        {
            "index": index,
            "relevance_score": score,
            **({} if documents is None else {"document": {"text": documents[index]}}),
        }
        for index, score in ranked[:top_n]
    ]
    answer = {
        "id": identity.request_id,
        "model": job.model.model_id,
        "results": results,
        "usage": _usage(job),
    }
    return msgspec.json.encode(answer)


def _write_scores(vectors: Sequence[bytes], *, job: VectorJob, identity: Identity) -> bytes:
    data = [
        {"index": index, "object": "score", "score": score}
        for index, score in enumerate(scores(vectors, job.model))
    ]
    answer = {
        "id": identity.request_id,
        "object": "list",
        "created": identity.created,
        "model": job.model.model_id,
        "data": data,
        "usage": _usage(job),
    }
    return msgspec.json.encode(answer)


def _usage(job: VectorJob) -> Json:
    return {"prompt_tokens": job.num_prompt_tokens, "total_tokens": job.num_prompt_tokens}
