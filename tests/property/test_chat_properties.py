"""What holds for any output with thoughts, and for any texts in tools, calls and results."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.text.chats import encode_chat
from support.text.recording_tokenizer import RecordingTokenizer

from potluck.text.chat import ChatTemplate
from potluck.text.reasoning import ReasoningFormat, ReasoningSplitter, ThoughtState
from potluck.text.reasoning import reasoning_format as format_of
from potluck.types.output import ReasoningPart, TextPart
from potluck.types.text import ChatMessage, Tool, ToolCall

SOURCES = (
    "</think>",
    "</think></response>",
    "<|channel|>analysis",
    "<|channel><channel|>",
    "[/THINK]",
    "<|END_THINKING|>",
    "Here is my thought process: Here is my response:",
    "to=self<|message|>",
)
FORMATS = tuple(found for found in map(format_of, SOURCES) if found is not None)


@st.composite
def outputs(draw: st.DrawFn) -> tuple[ReasoningFormat, ThoughtState, list[str]]:
    reasoning = draw(st.sampled_from(FORMATS))
    marks = reasoning.marks
    pieces = st.sampled_from((*marks, *(mark[:5] for mark in marks), " ", "\n", "a", "<", "b c"))
    state = draw(st.sampled_from(ThoughtState))
    return reasoning, state, draw(st.lists(pieces, max_size=12))


def split(
    reasoning: ReasoningFormat, state: ThoughtState, pieces: Sequence[str]
) -> tuple[str, list[tuple[type, str]]]:
    """All that is said, and runs of parts of one kind."""
    splitter = ReasoningSplitter(reasoning, state=state)
    parsed_text, runs = "", list[tuple[type, str]]()
    for parts in (*map(splitter.push, pieces), splitter.finish()):
        for part in parts:
            assert isinstance(part, TextPart | ReasoningPart)
            parsed_text += part.text
            if runs and runs[-1][0] is type(part):
                runs[-1] = (type(part), runs[-1][1] + part.text)
            else:
                runs.append((type(part), part.text))
    return parsed_text, runs


@pytest.mark.slow
@given(outputs(), st.integers(1, 9))
def test_thoughts_do_not_depend_on_how_an_output_is_cut(
    output: tuple[ReasoningFormat, ThoughtState, list[str]], size: int
) -> None:
    reasoning, state, pieces = output
    text = "".join(pieces)
    parsed_text, runs = split(reasoning, state, [text])
    assert split(reasoning, state, pieces) == (parsed_text, runs)
    assert split(reasoning, state, list(text)) == (parsed_text, runs)
    cut = [text[start : start + size] for start in range(0, len(text), size)]
    assert split(reasoning, state, cut) == (parsed_text, runs)
    # Nothing is lost but marks and white space, and nothing comes in another order.
    rest = iter(text)
    assert all(character in rest for character in parsed_text)
    if not any(mark in text for mark in reasoning.marks):
        assert parsed_text.split() == text.split()


CONTROL = ("<|im_start|>", "<|im_end|>", "<|object|>", "<tool_call>", "[INST]", "</s>")
texts = st.lists(
    st.sampled_from(
        (*CONTROL, "<|", "|>", "im_end", "\U00020000", "object", "type", "string", '"', "\\", "a")
    )
    | st.text(max_size=3),
    max_size=4,
).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(texts, values, max_size=3)
SOURCE = (
    "{{ tools | tojson }}<|im_end|>{% for m in messages %}<|im_start|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %}<|{{ k }}|>{{ v }}</s>{% endfor %}"
    "{% endfor %}<{{ m.reasoning_content }}>{% endfor %}[INST]{{ extra }}"
)


@pytest.mark.slow
@given(texts, texts, objects, objects, objects, texts)
def test_only_the_template_makes_control_tokens_of_tools(
    content: str,
    name: str,
    parameters: dict[str, object],
    arguments: dict[str, object],
    extra: dict[str, object],
    thought: str,
) -> None:
    reader = RecordingTokenizer(special_tokens=CONTROL)
    call = ToolCall(call_id="1", name=name, arguments=json.dumps(arguments))
    messages = [
        ChatMessage(role="user", content=content),
        ChatMessage(role="assistant", content="", tool_calls=(call,), reasoning=thought),
        ChatMessage(role="tool", content=content, tool_call_id="1"),
    ]
    tools = [Tool(name=name, description=content, parameters=parameters)]
    template = ChatTemplate(source=SOURCE)
    tokens = encode_chat(
        reader, template, messages, tools=tools, template_variables={"extra": extra}
    )
    opened, called, result = [0], [0, 3, *[5] * len(arguments)], [0]
    assert tokens == [1, *opened, *called, *result, 4]
    # The text is what the template writes without all that.
    assert reader.texts[-1] == template.render(
        messages, tools=tools, template_variables={"extra": extra}
    )
