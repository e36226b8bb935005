"""Bodies of the Responses API, and what they ask for.

https://platform.openai.com/docs/api-reference/responses/create
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.processes.proportion import assert_in_proportion

from potluck import grammars
from potluck.api.dialects.openai.responses.bodies import ResponseBody, parse_response
from potluck.api.dialects.openai.responses.requests import (
    input_items,
    item_messages,
    response_request,
    warnings_of,
)
from potluck.api.dialects.openai.responses.tools import (
    CLIENT_TOOLS,
    custom_input,
)
from potluck.api.errors import ApiError
from potluck.api.requests import ChatRequest
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import ChatEnding, ChatMessage, Tool, ToolCall

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FIND = {"type": "function", "name": "find", "parameters": SCHEMA}


def parsed(**fields: Any) -> ResponseBody:
    return parse_response(json.dumps({"model": "m", "input": "hi", **fields}).encode())


def to_request(**fields: Any) -> ChatRequest:
    body = parsed(**fields)
    return response_request(body, item_messages(input_items(body, unknown)))


def unknown(item_id: str) -> None:
    """No item is kept."""


def messages(*items: object) -> list[ChatMessage]:
    return item_messages(input_items(parsed(input=list(items)), unknown))


def warnings(**fields: Any) -> list[str]:
    body = parsed(**fields)
    return warnings_of(body, input_items(body, unknown))


def test_a_plain_request() -> None:
    assert to_request() == ChatRequest(
        messages=[ChatMessage(role="user", content="hi")],
        ending=ChatEnding.NEW_TURN,
    )


def test_every_field() -> None:
    read = to_request(
        instructions="Be brief",
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_logprobs=2,
        tools=[FIND, {"type": "function", "name": "clock", "description": "Time", "strict": False}],
        tool_choice="required",
        parallel_tool_calls=False,
        reasoning={"effort": "high", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}},
        include=["reasoning.encrypted_content"],
        metadata={"a": "b"},
        user="somebody",
        store=False,
        stream=True,
        stream_options={"include_obfuscation": False},
    )
    assert read == ChatRequest(
        messages=[
            ChatMessage(role="system", content="Be brief"),
            ChatMessage(role="user", content="hi"),
        ],
        sampling={"temperature": 0.5, "top_p": 0.9},
        max_new_tokens=9,
        top_logprobs=2,
        grammar=grammars.json_schema(SCHEMA),
        user="somebody",
        tool_use=ToolUse(
            tools=(
                Tool(name="find", parameters=SCHEMA, is_strict=True),
                Tool(name="clock", description="Time"),
            ),
            mode=ToolMode.REQUIRED,
            is_parallel=False,
        ),
        reasoning_effort="high",
        thinks=True,
    )


def test_log_probabilities_may_be_included() -> None:
    assert to_request().top_logprobs is None
    assert to_request(include=["message.output_text.logprobs"]).top_logprobs == 0


def test_no_effort_is_no_thought() -> None:
    assert to_request(reasoning={"effort": "none"}).thinks is False
    assert to_request(reasoning={}).thinks is None


def test_a_named_tool() -> None:
    use = to_request(tools=[FIND], tool_choice={"type": "function", "name": "find"}).tool_use
    assert (use.mode, use.name) == (ToolMode.REQUIRED, "find")


@pytest.mark.parametrize(
    ("text", "grammar"),
    [
        (None, None),
        ({}, None),
        ({"format": {"type": "text"}, "verbosity": "low"}, None),
        ({"format": {"type": "json_object"}}, grammars.json_object()),
    ],
)
def test_forms_of_the_text(text: object, grammar: str | None) -> None:
    assert to_request(text=text).grammar == grammar


def test_messages_of_all_roles() -> None:
    assert messages(
        {"role": "developer", "content": "Be brief"},
        {"role": "system", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "d", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "e"}]},
    ) == [
        ChatMessage(role="developer", content="Be brief"),
        ChatMessage(role="system", content="a"),
        ChatMessage(role="user", content="bc"),
        ChatMessage(role="assistant", content="de"),
    ]  # fmt: skip


def call(call_id: str, name: str = "find") -> dict[str, str]:
    return {
        "type": "function_call",
        "id": "fc",
        "call_id": call_id,
        "name": name,
        "arguments": "{}",
    }


def output(call_id: str, text: object) -> dict[str, object]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def test_items_of_one_turn_are_one_message() -> None:
    thoughts = {"type": "reasoning", "id": "rs", "summary": [], "content": [
        {"type": "reasoning_text", "text": "Hm"}]}  # fmt: skip
    message = {"type": "message", "role": "assistant", "content": "I look."}
    assert messages(
        {"role": "user", "content": "hi"},
        thoughts,
        message,
        call("c1"),
        call("c2", "clock"),
        output("c1", "x"),
        output("c2", [{"type": "input_text", "text": "y"}]),
        thoughts,
        call("c3"),
        output("c3", ""),
    ) == [
        ChatMessage(role="user", content="hi"),
        ChatMessage(
            role="assistant",
            content="I look.",
            reasoning="Hm",
            tool_calls=(
                ToolCall(call_id="c1", name="find", arguments="{}"),
                ToolCall(call_id="c2", name="clock", arguments="{}"),
            ),
        ),
        ChatMessage(role="tool", content="x", tool_call_id="c1"),
        ChatMessage(role="tool", content="y", tool_call_id="c2"),
        ChatMessage(
            role="assistant",
            content="",
            reasoning="Hm",
            tool_calls=(ToolCall(call_id="c3", name="find", arguments="{}"),),
        ),
        ChatMessage(role="tool", content="", tool_call_id="c3"),
    ]


def test_thoughts_that_cannot_be_read_are_no_message() -> None:
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    assert messages(
        {"role": "user", "content": "hi"}, encrypted, {"role": "user", "content": "x"}
    ) == [
        ChatMessage(role="user", content="hi"),
        ChatMessage(role="user", content="x"),
    ]


def test_a_summary_stands_for_thoughts() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    assert messages(summary, call("c"))[0].reasoning == "Hm"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "custom_tool_call", "call_id": "c", "name": "n"}]}, "input[0].input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [call("c"), output("c", [{"type": "input_file"}])]}, "input[1].output[0].type"),
        ({"tools": [FIND, {"type": "computer_use_preview"}]}, "tools[1].type"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        (
            {"tools": [{"type": "custom", "name": "x", "format": {"type": "json"}}]},
            "tools[0].format.type",
        ),
        ({"tools": [{"type": "shell"}, {**FIND, "name": "shell"}]}, "tools[1].name"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [FIND], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [FIND], "tool_choice": {"type": "shell"}}, "tool_choice"),
        (
            {
                "tools": [FIND],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "x"}],
                },
            },
            "tool_choice.tools[0]",
        ),
        (
            {
                "tools": [FIND],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": [1]}]},
            },
            "tool_choice.tools[0].type",
        ),
        ({"tools": [FIND, FIND]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"tools": [{**FIND, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
        ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}]},
            "tools[0].tools[0].type",
        ),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{**FIND, "async": True}]}]},
            "tools[0].tools[0].async",
        ),
        ({"include": ["everything"]}, "include"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"stream_options": 5}, "stream_options"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"user": "x" * 513}, "user"),
        ({"n": 2}, "n"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"stop": "END"}, "stop"),
    ],
)
def test_what_is_refused_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        to_request(**fields)
    assert (error.value.status, error.value.param) == (400, param)


def test_labels_of_a_client_may_be_long() -> None:
    labels = {"x-codex-turn-metadata": json.dumps({"workspace": "x" * 600}), "turn_id": "1"}
    document = {"model": "m", "input": "hello", "client_metadata": labels}
    assert parse_response(json.dumps(document).encode()).input == "hello"
    with pytest.raises(ApiError, match="client_metadata must be an object"):
        parse_response(json.dumps({**document, "client_metadata": "x"}).encode())


# Tools that are not functions


def test_tools_that_clients_execute_are_functions_of_the_model() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
    use = to_request(
        tools=[
            {
                "type": "custom",
                "name": "sql",
                "description": "Runs SQL",
                "format": {"type": "text"},
            },
            {"type": "custom", "name": "as", "format": grammar},
            {"type": "local_shell"},
            {"type": "shell", "environment": {"type": "local"}},
            {"type": "apply_patch"},
        ]
    ).tool_use
    sql, letters, *others = use.tools
    assert [tool.name for tool in others] == ["local_shell", "shell", "apply_patch"]
    assert others == [tool.function for tool in CLIENT_TOOLS.values()]
    assert (sql.name, sql.description, sql.is_strict) == ("sql", "Runs SQL", True)
    assert sql.parameters["required"] == ["input"]
    assert "lark grammar:\nstart: /a+/" in letters.description
    for tool in use.tools:
        grammars.json_schema(tool.parameters)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "web_search_2025_08_26", "filters": {"allowed_domains": ["x.org"]}},
        {"type": "web_search_preview_2025_03_11", "search_context_size": "low"},
        {"type": "file_search", "vector_store_ids": ["vs_1"]},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "image_generation"},
        {"type": "mcp", "server_label": "x", "server_url": "https://x.org"},
        {"type": "shell", "environment": {"type": "container_auto"}},
    ],
)
def test_tools_that_servers_execute_are_ignored_with_a_warning(tool: dict[str, Any]) -> None:
    assert to_request(tools=[tool, FIND]).tool_use.tools == (
        Tool(name="find", parameters=SCHEMA, is_strict=True),
    )
    (warning,) = warnings(tools=[tool, FIND])
    assert warning.startswith("tools that only OpenAI's servers execute are ignored: ")
    assert warning.rpartition(" ")[2] in tool["type"]
    assert to_request(tools=[tool]).tool_use == ToolUse()


def test_what_is_used_needs_no_warning() -> None:
    assert warnings(tools=[FIND, {"type": "local_shell"}], input=[call("c"), output("c", "")]) == []


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "custom", "name": "sql"}, "sql"),
        ({"type": "apply_patch"}, "apply_patch"),
        ({"type": "function", "name": "find"}, "find"),
    ],
)
def test_a_choice_of_any_tool(choice: dict[str, Any], name: str) -> None:
    tools = [FIND, {"type": "custom", "name": "sql"}, {"type": "apply_patch"}]
    use = to_request(tools=tools, tool_choice=choice).tool_use
    assert (use.mode, use.name) == (ToolMode.REQUIRED, name)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_choice_of_some_tools(mode: str) -> None:
    tools = [FIND, {"type": "custom", "name": "sql"}, {"type": "apply_patch"}]
    allowed = [{"type": "apply_patch"}, {"type": "custom", "name": "sql"}, {"type": "web_search"}]
    choice = {"type": "allowed_tools", "mode": mode, "tools": allowed}
    use = to_request(tools=tools, tool_choice=choice).tool_use
    assert [tool.name for tool in use.tools] == ["sql", "apply_patch"]
    assert use.mode is ToolMode(mode)


CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers",
    "tools": [{**FIND, "defer_loading": True}, {"type": "custom", "name": "sql"}],
}


def test_tools_of_a_namespace_have_its_name_before_theirs() -> None:
    use = to_request(tools=[FIND, CRM]).tool_use
    assert [tool.name for tool in use.tools] == ["find", "crm__find", "crm__sql"]
    assert [tool.description for tool in use.tools] == ["", "Customers", ""]
    assert warnings(tools=[FIND, CRM]) == []


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        ({"type": "namespace", "name": "crm"}, ["crm__find", "crm__sql"]),
        ({"type": "custom", "name": "sql"}, ["crm__sql"]),
        ({"type": "function", "name": "crm__find"}, ["crm__find"]),
    ],
)
def test_a_choice_in_a_namespace(entry: dict[str, str], names: list[str]) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [entry]}
    use = to_request(tools=[CRM], tool_choice=choice).tool_use
    assert [tool.name for tool in use.tools] == names
    if entry["type"] != "namespace":
        assert to_request(tools=[CRM], tool_choice=entry).tool_use.name == names[0]


def test_a_choice_that_several_namespaces_have_is_refused() -> None:
    tools = [CRM, {**CRM, "name": "erp"}]
    with pytest.raises(ApiError, match="'find'"):
        to_request(tools=tools, tool_choice={"type": "function", "name": "find"})


@pytest.mark.parametrize("is_in_namespace", [False, True])
def test_a_choice_of_many_tools_takes_time_in_proportion(is_in_namespace: bool) -> None:
    def prepared(count: int) -> Callable[[], object]:
        tools: list[dict[str, Any]] = [{**FIND, "name": f"f{n}"} for n in range(count)]
        entries = [{"type": "function", "name": tool["name"]} for tool in tools]
        if is_in_namespace:
            tools = [{"type": "namespace", "name": "n", "tools": tools}]
            entries = [{"type": "namespace", "name": "n"}] * count
        choice = {"type": "allowed_tools", "mode": "auto", "tools": entries}
        body = parsed(tools=tools, tool_choice=choice)

        def refused() -> None:
            with pytest.raises(ApiError, match="the limit is 512"):
                response_request(body, [])

        return refused

    assert_in_proportion(prepared, 600)


def test_a_call_in_a_namespace_keeps_its_name() -> None:
    called = {**call("c"), "name": "find", "namespace": "crm"}
    custom = {"type": "custom_tool_call", "call_id": "d", "name": "sql", "input": "x"}
    (turn,) = to_request(input=[called, {**custom, "namespace": "crm"}]).messages
    assert [each.name for each in turn.tool_calls] == ["crm__find", "crm__sql"]


def test_calls_and_results_of_all_tools() -> None:
    action: dict[str, object] = {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None}
    operation = {"type": "delete_file", "path": "a"}
    outcome = {"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    assert messages(
        {"type": "custom_tool_call", "id": "1", "call_id": "c1", "name": "sql", "input": 'a"b'},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "x"},
        {"type": "local_shell_call", "id": "2", "call_id": "c2", "action": action},
        {"type": "local_shell_call_output", "id": "c2", "output": "x"},
        {"type": "shell_call", "call_id": "c3", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c3", "output": [outcome]},
        {"type": "apply_patch_call", "call_id": "c4", "operation": operation},
        {"type": "apply_patch_call_output", "call_id": "c4", "status": "failed"},
        {"type": "mcp_call", "id": "c5", "name": "ask", "arguments": "{}", "output": "x"},
        {"type": "mcp_call", "id": "c6", "name": "ask", "arguments": "{}", "error": {"code": 1}},
    ) == [
        message
        for call_id, name, arguments, result in (
            ("c1", "sql", '{"input":"a\\"b"}', "x"),
            ("c2", "local_shell", '{"command":["ls"]}', "x"),
            ("c3", "shell", '{"commands":["ls"]}', json.dumps([outcome], separators=(",", ":"))),
            ("c4", "apply_patch", '{"type":"delete_file","path":"a"}', "failed"),
            ("c5", "ask", "{}", "x"),
            ("c6", "ask", "{}", '{"code":1}'),
        )
        for message in (
            ChatMessage(
                role="assistant",
                content="",
                tool_calls=(ToolCall(call_id=call_id, name=name, arguments=arguments),),
            ),
            ChatMessage(role="tool", content=result, tool_call_id=call_id),
        )
    ]


def test_a_thread_of_another_server_goes_on_without_what_only_it_can_read() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {}},
        {"type": "compaction", "encrypted_content": "gAAAA"},
        {"type": "item_reference", "id": "msg_1"},
        {"id": "msg_2"},
        {"role": "user", "content": "x"},
    ]
    assert [message.content for message in messages(*items)] == ["hi", "x"]
    assert warnings(input=items) == [
        "items that only another server can read are left out: "
        "web_search_call, compaction, item_reference"
    ]


def test_a_reference_stands_for_the_item_that_is_kept() -> None:
    kept = {
        "msg_1": {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}],
        }
    }
    body = parsed(input=[{"role": "user", "content": "hi"}, {"id": "msg_1"}])
    items = input_items(body, kept.get)
    assert [message.content for message in item_messages(items)] == ["hi", "yes"]
    assert warnings_of(body, items) == []


def test_an_item_is_looked_up_once_however_often_it_is_referred_to() -> None:
    looked_up: list[str] = []

    def find(item_id: str) -> dict[str, Any]:
        looked_up.append(item_id)
        return {"type": "message", "role": "user", "content": "yes"}

    body = parsed(input=[{"type": "item_reference", "id": "msg_1"}] * 500)
    items = input_items(body, find)
    assert looked_up == ["msg_1"]
    assert len(items) == 500
    assert all(item is items[0] for item in items)


@pytest.mark.parametrize(
    "include",
    [
        "file_search_call.results",
        "web_search_call.action.sources",
        "code_interpreter_call.outputs",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
    ],
)
def test_parts_that_no_answer_has_may_be_included(include: str) -> None:
    assert to_request(include=[include]) == to_request()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "a\\"b\\u00e9"}', 'a"b\u00e9'),
        ('{"input": "a\\"b', 'a"b'),
        ('{"input": "a\\u00', "a"),
        ('{"input": "a\\ud83d\\ude', "a"),
        ('{"input": "a"', "a"),
        ('{"inp', ""),
        ("", ""),
        ("[1]", ""),
        ('{"input": 3}', ""),
    ],
)
def test_the_input_of_a_call_that_may_be_cut_off(arguments: str, expected: str) -> None:
    assert custom_input(arguments) == expected
