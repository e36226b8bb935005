"""Ollama's endpoints, keys and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from potluck.api.answer import Prepared
from potluck.api.dialect import Endpoint, bearer_key
from potluck.api.dialects.ollama.bodies import (
    ChatBody,
    CommonBody,
    GenerateBody,
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
from potluck.api.dialects.ollama.vectors import VectorEndpoints
from potluck.api.errors import ApiError, invalid
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

    name = "ollama"

    def endpoints(self, service: ApiService) -> Sequence[Endpoint]:
        """See ``Dialect``."""
        api = _Endpoints(service)
        return (
            Endpoint(method="POST", path="/api/chat", answer=api.chat),
            Endpoint(method="POST", path="/api/generate", answer=api.generate),
            Endpoint(method="POST", path="/api/show", answer=api.show),
            Endpoint(method="GET", path="/api/tags", answer=api.tags),
            Endpoint(method="GET", path="/api/ps", answer=api.running),
            Endpoint(method="GET", path="/api/version", answer=api.version),
            *VectorEndpoints(service, api.name_of).endpoints(),
        )

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """See ``Dialect``."""
        return bearer_key(headers)

    def error(self, error: ApiError) -> bytes:
        """See ``Dialect``."""
        return error_json(error)


class _Endpoints:
    def __init__(self, service: ApiService) -> None:
        self._service = service

    async def chat(self, request: Request) -> Response:
        """``POST /api/chat``."""
        return await self._service.answer(
            request,
            parse_chat,
            lambda body: self.name_of(body.model),
            self._prepare_chat,
            prompt_param="messages",
            names=PARAMETER_NAMES,
        )

    async def generate(self, request: Request) -> Response:
        """``POST /api/generate``."""
        return await self._service.answer(
            request,
            parse_generate,
            lambda body: self.name_of(body.model),
            self._prepare_generate,
            prompt_param="prompt",
            names=PARAMETER_NAMES,
        )

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
            request, parse_show, model_of, lambda _body, model: model, prompt_param="model"
        )
        answer = shown_json(self._service.status(model.model_id), model)
        return json_response(answer)

    def name_of(self, name: str) -> str:
        """Return the name of the model; Ollama's clients add a tag to names without one."""
        if name.endswith(_LATEST):
            known = {status.model_id for status in self._service.gateway.models()}
            plain = name.removesuffix(_LATEST)
            if name not in known and plain in known:
                return plain
        return name

    def _prepare_chat(self, body: ChatBody, model: ServedModel) -> Prepared:
        if not body.messages:
            return _prepared(body, empty_job(model), chat_fields)
        job = chat_job(chat_request(body, model), model, self._service.limits)
        return _prepared(body, job, chat_fields)

    def _prepare_generate(self, body: GenerateBody, model: ServedModel) -> Prepared:
        if not body.prompt and not body.suffix:
            return _prepared(body, empty_job(model), generate_fields)
        parsed = generate_request(body, model)
        limits = self._service.limits
        if isinstance(parsed, CompletionRequest):
            return _prepared(body, text_job(parsed, model, limits), generate_fields)
        return _prepared(body, chat_job(parsed, model, limits), generate_fields)


def _prepared(body: CommonBody, job: Job, fields: OfDelta) -> Prepared:
    return Prepared(
        job=job,
        renderer=OllamaRenderer(body.model, fields, job.model.tokenizer),
        is_stream=body.stream is not False,
    )
