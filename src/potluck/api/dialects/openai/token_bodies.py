"""The bodies of ``/tokenize`` and ``/detokenize``, as in vLLM and llama.cpp's server."""

from __future__ import annotations

from typing import Any

from potluck.api.bodies import StrictObject, parse_object, parser, validated
from potluck.api.dialects.openai.bodies import Message, ToolBody, plain_chat


class TokenizeBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/tokenize``: vLLM's ``prompt`` or ``messages``, or llama.cpp's ``content``.

    ``model`` can be omitted if exactly one is deployed.
    """

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[ToolBody] | None = None


class DetokenizeBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/detokenize``. ``tokens`` is validated when it is parsed: it can be long."""

    model: str | None = None
    tokens: Any


def parse_tokenize(body: bytes | bytearray) -> TokenizeBody:
    """Parse a request for tokens. Raises ``ApiError`` that names the invalid field."""
    return validated(TokenizeBody, plain_chat(parse_object(body)))


parse_detokenize = parser(DetokenizeBody)
