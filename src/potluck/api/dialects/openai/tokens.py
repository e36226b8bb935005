"""``/tokenize`` and ``/detokenize``, with the fields of vLLM and of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from potluck.api.dialect import Endpoint
from potluck.api.dialects.openai.bodies import ChatBody
from potluck.api.dialects.openai.requests import chat_request
from potluck.api.dialects.openai.token_bodies import (
    DetokenizeBody,
    TokenizeBody,
    parse_detokenize,
    parse_tokenize,
)
from potluck.api.errors import invalid
from potluck.api.jobs import chat_prompt, require_known_tokens
from potluck.api.rendering import Json
from potluck.api.service import ApiService, json_response
from potluck.text.detokenize import StreamingDetokenizer, token_text
from potluck.types.gateway import ServedModel
from potluck.types.text import Tokenizer

_OF_TEXTS = ("add_special_tokens", "add_special", "parse_special")
_OF_CHATS = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")


def token_endpoints(service: ApiService) -> Sequence[Endpoint]:
    """Return the endpoints that tokenize and detokenize text."""

    def model_of(body: TokenizeBody | DetokenizeBody) -> str:
        return service.model_id(body.model)

    async def tokenize(request: Request) -> Response:
        """``POST /tokenize``."""
        answer = await service.computed(
            request, parse_tokenize, _tokenized, model_of=model_of, prompt_param="prompt"
        )
        return json_response(answer)

    async def detokenize(request: Request) -> Response:
        """``POST /detokenize``."""
        answer = await service.computed(
            request, parse_detokenize, _detokenized, model_of=model_of, prompt_param="tokens"
        )
        return json_response(answer)

    return (
        Endpoint(method="POST", path="/tokenize", answer=tokenize),
        Endpoint(method="POST", path="/detokenize", answer=detokenize),
    )


def _tokenized(body: TokenizeBody, model: ServedModel) -> Json:
    given = [name for name in ("prompt", "content", "messages") if getattr(body, name) is not None]
    if len(given) != 1:
        raise invalid(given[1] if given else "prompt", "set one of prompt, messages and content")
    is_chat = body.messages is not None
    for name in _OF_TEXTS if is_chat else _OF_CHATS:
        if getattr(body, name):
            raise invalid(name, f"{name} cannot be used with {given[0]}")
    tokens = _chat_tokens(body, model) if is_chat else _text_tokens(body, model)
    answer: Json = {"count": len(tokens), "max_model_len": model.context_tokens, "tokens": tokens}
    if body.return_token_strs:
        answer["token_strs"] = [token_text(model.tokenizer, token) for token in tokens]
    if body.with_pieces:
        answer["tokens"] = [
            {"id": token, "piece": _piece(model.tokenizer, token)} for token in tokens
        ]
    return answer


def _chat_tokens(body: TokenizeBody, model: ServedModel) -> Sequence[int]:
    chat = ChatBody(
        model=model.model_id,
        messages=list(body.messages or ()),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
        tools=body.tools,
    )
    return list(chat_prompt(chat_request(chat), model).tokens)


def _text_tokens(body: TokenizeBody, model: ServedModel) -> Sequence[int]:
    """Tokenize a ``prompt`` as ``/v1/completions`` does, or a ``content`` as llama.cpp does."""
    is_content = body.content is not None
    add_special = {each for each in (body.add_special, body.add_special_tokens) if each is not None}
    if len(add_special) > 1:
        raise invalid("add_special", "add_special and add_special_tokens differ: set only one")
    return model.tokenizer.encode(
        (body.content if is_content else body.prompt) or "",
        add_bos=add_special.pop() if add_special else not is_content,
        parse_special=is_content if body.parse_special is None else body.parse_special,
    )


def _detokenized(body: DetokenizeBody, model: ServedModel) -> Json:
    tokens = body.tokens
    if not isinstance(tokens, list) or not all(type(each) is int for each in tokens):
        raise invalid("tokens", "tokens should be a list of tokens", code="invalid_type")
    require_known_tokens(tokens, model, "tokens")
    tokenizer = model.tokenizer
    texts = {text for token in tokens if (text := tokenizer.control_text(token))}
    detokenizer = StreamingDetokenizer(tokenizer, starts_text=True, visible=texts)
    text = "".join(detokenizer.push(token) for token in tokens) + detokenizer.flush()
    return {"prompt": text, "content": text}


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """Return the text of a token, or its bytes if they are not text by themselves."""
    if text := tokenizer.control_text(token):
        return text
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
