"""Chats for templates without tools, calls or system messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.models.text_models import qwen2_json, write_model_directory

from potluck.text.chat import ChatTemplate, prompt_chat
from potluck.text.hugging_face import load_tokenizer
from potluck.text.template_gaps import fill_gaps, supports_tools
from potluck.types.text import ChatMessage, Tool, ToolCall

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{{ bos_token + '' }}" + PLAIN
)
TOOL = Tool(name="clock", description="Tells the time.")
USER = ChatMessage(role="user", content="Time?")
SYSTEM = ChatMessage(role="system", content="Be brief.")
CALLING = ChatMessage(
    role="assistant",
    content="Let me see.",
    tool_calls=(ToolCall(call_id="1", name="clock", arguments='{"zone": "\\u017d"}'),),
)
RESULT = ChatMessage(role="tool", content="noon", tool_call_id="1")
CALL_TEXT = '<tool_call>\n{"name": "clock", "arguments": {"zone": "Ž"}}\n</tool_call>'


def filled(
    source: str, *messages: ChatMessage, tools: tuple[Tool, ...] = ()
) -> list[tuple[str, str]]:
    found = fill_gaps(messages, tools, source=source, special_tokens={"bos_token": "<s>"})
    assert not any(message.tool_calls for message in found if "tool_calls" not in source)
    return [(message.role, message.content) for message in found]


def test_a_chat_without_tools_stays_as_it_is() -> None:
    chat = [SYSTEM, USER, replace(CALLING, tool_calls=())]
    assert fill_gaps(chat, (), source=PLAIN, special_tokens={}) == chat


def test_tools_are_in_the_systems_message() -> None:
    (role, content), user = filled(PLAIN, USER, tools=(TOOL,))
    assert role == "system"
    assert '{"type": "function", "function": {"name": "clock"' in content
    assert "<tool_call>" in content
    assert user == ("user", "Time?")
    (_, with_own), _ = filled(PLAIN, SYSTEM, USER, tools=(TOOL,))
    assert with_own == f"Be brief.\n\n{content}"


def test_calls_and_results_are_texts() -> None:
    twice = replace(CALLING, content="", tool_calls=CALLING.tool_calls * 2)
    broken = replace(CALLING.tool_calls[0], arguments="{")
    assert filled(PLAIN, USER, CALLING, RESULT, RESULT, twice, RESULT) == [
        ("user", "Time?"),
        ("assistant", f"Let me see.\n{CALL_TEXT}"),
        ("user", "\n".join(["<tool_response>\nnoon\n</tool_response>"] * 2)),
        ("assistant", f"{CALL_TEXT}\n{CALL_TEXT}"),
        ("user", "<tool_response>\nnoon\n</tool_response>"),
    ]
    ((_, content),) = filled(PLAIN, replace(CALLING, content="", tool_calls=(broken,)))
    assert '"arguments": "{"' in content


def test_templates_get_what_they_know() -> None:
    chat = [SYSTEM, USER, CALLING, RESULT]
    for source in (
        "{{ tools }}{{ messages[0].tool_calls }}" + PLAIN,
        "{{ tools }}{{ messages[0].tool_calls }}{% if messages[0].role == 'tool' %}{% endif %}",
    ):
        assert fill_gaps(chat, [TOOL], source=source, special_tokens={}) == chat
    own_form = "{{ messages[0].tool_calls }}" + PLAIN
    found = fill_gaps(chat, [TOOL], source=own_form, special_tokens={})
    assert found[1:] == chat[1:]
    assert "clock" in found[0].content
    assert "<tool_call>" not in found[0].content
    assert supports_tools("{{ tools }}")
    assert not supports_tools(PLAIN)


def test_a_template_without_system_messages() -> None:
    assert filled(NO_SYSTEM, SYSTEM, USER) == [("user", "Be brief.\n\nTime?")]
    assert filled(NO_SYSTEM, SYSTEM) == [("user", "Be brief.")]
    assert filled(NO_SYSTEM, USER) == [("user", "Time?")]
    dropped = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    assert filled(dropped, SYSTEM, USER) == [("user", "Be brief.\n\nTime?")]
    broken = "{{ 1 / 0 }}"
    assert filled(broken, SYSTEM, USER) == [("system", "Be brief."), ("user", "Time?")]
    assert filled(PLAIN, SYSTEM, USER) == [("system", "Be brief."), ("user", "Time?")]


def test_prompts_have_no_gaps(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_model_directory(tmp_path, qwen2_json()))
    template = ChatTemplate(source=NO_SYSTEM, special_tokens={"bos_token": ""})
    prompt = prompt_chat(tokenizer, template, [SYSTEM, USER, CALLING, RESULT], tools=[TOOL])
    text = tokenizer.decode(prompt.tokens)
    assert text.startswith("<user>Be brief.")
    assert "Tells the time." in text
    assert text.endswith(f"{CALL_TEXT}<user><tool_response>\nnoon\n</tool_response>")


ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>{{ m.content }}"
    "{% endif %}{% endfor %}"
)


def test_messages_of_the_system_are_one_where_a_template_writes_only_one() -> None:
    developer = ChatMessage(role="developer", content="Be kind.")
    chat = (SYSTEM, developer, USER)
    assert filled(ONE_SYSTEM, *chat) == [("system", "Be brief.\n\nBe kind."), ("user", "Time?")]
    assert filled(NO_SYSTEM, *chat) == [("user", "Be brief.\n\nBe kind.\n\nTime?")]
    assert fill_gaps(chat, (), source=PLAIN, special_tokens={}) == list(chat)


def test_results_without_ids_answer_the_calls_in_order() -> None:
    first, second, other = (
        ToolCall(call_id=each, name=name, arguments="{}")
        for each, name in (("1", "clock"), ("2", "clock"), ("3", "map"))
    )
    calling = replace(CALLING, tool_calls=(first, second, other))
    results = [
        replace(RESULT, tool_call_id="", name="map"),
        replace(RESULT, tool_call_id=""),
        replace(RESULT, tool_call_id=None, name="clock"),
        replace(RESULT, tool_call_id="", name="clock"),
        replace(RESULT, tool_call_id="9"),
    ]
    source = "{{ tools }}{{ tool_calls }}"
    found = fill_gaps([USER, calling, *results], (), source=source, special_tokens={})
    assert [each.tool_call_id for each in found[2:]] == ["3", "1", "2", "", "9"]
