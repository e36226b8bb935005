"""Chats that a template would write in part, or reject."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from potluck.errors import ChatTemplateError, TemplateLimitError
from potluck.text.chat import ChatTemplate
from potluck.text.template_losses import complete
from potluck.types.text import ChatMessage, ToolCall

START = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and m.tool_calls %}"
CALL = "{{ c.function.name }}{{ c.function.arguments | tojson }}"
ALL_CALLS = "{% for c in m.tool_calls %}" + CALL + "{% endfor %}"
FIRST_CALL = "{% set c = m.tool_calls[0] %}" + CALL
END = "{% else %}{{ m.content }}{% endif %}{% endfor %}"
ALTERNATE = (
    "{% set ns = namespace(last='') %}{% for m in messages %}"
    "{% if m.role == ns.last or (m.role == 'user' and ns.last == 'tool') or "
    "(m.role == 'system' and not loop.first) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.last = m.role %}{% endfor %}"
)
NONE_CALLS = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    + ALL_CALLS
    + "{% endif %}{% if m.content is not none %}{{ m.content }}{% endif %}{% endfor %}"
)


def call(number: int) -> ToolCall:
    return ToolCall(call_id=str(number), name="clock", arguments=f'{{"zone": "Z{number}"}}')


def said(role: str, content: str) -> ChatMessage:
    return ChatMessage(role=role, content=content)


def called(*numbers: int, content: str = "") -> ChatMessage:
    return ChatMessage(
        role="assistant", content=content, tool_calls=tuple(call(each) for each in numbers)
    )


def resulted(number: int) -> ChatMessage:
    return ChatMessage(role="tool", content=f"noon {number}", tool_call_id=str(number))


USER = said("user", "Time?")


def completed(source: str, *messages: ChatMessage) -> list[ChatMessage]:
    return complete(messages, ChatTemplate(source=source).render)


def turns(messages: Sequence[ChatMessage]) -> list[tuple[str, str, int]]:
    return [(each.role, each.content, len(each.tool_calls)) for each in messages]


def test_what_a_template_writes_stays_as_it_is() -> None:
    chat = [said("system", "Be brief."), USER, called(1, 2), resulted(1), resulted(2)]
    assert completed(START + ALL_CALLS + END, *chat) == chat


@pytest.mark.parametrize("num_levels", [200, 450, 900])
def test_arguments_that_are_nested_deeply(num_levels: int) -> None:
    arguments = '{"a": ' + "[" * num_levels + "]" * num_levels + "}"
    deep = replace(called(1), tool_calls=(replace(call(1), arguments=arguments),))
    chat = (USER, deep, resulted(1))
    assert completed(START + ALL_CALLS + END, *chat) == list(chat)


def test_a_simple_chat_is_not_rendered() -> None:
    def render(messages: Sequence[ChatMessage]) -> str:
        raise AssertionError

    chat = [said("system", "Be brief."), USER, said("assistant", "Noon."), USER]
    assert complete(chat, render) == chat


def test_text_beside_a_call_is_a_message_of_its_own() -> None:
    found = completed(START + ALL_CALLS + END, USER, called(1, content="Let me see."), resulted(1))
    assert turns(found) == [
        ("user", "Time?", 0),
        ("assistant", "Let me see.", 0),
        ("assistant", "", 1),
        ("tool", "noon 1", 0),
    ]


def test_calls_come_one_by_one_where_only_the_first_is_written() -> None:
    found = completed(START + FIRST_CALL + END, USER, called(1, 2), resulted(1), resulted(2))
    assert found == [USER, called(1), resulted(1), called(2), resulted(2)]


def test_calls_come_one_by_one_where_a_template_refuses_several() -> None:
    refuse = (
        "{% for m in messages %}{% if m.tool_calls | default([]) | length > 1 %}"
        "{{ raise_exception('This model only supports single tool-calls at once!') }}"
        "{% endif %}{% endfor %}"
    )
    writes_all = (
        "{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls | default([]) %}" + CALL + "{% endfor %}{% endfor %}"
    )
    both = replace(called(1, 2, content="Let me see."), reasoning="Hm.")
    results = [resulted(2), resulted(1), resulted(3)]
    chat = [USER, both, *results, USER]
    assert completed(refuse + writes_all, *chat) == [
        USER,
        replace(both, tool_calls=both.tool_calls[:1]),
        results[1],
        called(2),
        results[0],
        results[2],
        USER,
    ]
    assert completed(writes_all, *chat) == chat


def test_text_is_given_up_where_it_has_no_place() -> None:
    chat = [USER, called(1, content="Let me see."), resulted(1)]
    assert completed(ALTERNATE + START + ALL_CALLS + END, *chat) == chat


def test_calls_without_text_have_no_content() -> None:
    chat = [USER, called(1), resulted(1)]
    assert completed(NONE_CALLS, *chat) == chat
    prompt = ChatTemplate(source=NONE_CALLS).render(chat)
    assert "Z1" in prompt
    found = completed(NONE_CALLS, USER, called(1, content="Let me see."), resulted(1))
    assert turns(found)[1:3] == [("assistant", "Let me see.", 0), ("assistant", "", 1)]


def test_turns_are_joined_where_roles_have_to_alternate() -> None:
    source = ALTERNATE + START + ALL_CALLS + END
    found = completed(
        source,
        said("system", "Be brief."),
        USER,
        said("user", "In Oslo."),
        called(1),
        resulted(1),
        said("user", "Hurry."),
        said("system", "Be kind."),
    )
    assert turns(found) == [
        ("system", "Be brief.", 0),
        ("user", "Time?\n\nIn Oslo.", 0),
        ("assistant", "", 1),
        ("tool", "noon 1\n\nHurry.\n\nBe kind.", 0),
    ]


def test_a_later_system_message_becomes_the_users() -> None:
    only_first = (
        "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
        "{{ m.content }}{% endif %}{% endfor %}"
    )
    found = completed(only_first, USER, said("assistant", "Noon."), said("system", "Be kind."))
    assert turns(found)[2] == ("user", "Be kind.", 0)


def test_calls_become_text_where_they_are_never_written() -> None:
    without_calls = "{{ tool_calls }}{% for m in messages %}{{ m.content }}{% endfor %}"
    found = completed(without_calls, USER, called(1, content="Let me see."), resulted(1))
    assert "<tool_call>" in found[1].content
    assert found[2].content == "<tool_response>\nnoon 1\n</tool_response>"


def test_a_loss_that_cannot_be_avoided_is_named() -> None:
    with pytest.raises(ChatTemplateError, match="leaves out a call of clock") as caught:
        completed("{{ messages[0].content }}", USER, called(1), resulted(1))
    assert caught.value.hint


def test_a_template_that_exceeds_its_limits_is_tried_once() -> None:
    num_tries = 0

    def render(messages: Sequence[ChatMessage]) -> str:
        nonlocal num_tries
        num_tries += 1
        raise TemplateLimitError("too many steps")

    with pytest.raises(TemplateLimitError):
        complete([USER, called(1, 2), resulted(1), resulted(2), said("system", "Stop.")], render)
    assert num_tries == 1


def test_a_long_chat_is_rendered_a_few_times() -> None:
    num_tries = 0

    def render(messages: Sequence[ChatMessage]) -> str:
        nonlocal num_tries
        num_tries += 1
        raise ChatTemplateError("no")

    turn = [USER, called(1, 2, content="Well."), resulted(1), resulted(2), said("system", "Hm.")]
    assert complete(turn * 10, render) == turn * 10
    assert num_tries > 10
    num_tries = 0
    assert complete(turn * 200, render) == turn * 200
    assert num_tries == 3


def test_a_chat_that_is_always_rejected_is_left_to_the_template() -> None:
    chat = [USER, replace(USER, content="Well?")]
    assert completed("{{ raise_exception('no') }}", *chat) == chat
