"""Convert Anthropic's request bodies to ``GenerationRequest``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from potluck.api.dialects.anthropic.bodies import (
    Message,
    MessagesBody,
    PromptBody,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from potluck.api.errors import invalid
from potluck.api.grammars import schema_grammar
from potluck.api.requests import ChatRequest, given
from potluck.api.tools import tool_use
from potluck.text.chat import chat_ending
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import ChatMessage, Tool, ToolCall

_MODES = {
    "auto": ToolMode.AUTO,
    "any": ToolMode.REQUIRED,
    "tool": ToolMode.REQUIRED,
    "none": ToolMode.NONE,
}

PARAMETER_NAMES = {"stop": "stop_sequences", "response_format": "output_config.format.schema"}
"""Anthropic's names of fields of ``GenerationRequest``, where they differ."""

_LOW_EFFORT_TOKENS = 4096
_MEDIUM_EFFORT_TOKENS = 16384
"""Values of ``budget_tokens`` for templates that support effort levels but no budgets."""


def messages_request(body: MessagesBody) -> ChatRequest:
    """Convert a request for a message. Raises ``PotluckError``."""
    return replace(
        prompt_request(body),
        sampling=given(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k),
        stop=body.stop_sequences or (),
        max_new_tokens=body.max_tokens,
        user=None if body.metadata is None else body.metadata.user_id,
    )


def prompt_request(body: PromptBody) -> ChatRequest:
    """Convert the chat of a request, without the answer's parameters. Raises ``PotluckError``."""
    messages = list(_messages(body))
    thinking = body.thinking
    return ChatRequest(
        messages=messages,
        ending=chat_ending(messages),
        tool_use=_tool_use(body),
        reasoning_effort=_effort(body),
        thinks=None if thinking is None else thinking.type != "disabled",
        grammar=_grammar(body),
    )


def _grammar(body: PromptBody) -> str | None:
    config = body.output_config
    output_format = body.output_format if config is None or config.format is None else config.format
    return (
        None
        if output_format is None
        else schema_grammar(output_format.schema, "output_config.format.schema")
    )


def _effort(body: PromptBody) -> str | None:
    if body.output_config is not None and body.output_config.effort is not None:
        return body.output_config.effort
    budget = None if body.thinking is None else body.thinking.budget_tokens
    if budget is None:
        return None
    if budget < 1:
        raise invalid("thinking.budget_tokens", "thinking.budget_tokens must be at least 1")
    if budget <= _LOW_EFFORT_TOKENS:
        return "low"
    return "medium" if budget <= _MEDIUM_EFFORT_TOKENS else "high"


def _tool_use(body: PromptBody) -> ToolUse:
    tools = [
        Tool(
            name=tool.name,
            description=tool.description or "",
            parameters=tool.input_schema,
            is_strict=bool(tool.strict),
        )
        for tool in body.tools or ()
    ]
    choice = body.tool_choice
    if choice is None:
        return tool_use(tools)
    if (choice.type == "tool") is (choice.name is None):
        raise invalid(
            "tool_choice.name",
            "tool_choice requires a name if its type is tool, and allows none otherwise",
        )
    return tool_use(
        tools,
        mode=_MODES[choice.type],
        name=choice.name,
        is_parallel=not choice.disable_parallel_tool_use,
    )


def _messages(body: PromptBody) -> Iterator[ChatMessage]:
    if body.system:
        yield ChatMessage(role="system", content=_text(body.system, "\n\n"))
    for index, message in enumerate(body.messages):
        where = f"messages[{index}]"
        if message.role == "assistant":
            yield _assistant(message, where)
        else:
            yield from _user(message, where)


def _assistant(message: Message, where: str) -> ChatMessage:
    if isinstance(message.content, str):
        return ChatMessage(role="assistant", content=message.content)
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for number, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        elif isinstance(block, ToolUseBlock):
            arguments = msgspec.json.encode(block.input).decode()
            calls.append(ToolCall(call_id=block.id, name=block.name, arguments=arguments))
        else:
            raise _misplaced(f"{where}.content[{number}]", block.type, message.role)
    return ChatMessage(
        role="assistant",
        content="".join(texts),
        tool_calls=tuple(calls),
        reasoning="".join(thoughts) or None,
    )


def _user(message: Message, where: str) -> Iterator[ChatMessage]:
    """Convert a user message; tool results become separate messages between the texts."""
    if isinstance(message.content, str):
        yield ChatMessage(role=message.role, content=message.content)
        return
    texts: list[str] = []
    for number, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ToolResultBlock) and message.role == "user":
            if texts:
                yield ChatMessage(role=message.role, content="".join(texts))
                texts.clear()
            yield ChatMessage(role="tool", content=_result(block), tool_call_id=block.tool_use_id)
        else:
            raise _misplaced(f"{where}.content[{number}]", block.type, message.role)
    if texts or not message.content:
        yield ChatMessage(role=message.role, content="".join(texts))


def _result(block: ToolResultBlock) -> str:
    text = _text(block.content or "", "")
    if block.is_error and not text.lower().startswith("error"):
        return f"Error: {text}"
    return text


def _text(content: str | Sequence[TextBlock], separator: str) -> str:
    return content if isinstance(content, str) else separator.join(each.text for each in content)


def _misplaced(where: str, kind: str, role: str) -> Exception:
    return invalid(
        f"{where}.type",
        f"{where} has the type {kind}, which a message with the role {role} cannot have",
    )
