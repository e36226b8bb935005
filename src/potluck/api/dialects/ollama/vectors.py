"""``/api/embed`` and ``/api/embeddings``."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from potluck.api.dialect import Endpoint
from potluck.api.dialects.ollama.bodies import (
    EmbedBody,
    OldEmbedBody,
    parse_embed,
    parse_old_embed,
)
from potluck.api.dialects.ollama.requests import check_context
from potluck.api.service import ApiService
from potluck.api.vectors import EmbeddingRequest, PreparedVectors, VectorJob, embed_job, embeddings
from potluck.types.gateway import ServedModel


class VectorEndpoints:
    """Embedding endpoints. ``name_of`` maps the client's name of a model to Potluck's."""

    def __init__(self, service: ApiService, name_of: Callable[[str], str]) -> None:
        self._service = service
        self._name_of = name_of

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints; the second is the older one."""
        return (
            Endpoint(method="POST", path="/api/embed", answer=self.embed),
            Endpoint(method="POST", path="/api/embeddings", answer=self.old_embed),
        )

    async def embed(self, request: Request) -> Response:
        """``POST /api/embed``."""
        began = time.perf_counter()
        return await self._service.vectors(
            request,
            parse_embed,
            lambda body: self._name_of(body.model),
            partial(self._prepare, began=began),
            prompt_param="input",
        )

    async def old_embed(self, request: Request) -> Response:
        """``POST /api/embeddings``."""
        return await self._service.vectors(
            request,
            parse_old_embed,
            lambda body: self._name_of(body.model),
            self._prepare_old,
            prompt_param="prompt",
        )

    def _prepare(self, body: EmbedBody, model: ServedModel, *, began: float) -> PreparedVectors:
        check_context(body.options, model)
        inputs = [body.input] if isinstance(body.input, str) else body.input
        job = self._job(
            EmbeddingRequest(
                inputs=[] if inputs == [""] else inputs,
                dimensions=body.dimensions,
                truncates=body.truncate is not False,
            ),
            model,
            "input",
        )
        return PreparedVectors(
            job=job,
            request_id=secrets.token_hex(12),
            write=partial(
                _write, job=job, name=body.model, dimensions=body.dimensions, began=began
            ),
        )

    def _prepare_old(self, body: OldEmbedBody, model: ServedModel) -> PreparedVectors:
        check_context(body.options, model)
        inputs = EmbeddingRequest(inputs=[body.prompt] if body.prompt else [], truncates=True)
        job = self._job(inputs, model, "prompt")
        return PreparedVectors(
            job=job, request_id=secrets.token_hex(12), write=partial(_write_old, job=job)
        )

    def _job(self, inputs: EmbeddingRequest, model: ServedModel, param: str) -> VectorJob:
        """Return the job that embeds the inputs; a request without inputs only checks the model."""
        if not inputs.inputs and model.embedding is not None:
            return VectorJob(model=model, requests=())
        return embed_job(inputs, model, self._service.limits, param=param)


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
