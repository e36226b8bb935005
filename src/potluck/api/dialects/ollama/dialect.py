"""Ollama's endpoints, keys and errors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from potluck.api.answer import Prepared
from potluck.api.config import ApiLimits
from potluck.api.dialect import Endpoint, bearer_key
from potluck.api.dialects.ollama.bodies import (
    ChatBody,
    CommonBody,
    EmbedBody,
    GenerateBody,
    OldEmbedBody,
    ShowBody,
    parse_chat,
    parse_generate,
    parse_show,
)
from potluck.api.dialects.ollama.models import running_json, shown_json, tag_json
from potluck.api.dialects.ollama.rendering import (
    OfDelta,
    OllamaRenderer,
    chat_fields,
    error_json,
    generate_fields,
)
from potluck.api.dialects.ollama.requests import PARAMETER_NAMES, chat_request, generate_request
from potluck.api.dialects.ollama.vectors import vector_endpoints
from potluck.api.errors import invalid
from potluck.api.jobs import Job, chat_job, empty_job, text_job
from potluck.api.requests import CompletionRequest
from potluck.api.service import ApiService, json_response
from potluck.types.deployment import DeploymentState
from potluck.types.gateway import ServedModel

API_VERSION = "0.12.11"
"""The version of Ollama whose API is implemented here; some clients reject older servers."""

_LATEST = ":latest"


class Ollama:
    """The dialect of Ollama's native API, not of its OpenAI-compatible one."""

    error = staticmethod(error_json)
    key_of = staticmethod(bearer_key)

    def endpoints(self, service: ApiService) -> Sequence[Endpoint]:
        """See ``Dialect``."""
        api = _Endpoints(service)
        answer = partial(service.answer, model_of=api.model_of, names=PARAMETER_NAMES)
        chat = partial(answer, parse=parse_chat, prepare=_prepare_chat, prompt_param="messages")
        generate = partial(
            answer, parse=parse_generate, prepare=_prepare_generate, prompt_param="prompt"
        )
        return (
            Endpoint(method="POST", path="/api/chat", answer=chat),
            Endpoint(method="POST", path="/api/generate", answer=generate),
            Endpoint(method="POST", path="/api/show", answer=api.show),
            Endpoint(method="GET", path="/api/tags", answer=api.tags),
            Endpoint(method="GET", path="/api/ps", answer=api.running),
            Endpoint(method="GET", path="/api/version", answer=api.version),
            *vector_endpoints(service, api.model_of),
        )


class _Endpoints:
    def __init__(self, service: ApiService) -> None:
        self._service = service

    async def tags(self, request: Request) -> Response:
        """``GET /api/tags``: deployed models."""
        models = self._service.gateway.models()
        return json_response({"models": [tag_json(status) for status in models]})

    async def running(self, request: Request) -> Response:
        """``GET /api/ps``: models that are ready."""
        models = self._service.gateway.models()
        ready = [status for status in models if status.state is DeploymentState.READY]
        return json_response({"models": [running_json(status) for status in ready]})

    async def version(self, request: Request) -> Response:
        """``GET /api/version``."""
        return json_response({"version": API_VERSION})

    async def show(self, request: Request) -> Response:
        """``POST /api/show``."""

        def model_of(body: ShowBody) -> str:
            name = body.model or body.name
            if not name:
                raise invalid("model", "model is required", code="missing_required_parameter")
            return self.name_of(name)

        model = await self._service.computed(
            request,
            parse_show,
            lambda _body, model: model,
            model_of=model_of,
            prompt_param="model",
        )
        return json_response(shown_json(self._service.status(model.model_id), model))

    def model_of(self, body: CommonBody | EmbedBody | OldEmbedBody) -> str:
        """Return the name of the model of a request."""
        return self.name_of(body.model)

    def name_of(self, name: str) -> str:
        """Return the name of the model; Ollama's clients add a tag to names without one."""
        if name.endswith(_LATEST):
            known = {status.model_id for status in self._service.gateway.models()}
            plain = name.removesuffix(_LATEST)
            if name not in known and plain in known:
                return plain
        return name


def _prepare_chat(body: ChatBody, model: ServedModel, limits: ApiLimits) -> Prepared:
    job = chat_job(chat_request(body, model), model, limits) if body.messages else empty_job(model)
    return _prepared(body, job, chat_fields)


def _prepare_generate(body: GenerateBody, model: ServedModel, limits: ApiLimits) -> Prepared:
    if not body.prompt and not body.suffix:
        return _prepared(body, empty_job(model), generate_fields)
    parsed = generate_request(body, model)
    if isinstance(parsed, CompletionRequest):
        return _prepared(body, text_job(parsed, model, limits), generate_fields)
    return _prepared(body, chat_job(parsed, model, limits), generate_fields)


def _prepared(body: CommonBody, job: Job, fields: OfDelta) -> Prepared:
    return Prepared(
        job=job,
        renderer=OllamaRenderer(body.model, fields, job.model.tokenizer),
        is_stream=body.stream is not False,
    )
