"""The body of ``/v1/responses``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec

from potluck.api.bodies import (
    LenientObject,
    OneOf,
    StrictObject,
    check_type,
    parse_object,
    validated,
    variants,
)
from potluck.api.dialects.openai.bodies import ReasoningEffort
from potluck.api.dialects.openai.ignored_fields import PROMPT_CACHE, SERVICE, STREAM_OPTIONS
from potluck.api.errors import invalid
from potluck.api.ignored_fields import (
    BOOLEAN,
    LABEL,
    LABELS,
    OBJECT,
    IgnoredField,
    InertFields,
    change_items,
    drop_inert_fields,
    drop_inert_fields_of,
)


class TextPart(LenientObject, frozen=True, kw_only=True):
    """A text part of a message, of reasoning, or of a tool's output. Clients send parts and items
    back as received, with ids, states and annotations, which are ignored.
    """

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | list[TextPart]


class Item(OneOf):
    """An item of ``input``."""

    __slots__ = ()


class MessageItem(LenientObject, Item, frozen=True, kw_only=True):
    """A message of the chat."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(LenientObject, Item, frozen=True, kw_only=True):
    """A tool call of the assistant."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CallOutputItem(LenientObject, Item, frozen=True, kw_only=True):
    """The result of a call of a function or a custom tool."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


class ReasoningItem(LenientObject, Item, frozen=True, kw_only=True):
    """The assistant's reasoning."""

    type: Literal["reasoning"]
    summary: list[TextPart] = msgspec.field(default_factory=list)
    content: list[TextPart] | None = None


class CustomCallItem(LenientObject, Item, frozen=True, kw_only=True):
    """A call of a custom tool."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str


class ShellCallItem(LenientObject, Item, frozen=True, kw_only=True):
    """A program or shell commands that the client has run."""

    type: Literal["local_shell_call", "shell_call"]
    call_id: str
    action: dict[str, Any]


class LocalShellOutputItem(LenientObject, Item, frozen=True, kw_only=True):
    """The output of a program. The API's reference names the call by ``id``."""

    type: Literal["local_shell_call_output"]
    call_id: str | None = None
    id: str | None = None
    output: str


class ShellOutputItem(LenientObject, Item, frozen=True, kw_only=True):
    """The outputs of shell commands."""

    type: Literal["shell_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]


class ApplyPatchCallItem(LenientObject, Item, frozen=True, kw_only=True):
    """A change of a file by the client."""

    type: Literal["apply_patch_call"]
    call_id: str
    operation: dict[str, Any]


class ApplyPatchOutputItem(LenientObject, Item, frozen=True, kw_only=True):
    """The result of a change of a file."""

    type: Literal["apply_patch_call_output"]
    call_id: str
    status: str | None = None
    output: str | None = None


class McpCallItem(LenientObject, Item, frozen=True, kw_only=True):
    """A call that another server has made, with its result."""

    type: Literal["mcp_call"]
    id: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None


class ReferenceItem(LenientObject, Item, frozen=True, kw_only=True):
    """An item of an earlier response."""

    type: Literal["item_reference"]
    id: str


class ForeignItem(LenientObject, Item, frozen=True, kw_only=True):
    """An item of another server that says nothing to a model here, such as an encrypted summary."""

    type: Literal[
        "code_interpreter_call",
        "compaction",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    ]


class AnyTool(OneOf):
    """A tool."""

    __slots__ = ()


class NameableTool(AnyTool):
    """A tool that the client has named. It can be in a namespace."""

    __slots__ = ()

    name: str
    description: str | None


class ToolBody(StrictObject, NameableTool, frozen=True, kw_only=True):
    """A function that the model may call. ``parameters`` is a JSON schema."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFormat(StrictObject, frozen=True, kw_only=True):
    """The form of a custom tool's input. A grammar is shown to the model, but not enforced."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomToolBody(StrictObject, NameableTool, frozen=True, kw_only=True):
    """A tool whose input is a text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class NamespaceBody(StrictObject, AnyTool, frozen=True, kw_only=True):
    """Tools with a common prefix. The model sees ``description`` with the first of them."""

    type: Literal["namespace"]
    name: str
    description: str = ""
    tools: list[NameableTool]


class ClientToolBody(StrictObject, AnyTool, frozen=True, kw_only=True):
    """A tool of the API's own that the client executes. ``environment`` says where a shell runs."""

    type: Literal["local_shell", "shell", "apply_patch"]
    environment: dict[str, Any] | None = None


class ServerToolBody(LenientObject, AnyTool, frozen=True, kw_only=True):
    """A tool that OpenAI's servers execute; it is ignored."""

    type: Literal[
        "code_interpreter",
        "file_search",
        "image_generation",
        "mcp",
        "tool_search",
        "web_search",
        "web_search_preview",
    ]


class ToolChoice(OneOf):
    """A ``tool_choice`` that is an object."""

    __slots__ = ()


class NamedTool(StrictObject, ToolChoice, frozen=True, kw_only=True):
    """A ``tool_choice`` of one tool. Tools of the API's own have no ``name``."""

    type: Literal["function", "custom", "local_shell", "shell", "apply_patch"]
    name: str | None = None


class AllowedTool(LenientObject, frozen=True, kw_only=True):
    """One of some tools. Tools of the API's own have no ``name``; other fields are ignored."""

    type: str
    name: str | None = None


class AllowedTools(StrictObject, ToolChoice, frozen=True, kw_only=True):
    """A ``tool_choice`` of some tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class TextFormat(StrictObject, frozen=True, kw_only=True):
    """The required format of the answer's text. ``name``, ``description`` and ``strict`` have no
    effect.
    """

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextOptions(StrictObject, frozen=True, kw_only=True):
    """``text``. ``verbosity`` is for models that were trained with such a parameter."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(StrictObject, frozen=True, kw_only=True):
    """``reasoning``. Potluck returns the reasoning itself and creates no summaries."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(StrictObject, frozen=True, kw_only=True):
    """``stream_options``, which do not change an answer."""


class ResponseBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/v1/responses``."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    tools: list[AnyTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    stream: bool | None = None
    user: str | None = None


_OTHERS = InertFields(
    harmless={
        **SERVICE,
        **PROMPT_CACHE,
        # The limit of calls to built-in tools; Potluck has none.
        "max_tool_calls": IgnoredField(
            expected="an integer", holds=lambda value: type(value) is int
        ),
        "client_metadata": OBJECT,
        "metadata": replace(LABELS, is_kept=True),  # repeated in the response
        "user": replace(LABEL, is_kept=True),  # written to the agent's log
    },
    neutral={
        "access_programs": (None, []),
        "background": (None, False),
        "background_options": (None,),
        "conversation": (None,),
        "context_management": (None, []),
        "image": (None,),
        "moderation": (None,),
        "prompt": (None,),
        "truncation": (None, "disabled"),
    },
)

_NAMED_TOOL = InertFields(
    harmless={
        # Whether the model finds the tool by a search; here it knows all tools.
        "defer_loading": BOOLEAN,
        "output_schema": OBJECT,
    },
    neutral={"allowed_callers": (None, ["direct"]), "async": (None, False)},
)
"""Fields of functions and custom tools."""

_INCLUDED = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Supported values of ``include``. Only log-probabilities exist here: the others ask for parts of
items that no answer has, and reasoning is always returned in plain text."""

_DATE = re.compile(r"_\d{4}_\d{2}_\d{2}")
"""The date of a version at the end of a tool's type."""


def parse_response(body: bytes | bytearray) -> ResponseBody:
    """Parse a request for a response. Raises ``ApiError`` that names the invalid field."""
    document = parse_object(body, _OTHERS)
    drop_inert_fields_of(document, "stream_options", STREAM_OPTIONS)
    change_items(document, "input", _typed_item)
    change_items(document, "tools", partial(_plain_tool, kind=AnyTool))
    choice = document.get("tool_choice")
    if isinstance(choice, dict):
        check_type(choice, "tool_choice", variants(ToolChoice))
    read = validated(ResponseBody, document)
    for each in read.include or ():
        if each not in _INCLUDED:
            raise invalid(
                "include",
                f"include has the unsupported value {each[:60]!r}; supported: "
                f"{', '.join(_INCLUDED)}",
                code="unsupported_value",
            )
    return read


def _typed_item(item: dict[str, Any], where: str) -> dict[str, Any]:
    if "type" not in item:
        is_reference = "id" in item and "role" not in item
        item["type"] = "item_reference" if is_reference else "message"
    check_type(item, where, variants(Item))
    return item


def _plain_tool(tool: dict[str, Any], where: str, kind: type[AnyTool]) -> dict[str, Any]:
    """Check the type of a tool, and remove its date and the fields without effect."""
    if not isinstance(tool.get("type"), str):
        return tool
    tool = {**tool, "type": _DATE.sub("", tool["type"])}
    check_type(tool, where, variants(kind))
    if tool["type"] in variants(NameableTool):
        return drop_inert_fields(tool, _NAMED_TOOL, where)
    if tool["type"] == "namespace":
        change_items(tool, "tools", partial(_plain_tool, kind=NameableTool), where)
    return tool


def parse_items(items: Sequence[Any]) -> list[Item]:
    """Return items that a response here consists of, as items of ``input``."""
    return validated(list[Item], items)
