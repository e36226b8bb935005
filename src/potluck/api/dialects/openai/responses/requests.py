"""Convert bodies of ``/v1/responses`` to ``GenerationRequest``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from potluck.api.dialects.openai.responses.bodies import (
    Content,
    FunctionCallItem,
    FunctionOutputItem,
    MessageItem,
    NamedTool,
    ReasoningItem,
    ResponseBody,
    TextPart,
)
from potluck.api.errors import invalid
from potluck.api.grammars import schema_grammar
from potluck.api.requests import ChatRequest
from potluck.api.tools import tool_use
from potluck.grammars import build
from potluck.text.chat import chat_ending
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import ChatMessage, Tool, ToolCall

PARAMETER_NAMES = {"max_tokens": "max_output_tokens", "response_format": "text.format.schema"}
"""The Responses API's names of fields of ``GenerationRequest``, where they differ."""

_TEXT_TYPES = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def response_request(body: ResponseBody, chat: Sequence[ChatMessage]) -> ChatRequest:
    """Convert a body whose input is the end of ``chat``. Raises ``PotluckError``."""
    instructions = body.instructions
    system = (ChatMessage(role="system", content=instructions),) if instructions else ()
    messages = [*system, *chat]
    effort = None if body.reasoning is None else body.reasoning.effort
    sampling = {"temperature": body.temperature, "top_p": body.top_p}
    wants_logprobs = "message.output_text.logprobs" in (body.include or ())
    return ChatRequest(
        model_id=body.model,
        sampling={name: value for name, value in sampling.items() if value is not None},
        max_new_tokens=body.max_output_tokens,
        top_logprobs=(body.top_logprobs or 0) if wants_logprobs or body.top_logprobs else None,
        grammar=_grammar(body),
        user=body.user,
        messages=messages,
        ending=chat_ending(messages, add_generation_prompt=True),
        tool_use=_tool_use(body),
        reasoning_effort=effort,
        thinks=None if effort is None else effort != "none",
    )


def input_messages(body: ResponseBody) -> list[ChatMessage]:
    """Return the messages that a body adds to the chat.

    The items of one assistant turn become one message, as chat templates expect.
    """
    if isinstance(body.input, str):
        return [ChatMessage(role="user", content=body.input)]
    messages: list[ChatMessage] = []
    for index, item in enumerate(body.input):
        where = f"input[{index}]"
        match item:
            case MessageItem(role="assistant"):
                _extend(messages, content=_text(item.content, f"{where}.content"))
            case MessageItem():
                content = _text(item.content, f"{where}.content")
                messages.append(ChatMessage(role=item.role, content=content))
            case FunctionCallItem():
                call = ToolCall(call_id=item.call_id, name=item.name, arguments=item.arguments)
                _extend(messages, calls=(call,))
            case FunctionOutputItem():
                content = _text(item.output, f"{where}.output")
                messages.append(
                    ChatMessage(role="tool", content=content, tool_call_id=item.call_id)
                )
            case ReasoningItem():
                thoughts = _text(item.content or item.summary, f"{where}.content")
                if thoughts:  # reasoning that another server has encrypted has no content
                    messages.append(ChatMessage(role="assistant", content="", reasoning=thoughts))
    return messages


def _extend(
    messages: list[ChatMessage], *, content: str = "", calls: tuple[ToolCall, ...] = ()
) -> None:
    """Append to the assistant's turn, or start one."""
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or (content and (last.content or last.tool_calls)):
        messages.append(ChatMessage(role="assistant", content=content, tool_calls=calls))
        return
    messages[-1] = replace(last, content=last.content + content, tool_calls=last.tool_calls + calls)


def _text(content: Content, where: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_text_of(part, f"{where}[{number}]") for number, part in enumerate(content))


def _text_of(part: TextPart, where: str) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXT_TYPES or part.text is None:
        raise invalid(
            f"{where}.type",
            f"{where} has the type {part.type[:20]!r}: only text is supported",
            code="unsupported_value",
        )
    return part.text


def _grammar(body: ResponseBody) -> str | None:
    text_format = None if body.text is None else body.text.format
    if text_format is None or text_format.type == "text":
        return None
    if text_format.type == "json_object":
        return build.json_object()
    if text_format.schema_ is None:
        raise invalid(
            "text.format.schema",
            "text.format.schema is required",
            code="missing_required_parameter",
        )
    return schema_grammar(text_format.schema_, "text.format.schema")


def _tool_use(body: ResponseBody) -> ToolUse:
    tools = [
        Tool(
            name=tool.name,
            description=tool.description or "",
            parameters=tool.parameters or {},
            is_strict=tool.strict is not False,
        )
        for tool in body.tools or ()
    ]
    is_parallel = body.parallel_tool_calls is not False
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        return tool_use(tools, mode=ToolMode.REQUIRED, name=choice.name, is_parallel=is_parallel)
    return tool_use(tools, mode=ToolMode(choice or "auto"), is_parallel=is_parallel)
