"""Convert bodies of ``/v1/responses`` to ``GenerationRequest``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeGuard

import msgspec

from potluck.api.bodies import validated
from potluck.api.dialects.openai.responses.bodies import (
    AllowedTools,
    AnyTool,
    ApplyPatchCallItem,
    ApplyPatchOutputItem,
    CallOutputItem,
    ClientToolBody,
    Content,
    CustomCallItem,
    CustomToolBody,
    ForeignItem,
    FunctionCallItem,
    Item,
    LocalShellOutputItem,
    McpCallItem,
    MessageItem,
    NameableTool,
    NamedTool,
    NamespaceBody,
    ReasoningItem,
    ReferenceItem,
    ResponseBody,
    ServerToolBody,
    ShellCallItem,
    ShellOutputItem,
    TextPart,
    ToolBody,
    ToolChoice,
    parse_items,
)
from potluck.api.dialects.openai.responses.tools import (
    CLIENT_TOOLS,
    CUSTOM,
    FUNCTION,
    INPUT,
    ClientTool,
    custom_tool,
    qualified,
)
from potluck.api.errors import invalid
from potluck.api.grammars import schema_grammar
from potluck.api.requests import ChatRequest, given
from potluck.api.tools import not_among, tool_use
from potluck.grammars import build
from potluck.text.chat import chat_ending
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import ChatMessage, Tool, ToolCall

PARAMETER_NAMES = {"max_tokens": "max_output_tokens", "response_format": "text.format.schema"}
"""The Responses API's names of fields of ``GenerationRequest``, where they differ."""

_CallItem = FunctionCallItem | CustomCallItem | ShellCallItem | ApplyPatchCallItem

UsableTool = NameableTool | NamespaceBody | ClientToolBody
"""A tool that the client executes."""

_NAMESPACE = "namespace"

_TEXT_TYPES = ("input_text", "output_text", "text", "reasoning_text", "summary_text")


def response_request(body: ResponseBody, chat: Sequence[ChatMessage]) -> ChatRequest:
    """Convert a body whose input is the end of ``chat``. Raises ``PotluckError``."""
    instructions = body.instructions
    system = (ChatMessage(role="system", content=instructions),) if instructions else ()
    messages = [*system, *chat]
    effort = None if body.reasoning is None else body.reasoning.effort
    wants_logprobs = "message.output_text.logprobs" in (body.include or ())
    return ChatRequest(
        sampling=given(temperature=body.temperature, top_p=body.top_p),
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


def input_items(body: ResponseBody, find: Callable[[str], Mapping[str, Any] | None]) -> list[Item]:
    """Return the items of ``input``; for a reference the item itself, if ``find`` has it."""
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]

    @cache  # a hostile body may refer to a long item many times
    def referred(item_id: str) -> Item | None:
        found = find(item_id)
        return None if found is None else parse_items([found])[0]

    return [
        (referred(item.id) or item) if isinstance(item, ReferenceItem) else item
        for item in body.input
    ]


def server_tools(body: ResponseBody) -> list[str]:
    """Return the types of tools that only OpenAI's servers execute."""
    return [*dict.fromkeys(tool.type for tool in body.tools or () if not _is_usable(tool))]


def usable_tools(body: ResponseBody) -> list[UsableTool]:
    """Return the tools that the client executes, as the body has them."""
    return [tool for tool in body.tools or () if _is_usable(tool)]


def _is_usable(tool: AnyTool) -> TypeGuard[UsableTool]:
    """Return whether the client executes a tool; a shell may run in a container of OpenAI's."""
    if isinstance(tool, ClientToolBody) and tool.environment is not None:
        return tool.environment.get("type") == "local"
    return not isinstance(tool, ServerToolBody)


def warnings_of(body: ResponseBody, items: Sequence[Item]) -> list[str]:
    """Return what is ignored of a request: server-side tools, and other servers' items."""
    ignored = server_tools(body)
    left_out = dict.fromkeys(
        item.type for item in items if isinstance(item, ForeignItem | ReferenceItem)
    )
    warnings = []
    if ignored:
        warnings.append(
            f"tools that only OpenAI's servers execute are ignored: {', '.join(ignored)}"
        )
    if left_out:
        warnings.append(
            f"items that only another server can read are left out: {', '.join(left_out)}"
        )
    return warnings


def item_messages(items: Sequence[Item]) -> list[ChatMessage]:
    """Return the messages that items make up.

    The items of one assistant turn become one message, as chat templates expect.
    """
    messages: list[ChatMessage] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        match item:
            case MessageItem(role="assistant"):
                _extend(messages, content=_text(item.content, f"{where}.content"))
            case MessageItem():
                content = _text(item.content, f"{where}.content")
                messages.append(ChatMessage(role=item.role, content=content))
            case ReasoningItem():
                thoughts = _text(item.content or item.summary, f"{where}.content")
                if thoughts:  # reasoning that another server has encrypted has no content
                    messages.append(ChatMessage(role="assistant", content="", reasoning=thoughts))
            case CallOutputItem():
                _append_result(messages, item.call_id, _text(item.output, f"{where}.output"))
            case LocalShellOutputItem():
                _append_result(messages, item.call_id or item.id, item.output)
            case ShellOutputItem():
                _append_result(messages, item.call_id, _as_text(item.output))
            case ApplyPatchOutputItem():
                _append_result(messages, item.call_id, item.output or item.status or "completed")
            case McpCallItem():
                call = ToolCall(call_id=item.id, name=item.name, arguments=item.arguments)
                _extend(messages, calls=(call,))
                result = item.output if item.error is None else _as_text(item.error)
                _append_result(messages, item.id, result or "")
            case FunctionCallItem() | CustomCallItem() | ShellCallItem() | ApplyPatchCallItem():
                _extend(messages, calls=(_call(item),))
    return messages


def _call(item: _CallItem) -> ToolCall:
    """Return the call of the function as which the model knows a tool."""
    match item:
        case FunctionCallItem():
            name, arguments = qualified(item.namespace, item.name), item.arguments
        case CustomCallItem():
            name = qualified(item.namespace, item.name)
            arguments = _as_text({INPUT: item.input})
        case ShellCallItem(action=fields) | ApplyPatchCallItem(operation=fields):
            name = item.type.removesuffix("_call")
            arguments = _arguments(name, fields)
    return ToolCall(call_id=item.call_id, name=name, arguments=arguments)


def _arguments(name: str, fields: Mapping[str, Any]) -> str:
    """Return the fields of a call that are arguments of the function."""
    known = CLIENT_TOOLS[name].function.parameters["properties"]
    names = known if isinstance(known, Mapping) else {}
    return _as_text({name: fields[name] for name in names if fields.get(name) is not None})


def _append_result(messages: list[ChatMessage], call_id: str | None, content: str) -> None:
    messages.append(ChatMessage(role="tool", content=content, tool_call_id=call_id))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


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
    if text_format.schema is None:
        raise invalid(
            "text.format.schema",
            "text.format.schema is required",
            code="missing_required_parameter",
        )
    return schema_grammar(text_format.schema, "text.format.schema")


def client_tools(body: ResponseBody) -> list[ClientTool]:
    """Return the tools that the model may call."""
    tools = []
    for each in usable_tools(body):
        match each:
            case ClientToolBody(type=kind):
                tools.append(CLIENT_TOOLS[kind])
            case NamespaceBody():
                description = each.description
                for tool in each.tools:
                    tools.append(_named(tool, each.name, description))
                    description = ""
            case NameableTool():
                tools.append(_named(each))
    return tools


def _named(tool: NameableTool, namespace: str | None = None, preface: str = "") -> ClientTool:
    """Return a tool that the client has named; ``preface`` precedes its description."""
    names = {"name": tool.name, **({"namespace": namespace} if namespace else {})}
    description = "\n\n".join(filter(None, (preface, tool.description)))
    name = qualified(namespace, tool.name)
    if isinstance(tool, ToolBody):
        form = replace(FUNCTION, names=names)
        function = Tool(
            name=name,
            description=description,
            parameters=tool.parameters or {},
            is_strict=tool.strict is not False,
        )
    elif isinstance(tool, CustomToolBody):
        grammar = ("", "") if tool.format is None else (tool.format.syntax, tool.format.definition)
        function = custom_tool(name, description, *(each or "" for each in grammar))
        form = replace(CUSTOM, names=names)
    return ClientTool(function=function, form=form, name=tool.name, namespace=namespace)


def tool_choice(body: ResponseBody) -> str | ToolChoice:
    """Return the choice of tools. Raises ``ApiError`` that names the invalid field."""
    choice = "auto" if body.tool_choice is None else body.tool_choice
    return choice if isinstance(choice, str) else validated(ToolChoice, choice, "tool_choice")


def _tool_use(body: ResponseBody) -> ToolUse:
    tools = client_tools(body)
    is_parallel = body.parallel_tool_calls is not False
    choice = tool_choice(body)
    mode, name = ToolMode.REQUIRED, None
    if isinstance(choice, NamedTool):
        name = choice.name or choice.type
        named = _by_name(tools)[choice.type == _NAMESPACE, name]
        name = named[0] if len(named) == 1 else name
    elif isinstance(choice, AllowedTools):
        tools, mode = _allowed(tools, choice), ToolMode(choice.mode)
    else:
        mode = ToolMode(choice)
    functions = [tool.function for tool in tools]
    return tool_use(functions, mode=mode, name=name, is_parallel=is_parallel)


def _allowed(tools: Sequence[ClientTool], choice: AllowedTools) -> list[ClientTool]:
    """Return the tools that may be called; the model is not shown the others."""
    by_name = _by_name(tools)
    entries: dict[tuple[bool, str], None] = {}  # a hostile body may repeat one many times
    for index, each in enumerate(choice.tools):
        name = each.name or each.type
        entry = (each.type == _NAMESPACE, name)
        is_client_tool = each.type in ("function", "custom", _NAMESPACE, *CLIENT_TOOLS)
        if is_client_tool and entry not in by_name:
            raise not_among(f"tool_choice.tools[{index}]", name)
        entries[entry] = None
    allowed = {name for entry in entries for name in by_name[entry]}
    return [tool for tool in tools if tool.function.name in allowed]


def _by_name(tools: Sequence[ClientTool]) -> Mapping[tuple[bool, str], list[str]]:
    """Return the names of the functions that an entry of ``tool_choice`` means.

    It is the name of a namespace (True), or one of the two names of a tool.
    """
    found: defaultdict[tuple[bool, str], list[str]] = defaultdict(list)
    for tool in tools:
        for name in {tool.name, tool.function.name}:
            found[False, name].append(tool.function.name)
        if tool.namespace is not None:
            found[True, tool.namespace].append(tool.function.name)
    return found
