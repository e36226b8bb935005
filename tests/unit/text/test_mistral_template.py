"""Prompts of Mistral models without a template; written by hand as mistral_common encodes them."""

from __future__ import annotations

import pytest

from potluck.text.chat import ChatTemplate
from potluck.text.mistral_template import mistral_template
from potluck.text.reasoning import reasoning_format
from potluck.text.tool_formats import choose_output_format
from potluck.types.text import ChatMessage, Tool, ToolCall

TOOL = Tool(name="now", description="The time.", parameters={"type": "object"})
TOOLS = (
    '[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "now", "description": "The time.",'
    ' "parameters": {"type": "object"}}}][/AVAILABLE_TOOLS]'
)
CALLS = (
    ToolCall(call_id="call00001", name="now", arguments='{"zone": "CET"}'),
    ToolCall(call_id="call00002", name="now", arguments=""),
)
PROMPT = "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]"
SYSTEM = ChatMessage(role="system", content="Be brief.")


def user(content: str) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def assistant(content: str, **fields: object) -> ChatMessage:
    return ChatMessage(role="assistant", content=content, **fields)  # type: ignore[arg-type]


def result(content: str, call_id: str) -> ChatMessage:
    return ChatMessage(role="tool", content=content, tool_call_id=call_id)


def render(version: str, *messages: ChatMessage, tools: bool = False, special: str = "") -> str:
    source = mistral_template(version, special.split())
    assert source is not None
    template = ChatTemplate(source=source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages, tools=[TOOL] if tools else [])


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v3", "<s>[INST]a[/INST]b</s>{}[INST]Be brief.\n\nc\n\nd[/INST]"),
        (
            "v7",
            f"<s>{PROMPT}[INST]a[/INST]b</s>{{}}[INST]c\n\nd[/INST]",
        ),
        (
            "v11",
            f"<s>{PROMPT}[INST]a[/INST]b</s>{{}}[INST]c\n\nd[/INST]",
        ),
        (
            "v13",
            f"<s>{PROMPT}{{}}[INST]a[/INST]b</s>[INST]c\n\nd[/INST]",
        ),
    ],
)
def test_turns(version: str, expected: str) -> None:
    chat = (SYSTEM, user("a"), assistant("b"), user("c"), user("d"))
    assert render(version, *chat) == expected.format("")
    assert render(version, *chat, tools=True) == expected.format(TOOLS)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "v3",
            '[TOOL_CALLS][{"name": "now", "arguments": {"zone": "CET"}, "id": "call00001"}, '
            '{"name": "now", "arguments": {}, "id": "call00002"}]</s>'
            '[TOOL_RESULTS]{"content": 12, "call_id": "call00001"}[/TOOL_RESULTS]'
            '[TOOL_RESULTS]{"content": "noon", "call_id": "call00002"}[/TOOL_RESULTS]',
        ),
        (
            "v7",
            '[TOOL_CALLS][{"name": "now", "arguments": {"zone": "CET"}, "id": "call00001"}, '
            '{"name": "now", "arguments": {}, "id": "call00002"}]</s>'
            "[TOOL_RESULTS]call00001[TOOL_CONTENT]12[/TOOL_RESULTS]"
            "[TOOL_RESULTS]call00002[TOOL_CONTENT]noon[/TOOL_RESULTS]",
        ),
        (
            "v11",
            '[TOOL_CALLS]now[CALL_ID]call00001[ARGS]{"zone": "CET"}'
            "[TOOL_CALLS]now[CALL_ID]call00002[ARGS]{}</s>"
            "[TOOL_RESULTS]call00001[TOOL_CONTENT]12[/TOOL_RESULTS]"
            "[TOOL_RESULTS]call00002[TOOL_CONTENT]noon[/TOOL_RESULTS]",
        ),
        (
            "v13",
            '[TOOL_CALLS]now[ARGS]{"zone": "CET"}[TOOL_CALLS]now[ARGS]{}</s>'
            "[TOOL_RESULTS]12[/TOOL_RESULTS][TOOL_RESULTS]noon[/TOOL_RESULTS]",
        ),
    ],
)
def test_calls_and_their_results(version: str, expected: str) -> None:
    calls = assistant("", tool_calls=CALLS)
    chat = (user("a"), calls, result("12", "call00001"), result("noon", "call00002"))
    assert render(version, *chat, tools=True) == f"<s>{TOOLS}[INST]a[/INST]{expected}"


def test_thoughts_are_written_where_there_are_tokens_for_them() -> None:
    chat = (user("a"), assistant("b", reasoning="hm"), user("c"))
    thought = render("v13", *chat, special="[THINK] [/THINK]")
    assert thought == "<s>[INST]a[/INST][THINK]hm[/THINK]b</s>[INST]c[/INST]"
    assert render("v13", *chat) == "<s>[INST]a[/INST]b</s>[INST]c[/INST]"


def test_ids_of_other_forms_become_such_of_nine_letters() -> None:
    call = ToolCall(call_id="call_0123456789abcdef", name="now", arguments="{}")
    chat = (user("a"), assistant("", tool_calls=(call,)), result("12", call.call_id))
    text = render("v11", *chat)
    _, _, after = text.partition("[CALL_ID]")
    assert text.endswith(f"[TOOL_RESULTS]{after[:9]}[TOOL_CONTENT]12[/TOOL_RESULTS]")
    assert after[9:].startswith("[ARGS]")


@pytest.mark.parametrize(
    ("version", "name"),
    [("v3", "mistral-list"), ("v7", "mistral-list"), ("v11", "mistral"), ("v13", "mistral")],
)
def test_outputs_are_read_as_the_model_writes_them(version: str, name: str) -> None:
    source = mistral_template(version, ())
    assert source is not None
    assert choose_output_format(source, ()).name == name
    assert reasoning_format(source) is None
    thinking = mistral_template(version, ("[THINK]", "[/THINK]"))
    assert thinking is not None
    reasoning = reasoning_format(thinking)
    assert reasoning is not None
    assert reasoning.marks == ("[THINK]", "[/THINK]")


def test_newer_versions_have_none() -> None:
    assert mistral_template("v99", ()) is None
