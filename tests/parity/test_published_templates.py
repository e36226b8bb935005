"""Templates as they are published, rendered as transformers renders them."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import pytest
from support.chats import (
    CLOCK,
    ONE_CALL,
    SYSTEM,
    THOUGHTS,
    THOUGHTS_AND_CALLS,
    TURNS,
    TWO_CALLS,
    WEATHER,
    Message,
    messages_of,
    tools_of,
    user,
)
from support.published_templates import published_templates
from transformers.utils.chat_template_utils import render_jinja_template

from potluck.errors import ChatTemplateError
from potluck.text.chat import ChatTemplate

TEMPLATES = published_templates()
if not TEMPLATES and not os.environ.get("CI"):
    pytest.skip("build/chat_templates has no wheels: run make", allow_module_level=True)

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOLS = [WEATHER, CLOCK]

Case = tuple[list[Message], list[Message], dict[str, Any]]
CASES: dict[str, Case] = {
    "one turn": ([user("  Hi <b> & 'you'\n")], [], {}),
    "system": ([SYSTEM, user("Hi")], [], {}),
    "several turns": ([SYSTEM, *TURNS], [], {}),
    "tools": ([user("Hi")], TOOLS, {}),
    "tools and system": ([SYSTEM, *TURNS], TOOLS, {}),
    "a call": (ONE_CALL, TOOLS, {}),
    "two calls": ([SYSTEM, *TWO_CALLS], TOOLS, {}),
    "calls without tools": (TWO_CALLS, [], {}),
    "thoughts": (THOUGHTS, [], {}),
    "thoughts and calls": (THOUGHTS_AND_CALLS, TOOLS, {}),
    "thinking on": (THOUGHTS, [], {"enable_thinking": True, "thinking": True}),
    "thinking off": (THOUGHTS, [], {"enable_thinking": False, "thinking": False}),
    "thinking on, with calls": (THOUGHTS_AND_CALLS, TOOLS, {"enable_thinking": True}),
    "thinking off, with calls": (THOUGHTS_AND_CALLS, TOOLS, {"enable_thinking": False}),
    "effort": ([user("Hi")], [], {"reasoning_effort": "high"}),
}


def expected(source: str, case: Case, **options: Any) -> str | None:
    """What transformers writes; None where the template fails or refuses the chat."""
    messages, tools, variables = case
    try:
        rendered, _ = render_jinja_template(
            conversations=[messages],
            tools=tools or None,
            chat_template=source,
            **SPECIAL,
            **variables,
            **options,
        )
    except Exception:
        return None
    text: str = rendered[0]
    return text


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_published_templates(name: str, add_generation_prompt: bool) -> None:
    source = TEMPLATES[name]
    template = ChatTemplate(source=source, special_tokens=SPECIAL)
    num_rendered = 0
    for title, case in CASES.items():
        messages, tools, variables = case
        text = expected(source, case, add_generation_prompt=add_generation_prompt)
        try:
            rendered = template.render(
                messages_of(messages),
                tools=tools_of(tools),
                template_variables=variables,
                add_generation_prompt=add_generation_prompt,
                now=datetime.now(),
            )
        except ChatTemplateError:
            assert text is None, title
            continue
        assert text is None or rendered == text, title
        num_rendered += 1
    assert num_rendered
