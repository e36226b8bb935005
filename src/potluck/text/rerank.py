"""Prompts with a query and a document, for models that score the document's relevance."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from potluck.errors import ChatTemplateError, ModelFileError
from potluck.text.chat import ChatTemplate, prompt_chat
from potluck.types.model import RerankConfig
from potluck.types.text import ChatMessage, Tokenizer

_DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""From the model card of Qwen3-Reranker."""

_ROLES = ("system", "query", "document")

_PLACEHOLDER = re.compile(r"\{(query|document|instruction)\}")


def rerank_template(rerank: RerankConfig, own: ChatTemplate | None) -> ChatTemplate | None:
    """Return the template of a model's prompts; ``own`` is its chat template, if it has one.

    Return None if no template supports the roles ``query`` and ``document``.
    """
    if rerank.template is not None:
        return ChatTemplate(source=_as_jinja(rerank.template), roles=_ROLES)
    if own is not None and "query" in own.source and "document" in own.source:
        return replace(own, roles=_ROLES)
    return None


def check_labels(rerank: RerankConfig, label_tokens: tuple[int, ...], tokenizer: Tokenizer) -> None:
    """Raise ``ModelFileError`` unless the label tokens have the expected texts."""
    if not rerank.label_texts:
        return
    texts = tuple(tokenizer.token_bytes(token).decode(errors="replace") for token in label_tokens)
    if texts != rerank.label_texts:
        raise ModelFileError(
            "the tokenizer", f"the tokens {label_tokens} are {texts}, not {rerank.label_texts}"
        )


def encode_pair(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    query: str,
    document: str,
    *,
    instruction: str | None = None,
    max_tokens: int | None = None,
) -> list[int]:
    """Return the tokens of the prompt for ``query`` and ``document``.

    Raises as ``prompt_chat``, and ``ChatTemplateError`` if there is no template.
    """
    if template is None:
        raise ChatTemplateError(
            "the model has no template for queries and documents",
            hint="add a chat_template.jinja that uses messages with the roles query and document",
        )
    messages = [
        ChatMessage(role="query", content=query),
        ChatMessage(role="document", content=document),
    ]
    if instruction is not None:
        messages.insert(0, ChatMessage(role="system", content=instruction))
    return list(prompt_chat(tokenizer, template, messages, max_tokens=max_tokens).tokens)


def _as_jinja(text: str) -> str:
    """Convert ``text``, which contains ``{query}`` etc. as in GGUF files, to a chat template."""
    parts = []
    for index, part in enumerate(_PLACEHOLDER.split(text)):
        if index % 2 == 0:
            parts.append(f"{{{{ {json.dumps(part, ensure_ascii=False)} }}}}" if part else "")
            continue
        role = "system" if part == "instruction" else part
        default = json.dumps(_DEFAULT_INSTRUCTION if part == "instruction" else "")
        parts.append(
            f'{{% set found = messages | selectattr("role", "eq", "{role}") | list %}}'
            f"{{{{ found[0].content if found else {default} }}}}"
        )
    return "".join(parts)
