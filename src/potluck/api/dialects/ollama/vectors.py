"""``/api/embed`` and ``/api/embeddings``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from potluck.api.config import ApiLimits
from potluck.api.dialect import Endpoint
from potluck.api.dialects.ollama.bodies import (
    EmbedBody,
    OldEmbedBody,
    parse_embed,
    parse_old_embed,
)
from potluck.api.dialects.ollama.requests import check_context
from potluck.api.service import ApiService
from potluck.api.vectors import PreparedVectors, VectorJob, embed_job, embeddings
from potluck.types.gateway import ServedModel


def vector_endpoints(
    service: ApiService, model_of: Callable[[EmbedBody | OldEmbedBody], str]
) -> Sequence[Endpoint]:
    """Return the endpoints for embeddings; the second is the older one."""

    async def embed(request: Request) -> Response:
        """``POST /api/embed``."""
        return await service.vectors(
            request,
            parse_embed,
            partial(_prepare, began=time.perf_counter()),
            model_of=model_of,
            prompt_param="input",
        )

    old_embed = partial(
        service.vectors,
        parse=parse_old_embed,
        prepare=_prepare_old,
        model_of=model_of,
        prompt_param="prompt",
    )
    return (
        Endpoint(method="POST", path="/api/embed", answer=embed),
        Endpoint(method="POST", path="/api/embeddings", answer=old_embed),
    )


def _prepare(
    body: EmbedBody, model: ServedModel, limits: ApiLimits, *, began: float
) -> PreparedVectors:
    check_context(body.options, model)
    inputs = [body.input] if isinstance(body.input, str) else body.input
    job = _job(
        [] if inputs == [""] else inputs,
        model,
        limits,
        dimensions=body.dimensions,
        truncates=body.truncate is not False,
        param="input",
    )
    return PreparedVectors(
        job=job,
        request_id=secrets.token_hex(12),
        write=partial(_write, job=job, name=body.model, dimensions=body.dimensions, began=began),
    )


def _prepare_old(body: OldEmbedBody, model: ServedModel, limits: ApiLimits) -> PreparedVectors:
    check_context(body.options, model)
    job = _job([body.prompt] if body.prompt else [], model, limits, truncates=True, param="prompt")
    return PreparedVectors(
        job=job, request_id=secrets.token_hex(12), write=partial(_write_old, job=job)
    )


def _job(
    inputs: Sequence[str],
    model: ServedModel,
    limits: ApiLimits,
    *,
    dimensions: int | None = None,
    truncates: bool,
    param: str,
) -> VectorJob:
    """Return the job that embeds the inputs; a request without inputs only checks the model."""
    if not inputs and model.embedding is not None:
        return VectorJob(model=model, requests=())
    return embed_job(inputs, model, limits, dimensions=dimensions, truncates=truncates, param=param)


def _write(
    vectors: Sequence[bytes], *, job: VectorJob, name: str, dimensions: int | None, began: float
) -> bytes:
    answer = {
        "model": name,
        "embeddings": [each.tolist() for each in embeddings(vectors, job.model, dimensions)],
        "total_duration": int((time.perf_counter() - began) * 1e9),
        "load_duration": 0,
        "prompt_eval_count": job.num_prompt_tokens,
    }
    return msgspec.json.encode(answer)


def _write_old(vectors: Sequence[bytes], *, job: VectorJob) -> bytes:
    numbers = [each.tolist() for each in embeddings(vectors, job.model, None)]
    return msgspec.json.encode({"embedding": numbers[0] if numbers else []})
