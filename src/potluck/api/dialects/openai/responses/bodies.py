"""The body of ``/v1/responses``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from potluck.api.bodies import FIRST_ERROR, STRICT, check_type, parse_object, validated
from potluck.api.dialects.openai.other_fields import PROMPT_CACHE, SERVICE, STREAM_OPTIONS
from potluck.api.errors import invalid
from potluck.api.other_fields import (
    BOOLEAN,
    LABEL,
    LABELS,
    OBJECT,
    IgnoredField,
    InertFields,
    drop_inert_fields,
)

_LENIENT = ConfigDict(extra="ignore", strict=True, frozen=True)
"""Ignored fields of items, which clients send back as received, with ids, states and annotations.
"""


class TextPart(BaseModel):
    """A text part of a message, of reasoning, or of a tool's output."""

    model_config = _LENIENT

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[list[TextPart], FIRST_ERROR]


class MessageItem(BaseModel):
    """A message of the chat."""

    model_config = _LENIENT

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(BaseModel):
    """A tool call of the assistant."""

    model_config = _LENIENT

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CallOutputItem(BaseModel):
    """The result of a call of a function or a custom tool."""

    model_config = _LENIENT

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content


class ReasoningItem(BaseModel):
    """The assistant's reasoning."""

    model_config = _LENIENT

    type: Literal["reasoning"]
    summary: Annotated[list[TextPart], FIRST_ERROR] = []
    content: Annotated[list[TextPart], FIRST_ERROR] | None = None


class CustomCallItem(BaseModel):
    """A call of a custom tool."""

    model_config = _LENIENT

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str


class ShellCallItem(BaseModel):
    """A program or shell commands that the client has run."""

    model_config = _LENIENT

    type: Literal["local_shell_call", "shell_call"]
    call_id: str
    action: dict[str, Any]


class LocalShellOutputItem(BaseModel):
    """The output of a program. The API's reference names the call by ``id``."""

    model_config = _LENIENT

    type: Literal["local_shell_call_output"]
    call_id: str | None = None
    id: str | None = None
    output: str


class ShellOutputItem(BaseModel):
    """The outputs of shell commands."""

    model_config = _LENIENT

    type: Literal["shell_call_output"]
    call_id: str
    output: str | list[dict[str, Any]]


class ApplyPatchCallItem(BaseModel):
    """A change of a file by the client."""

    model_config = _LENIENT

    type: Literal["apply_patch_call"]
    call_id: str
    operation: dict[str, Any]


class ApplyPatchOutputItem(BaseModel):
    """The result of a change of a file."""

    model_config = _LENIENT

    type: Literal["apply_patch_call_output"]
    call_id: str
    status: str | None = None
    output: str | None = None


class McpCallItem(BaseModel):
    """A call that another server has made, with its result."""

    model_config = _LENIENT

    type: Literal["mcp_call"]
    id: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None


class ReferenceItem(BaseModel):
    """An item of an earlier response."""

    model_config = _LENIENT

    type: Literal["item_reference"]
    id: str


class ForeignItem(BaseModel):
    """An item of another server that says nothing to a model here, such as an encrypted summary."""

    model_config = _LENIENT

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


Item = Annotated[
    MessageItem
    | FunctionCallItem
    | CustomCallItem
    | CallOutputItem
    | ReasoningItem
    | ShellCallItem
    | LocalShellOutputItem
    | ShellOutputItem
    | ApplyPatchCallItem
    | ApplyPatchOutputItem
    | McpCallItem
    | ReferenceItem
    | ForeignItem,
    Field(discriminator="type"),
]


class ToolBody(BaseModel):
    """A function that the model may call. ``parameters`` is a JSON schema."""

    model_config = STRICT

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CustomFormat(BaseModel):
    """The form of a custom tool's input. A grammar is shown to the model, but not enforced."""

    model_config = STRICT

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomToolBody(BaseModel):
    """A tool whose input is a text."""

    model_config = STRICT

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: CustomFormat | None = None


class NamespaceBody(BaseModel):
    """Tools with a common prefix. The model sees ``description`` with the first of them."""

    model_config = STRICT

    type: Literal["namespace"]
    name: str
    description: str = ""
    tools: Annotated[
        list[Annotated[ToolBody | CustomToolBody, Field(discriminator="type")]], FIRST_ERROR
    ]


class ClientToolBody(BaseModel):
    """A tool of the API's own that the client executes. ``environment`` says where a shell runs."""

    model_config = STRICT

    type: Literal["local_shell", "shell", "apply_patch"]
    environment: dict[str, Any] | None = None


class ServerToolBody(BaseModel):
    """A tool that OpenAI's servers execute; it is ignored."""

    model_config = _LENIENT

    type: Literal[
        "code_interpreter",
        "file_search",
        "image_generation",
        "mcp",
        "tool_search",
        "web_search",
        "web_search_preview",
    ]


AnyTool = Annotated[
    ToolBody | CustomToolBody | NamespaceBody | ClientToolBody | ServerToolBody,
    Field(discriminator="type"),
]


class NamedTool(BaseModel):
    """A ``tool_choice`` of one tool. Tools of the API's own have no ``name``."""

    model_config = STRICT

    type: Literal["function", "custom", "local_shell", "shell", "apply_patch"]
    name: str | None = None


class AllowedTool(BaseModel):
    """One of some tools. Tools of the API's own have no ``name``; other fields are ignored."""

    model_config = _LENIENT

    type: str
    name: str | None = None


class AllowedTools(BaseModel):
    """A ``tool_choice`` of some tools."""

    model_config = STRICT

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], FIRST_ERROR]


class TextFormat(BaseModel):
    """The required format of the answer's text. ``name``, ``description`` and ``strict`` have no
    effect.
    """

    model_config = STRICT

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    """``text``. ``verbosity`` is for models that were trained with such a parameter."""

    model_config = STRICT

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(BaseModel):
    """``reasoning``. Potluck returns the reasoning itself and creates no summaries."""

    model_config = STRICT

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(BaseModel):
    """``stream_options``, which do not change an answer."""

    model_config = STRICT


class ResponseBody(BaseModel):
    """The body of ``/v1/responses``."""

    model_config = STRICT

    model: str
    input: str | Annotated[list[Item], FIRST_ERROR]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    tools: Annotated[list[AnyTool], FIRST_ERROR] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    include: Annotated[list[str], FIRST_ERROR] | None = None
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
    document = drop_inert_fields(parse_object(body), _OTHERS, "")
    options = document.get("stream_options")
    if isinstance(options, dict):
        document["stream_options"] = drop_inert_fields(options, STREAM_OPTIONS, "stream_options.")
    items = document.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            if "type" not in item:
                is_reference = "id" in item and "role" not in item
                item["type"] = "item_reference" if is_reference else "message"
            check_type(item, f"input[{index}]", _ITEM_TYPES)
    _drop_inert_fields_of_tools(document, "", _TOOL_TYPES)
    choice = document.get("tool_choice")
    if isinstance(choice, dict):
        check_type(choice, "tool_choice", _CHOICE_TYPES)
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


def _drop_inert_fields_of_tools(
    document: dict[str, Any], where: str, supported: Sequence[str]
) -> None:
    """Check the types of ``tools``, and remove their dates and their fields without effect."""
    tools = document.get("tools")
    if not isinstance(tools, list):
        return
    for index, each in enumerate(tools):
        if not (isinstance(each, dict) and isinstance(each.get("type"), str)):
            continue
        at = f"{where}tools[{index}]"
        tool = {**each, "type": _DATE.sub("", each["type"])}
        check_type(tool, at, supported)
        if tool["type"] in _NAMED_TYPES:
            tool = drop_inert_fields(tool, _NAMED_TOOL, f"{at}.")
        elif tool["type"] == "namespace":
            _drop_inert_fields_of_tools(tool, f"{at}.", _NAMED_TYPES)
        tools[index] = tool


def parse_items(items: Sequence[Any]) -> list[Item]:
    """Return items that a response here consists of, as items of ``input``."""
    return _ITEMS.validate_python(items)


_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


def _types_of(union: Any) -> tuple[str, ...]:
    """Return the values of the field ``type`` of the classes in an annotated union."""
    return tuple(
        kind
        for each in get_args(get_args(union)[0])
        for kind in get_args(each.model_fields["type"].annotation)
    )


_ITEM_TYPES = _types_of(Item)
_TOOL_TYPES = _types_of(AnyTool)
_NAMED_TYPES = ("function", "custom")
_CHOICE_TYPES = (*get_args(NamedTool.model_fields["type"].annotation), "allowed_tools")
