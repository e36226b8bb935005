"""OpenAI's endpoints, keys and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from potluck.api.answer import Prepared
from potluck.api.config import ApiLimits
from potluck.api.dialect import Endpoint, bearer_key
from potluck.api.dialects.openai.bodies import (
    ChatBody,
    CommonBody,
    CompletionBody,
    parse_chat,
    parse_completion,
)
from potluck.api.dialects.openai.chat import ChatChoices
from potluck.api.dialects.openai.completions import CompletionChoices
from potluck.api.dialects.openai.rendering import Choices, OpenAIRenderer, error_json
from potluck.api.dialects.openai.requests import chat_request, completion_request
from potluck.api.dialects.openai.responses import ResponsesEndpoints
from potluck.api.dialects.openai.tokens import token_endpoints
from potluck.api.dialects.openai.vectors import vector_endpoints
from potluck.api.errors import invalid
from potluck.api.jobs import Job, chat_job, text_job
from potluck.api.rendering import Json
from potluck.api.service import ApiService, json_response
from potluck.types.gateway import ModelStatus, ServedModel
from potluck.types.sampling import default_sampling


class OpenAI:
    """The dialect of OpenAI and most other servers. Paths of no dialect use it, too."""

    error = staticmethod(error_json)

    def endpoints(self, service: ApiService) -> Sequence[Endpoint]:
        """See ``Dialect``."""

        async def models(request: Request) -> Response:
            """``GET /v1/models``."""
            return json_response(_models_json(service.gateway.models()))

        async def model(request: Request) -> Response:
            """``GET /v1/models/{id}``."""
            return json_response(_model_json(service.status(request.path_params["model_id"])))

        chat = partial(
            service.answer, parse=parse_chat, prepare=_prepare_chat, prompt_param="messages"
        )
        complete = partial(
            service.answer,
            parse=parse_completion,
            prepare=_prepare_completion,
            prompt_param="prompt",
        )
        return (
            Endpoint(method="POST", path="/v1/chat/completions", answer=chat),
            Endpoint(method="POST", path="/v1/completions", answer=complete),
            Endpoint(method="GET", path="/v1/models", answer=models),
            Endpoint(method="GET", path="/v1/models/{model_id:path}", answer=model),
            *ResponsesEndpoints(service).endpoints(),
            *vector_endpoints(service),
            *token_endpoints(service),
        )

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """See ``Dialect``. Anthropic's clients list models at this dialect's endpoint."""
        return bearer_key(headers) or headers.get("x-api-key")


def _prepare_chat(body: ChatBody, model: ServedModel, limits: ApiLimits) -> Prepared:
    choices = ChatChoices(model.tokenizer, logprobs=bool(body.logprobs))
    return _prepared(body, choices, chat_job(chat_request(body), model, limits))


def _prepare_completion(body: CompletionBody, model: ServedModel, limits: ApiLimits) -> Prepared:
    choices = CompletionChoices(tokenizer=model.tokenizer, logprobs=body.logprobs is not None)
    return _prepared(body, choices, text_job(completion_request(body), model, limits))


def _prepared(body: CommonBody, choices: Choices, job: Job) -> Prepared:
    options = body.stream_options
    if options is not None and not body.stream:
        raise invalid("stream_options", "stream_options requires stream: set stream")
    include_usage = options is not None and bool(options.include_usage)
    return Prepared(
        job=job,
        renderer=OpenAIRenderer(choices, job.model.model_id, include_usage=include_usage),
        is_stream=bool(body.stream),
        user=body.user,
    )


def _model_json(status: ModelStatus) -> Json:
    """Return an entry of ``/v1/models``.

    It includes the fields that Anthropic's clients read, which use the same endpoint, and some
    more.
    """
    return {
        "id": status.model_id,
        "object": "model",
        "created": status.created,
        "owned_by": "potluck",
        "type": "model",
        "display_name": status.model_id,
        "created_at": datetime.fromtimestamp(status.created, UTC).isoformat(),
        "context_tokens": status.context_tokens,
        "state": status.state.value,
        "reason": status.reason or None,
        "default_sampling": default_sampling(status.sampling_defaults),
    }


def _models_json(models: Sequence[ModelStatus]) -> Json:
    """Return the response of ``/v1/models``, which Anthropic's clients read as a single page."""
    ids = [status.model_id for status in models]
    return {
        "object": "list",
        "data": [_model_json(status) for status in models],
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
