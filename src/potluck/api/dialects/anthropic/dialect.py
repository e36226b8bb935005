"""Anthropic's endpoints, keys and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from potluck.api.answer import Prepared
from potluck.api.dialect import Endpoint, bearer_key
from potluck.api.dialects.anthropic.bodies import (
    MessagesBody,
    PromptBody,
    parse_messages,
    parse_prompt,
)
from potluck.api.dialects.anthropic.rendering import MessageRenderer, error_json
from potluck.api.dialects.anthropic.requests import (
    PARAMETER_NAMES,
    messages_request,
    prompt_request,
)
from potluck.api.errors import ApiError
from potluck.api.jobs import chat_job, chat_prompt
from potluck.api.service import ApiService, json_response
from potluck.types.gateway import ServedModel


class Anthropic:
    """The dialect of the Messages API."""

    name = "anthropic"

    def endpoints(self, service: ApiService) -> Sequence[Endpoint]:
        """See ``Dialect``."""
        api = _Endpoints(service)
        return (
            Endpoint(method="POST", path="/v1/messages", answer=api.messages),
            Endpoint(method="POST", path="/v1/messages/count_tokens", answer=api.count_tokens),
        )

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """See ``Dialect``."""
        return headers.get("x-api-key") or bearer_key(headers)

    def error(self, error: ApiError) -> bytes:
        """See ``Dialect``."""
        return error_json(error)


class _Endpoints:
    def __init__(self, service: ApiService) -> None:
        self._service = service

    async def messages(self, request: Request) -> Response:
        """``POST /v1/messages``."""
        return await self._service.answer(
            request,
            parse_messages,
            lambda body: body.model,
            self._prepare,
            prompt_param="messages",
            names=PARAMETER_NAMES,
        )

    async def count_tokens(self, request: Request) -> Response:
        """``POST /v1/messages/count_tokens``."""

        def count(body: PromptBody, model: ServedModel) -> int:
            return len(chat_prompt(prompt_request(body), model).tokens)

        num_tokens = await self._service.computed(
            request, parse_prompt, lambda body: body.model, count, prompt_param="messages"
        )
        return json_response({"input_tokens": num_tokens})

    def _prepare(self, body: MessagesBody, model: ServedModel) -> Prepared:
        chat = messages_request(body)
        return Prepared(
            job=chat_job(chat, model, self._service.limits),
            renderer=MessageRenderer(
                model.model_id,
                omits_thoughts=body.thinking is not None and body.thinking.display == "omitted",
            ),
            is_stream=bool(body.stream),
            user=chat.user,
        )
