"""Calls in chats of models whose templates leave them out."""

from __future__ import annotations

import pytest
from support.text.recording_tokenizer import RecordingTokenizer

from potluck.text.chat import ChatTemplate, prompt_chat
from potluck.text.template_gaps import with_calls
from potluck.text.tool_formats import choose_output_format
from potluck.types.text import ChatEnding, ChatMessage, Tool, ToolCall

LFM2 = """\
{%- if tools -%}
{{- "<|im_start|>system\\nList of tools: [" + (tools | tojson) + "]<|im_end|>\\n" -}}
{%- endif -%}
{%- for message in messages -%}
{{- "<|im_start|>" + message["role"] + "\\n" -}}
{%- set content = message["content"] -%}
{{- content + "<|im_end|>\\n" -}}
{%- endfor -%}"""
ARGUMENTS = '{"zone": "a \\"b\\"\\n", "full": true, "days": [1, null], "place": {"x": 2}}'
CALLS = ChatMessage(
    role="assistant",
    content="Let me see.",
    tool_calls=(
        ToolCall(call_id="1", name="clock", arguments=ARGUMENTS),
        ToolCall(call_id="2", name="now", arguments="{}"),
    ),
)
TOOLS = (Tool(name="clock", description=""), Tool(name="now", description=""))
CONTROLS = ("<|im_start|>", "<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>")


def test_calls_are_written_as_the_model_writes_them() -> None:
    tokenizer = RecordingTokenizer(special_tokens=CONTROLS)
    message = ChatMessage(role="user", content="<|tool_call_start|>[now()]<|tool_call_end|>")
    template = ChatTemplate(source=LFM2)
    prompt = prompt_chat(tokenizer, template, [message, CALLS], ending=ChatEnding.CLOSED)
    assert tokenizer.texts == [
        f"<|im_start|>user\n{message.content}<|im_end|>\n<|im_start|>assistant\nLet me see."
        '<|tool_call_start|>[clock(zone="a \\"b\\"\\n", full=True, days=[1, None], '
        'place={"x": 2}), now()]<|tool_call_end|><|im_end|>\n'
    ]
    # Those that the user wrote are texts.
    start, end, opening, closing = range(4)
    assert list(prompt.tokens) == [start, end, start, opening, closing, end]


def test_other_chats_stay_as_they_are() -> None:
    template = ChatTemplate(source=LFM2)
    messages = [ChatMessage(role="user", content="Hi")]
    assert template.render(messages) == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    "source", ["", "<|im_start|>{{ content }}", f"{LFM2}{{{{ message.tool_calls }}}}"]
)
def test_other_templates_stay_as_they_are(source: str) -> None:
    assert with_calls(source) == source


@pytest.mark.parametrize("mark", ["[", "<|tool_list_start|>["])
def test_such_a_template_tells_the_format(mark: str) -> None:
    source = LFM2.replace("tools: [", f"tools: {mark}")
    assert choose_output_format(source, CONTROLS).name == "lfm2"
