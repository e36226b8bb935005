"""Anthropic's endpoints, keys and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from potluck.api.answer import Prepared
from potluck.api.config import ApiLimits
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
from potluck.api.jobs import chat_job, chat_prompt
from potluck.api.service import ApiService, json_response
from potluck.types.gateway import ServedModel


class Anthropic:
    """The dialect of the Messages API."""

    error = staticmethod(error_json)

    def endpoints(self, service: ApiService) -> Sequence[Endpoint]:
        """See ``Dialect``."""
        messages = partial(
            service.answer,
            parse=parse_messages,
            prepare=_prepare,
            prompt_param="messages",
            names=PARAMETER_NAMES,
        )

        async def count_tokens(request: Request) -> Response:
            """``POST /v1/messages/count_tokens``."""
            num_tokens = await service.computed(
                request, parse_prompt, _count_tokens, prompt_param="messages"
            )
            return json_response({"input_tokens": num_tokens})

        return (
            Endpoint(method="POST", path="/v1/messages", answer=messages),
            Endpoint(method="POST", path="/v1/messages/count_tokens", answer=count_tokens),
        )

    def key_of(self, headers: Mapping[str, str]) -> str | None:
        """See ``Dialect``."""
        return headers.get("x-api-key") or bearer_key(headers)


def _count_tokens(body: PromptBody, model: ServedModel) -> int:
    return len(chat_prompt(prompt_request(body), model).tokens)


def _prepare(body: MessagesBody, model: ServedModel, limits: ApiLimits) -> Prepared:
    chat = messages_request(body)
    return Prepared(
        job=chat_job(chat, model, limits),
        renderer=MessageRenderer(
            model.model_id,
            omits_thoughts=body.thinking is not None and body.thinking.display == "omitted",
        ),
        is_stream=bool(body.stream),
        user=chat.user,
    )
