"""Chat templates: messages to text, and to the tokens that a chat model was trained on.

A template is a Jinja program from the model's files, run as ``transformers`` runs it, in Jinja's
sandbox and within limits on loops, calls and sizes (``potluck.text.template_environment``).

In the rendered text, control tokens that the *template* wrote must become control tokens, while
the same strings inside a *message* are a user's words and stay text. To tell them apart, every
control token's text that touches a message's content gets one of its characters replaced, before
rendering, by a private-use character that occurs nowhere else. Afterwards the characters are put
back and the tokenizer is told where they are. One character stands for one, so that templates
which trim or cut contents do the same as without. The rendered text is the whole prompt: nothing
is put before it, so bos comes from the template or not at all, as in ``transformers``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain

from potluck.errors import ChatTemplateError, ParameterError
from potluck.text.added_tokens import SEARCHED_CHARACTERS, replace_at, search_in_parts
from potluck.text.continuation import render_continued
from potluck.types.text import ChatEnding, ChatMessage, Tokenizer, Tool

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles that messages may have; each template knows some of them."""

_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Variables of templates that requests define by other means."""

_PRIVATE_USE_CODES = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))
_PRIVATE_USE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template's source, and the texts of ``bos_token``, ``eos_token`` … that it may name."""

    source: str = field(repr=False)
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        reasoning_effort: str | None = None,
        tools: Sequence[Tool] = (),
        template_variables: Mapping[str, object] | None = None,
        now: datetime | None = None,
    ) -> str:
        """The text of a chat; with ``add_generation_prompt`` the assistant's turn is opened.

        ``reasoning_effort`` is for templates with such a variable. ``now`` is the time for
        templates that write the date; the present by default. Raises
        ``ChatTemplateError`` if the template is broken, exceeds its limits or refuses the messages,
        and ``ParameterError`` for an unknown role.
        """
        from potluck.text.template_environment import run_template

        for message in messages:
            if message.role not in ROLES:
                raise ParameterError(
                    "messages",
                    f"a message has the role {message.role!r}",
                    hint=f"roles are {', '.join(ROLES)}",
                )
        variables: dict[str, object] = {
            **self.special_tokens,
            "messages": [_variables_of(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **(template_variables or {}),
        }
        if reasoning_effort is not None:  # templates ask whether it is defined
            variables["reasoning_effort"] = reasoning_effort
        return run_template(self.source, variables, now=now or datetime.now().astimezone())


def chat_ending(
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
) -> ChatEnding:
    """What a chat ends with, by the last message's role or by what is asked for.

    With neither of the two arguments, a last message of the assistant is continued, and every
    other chat gets a new turn. Where one of them is given they mean what they mean in vLLM: the
    one left out is false, but ``add_generation_prompt`` is true unless ``continue_final_message``
    is. Raises ``ParameterError`` if both are true.
    """
    if add_generation_prompt and continue_final_message:
        raise ParameterError(
            "continue_final_message",
            "continue_final_message and add_generation_prompt are both true",
            hint="the last message is either continued or followed by a new one: set one to false",
        )
    if continue_final_message:
        return ChatEnding.CONTINUED
    if add_generation_prompt is None and continue_final_message is None:
        is_begun = bool(messages) and messages[-1].role == "assistant"
        return ChatEnding.CONTINUED if is_begun else ChatEnding.NEW_TURN
    return ChatEnding.CLOSED if add_generation_prompt is False else ChatEnding.NEW_TURN


def template_variables(given: Mapping[str, object]) -> Mapping[str, object]:
    """Return ``given``, which a client adds to its template's variables.

    Raises ``ParameterError`` for names that are not a client's to define.
    """
    for name in given:
        if name in _OWN_VARIABLES:
            raise ParameterError(
                "chat_template_kwargs",
                f"chat_template_kwargs defines {name}, which the request itself says",
                hint="leave it out",
            )
    return given


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[ChatMessage],
    *,
    ending: ChatEnding = ChatEnding.NEW_TURN,
    reasoning_effort: str | None = None,
    tools: Sequence[Tool] = (),
    template_variables: Mapping[str, object] | None = None,
    now: datetime | None = None,
    max_tokens: int | None = None,
) -> list[int]:
    """The tokens of a chat, ready for the model to go on as ``ending`` says.

    Raises ``ChatTemplateError`` also when there is no template, or when it drops a part of a
    message that is to be continued, and whatever ``render`` raises and ``Tokenizer.encode`` does,
    which ``max_tokens`` is given to.
    """
    if template is None:
        raise ChatTemplateError(
            "the model has no chat template",
            hint="it is not a chat model: give it a plain prompt to continue",
        )
    shield = _Shield(
        control_texts=tokenizer.special_tokens,
        used=[
            template.source,
            *template.special_tokens.values(),
            *(text for m in messages for text in (m.content, m.name or "")),
        ],
    )
    shielded = [
        replace(m, content=shield.cover(m.content), name=m.name and shield.cover(m.name))
        for m in messages
    ]
    render = partial(
        template.render,
        add_generation_prompt=ending is ChatEnding.NEW_TURN,
        reasoning_effort=reasoning_effort,
        tools=tools,
        template_variables=template_variables,
        now=now,
    )
    if ending is ChatEnding.CONTINUED:
        rendered = render_continued(render, shielded, shield.free_character())
    else:
        rendered = render(shielded)
    text, literal = shield.uncover(rendered)
    return tokenizer.encode(
        text, add_bos=False, parse_special=True, literal=literal, max_tokens=max_tokens
    )


def _variables_of(message: ChatMessage) -> dict[str, str]:
    """A message as templates see it: they ask whether a name is defined."""
    variables = {"role": message.role, "content": message.content}
    if message.name is not None:
        variables["name"] = message.name
    return variables


class _Shield:
    """Replaces characters so that no control token's text is left, and puts them back."""

    def __init__(self, *, control_texts: Iterable[str], used: Sequence[str]) -> None:
        self._control_texts = [text for text in control_texts if text]
        self._pattern = re.compile("|".join(map(re.escape, self._control_texts)) or "(?!)")
        self._longest = max(map(len, self._control_texts), default=0)
        self._free = _unused_characters(used)
        self._stand_in: dict[str, str] = {}

    def cover(self, content: str) -> str:
        """``content`` with one character replaced wherever a control token could be read.

        That is where its whole text stands, and where the content ends with its beginning, begins
        with its end or is a part of it, so that the template's own text next to it could complete
        it.
        """
        touched = sorted(self._touched(content))
        return replace_at(content, ((i, self._stand_in_for(content[i])) for i in touched))

    def uncover(self, rendered: str) -> tuple[str, tuple[int, ...]]:
        """The text without replacements, and the indices where they were."""
        original = {stand_in: character for character, stand_in in self._stand_in.items()}
        if not original:
            return rendered, ()
        stand_ins = re.compile(f"[{''.join(original)}]")
        literal: list[int] = []
        position = 0
        while match := search_in_parts(stand_ins, rendered, position, 1):
            position = match.end()
            literal.append(match.start())
        text = replace_at(rendered, ((index, original[rendered[index]]) for index in literal))
        return text, tuple(literal)

    def free_character(self) -> str:
        """A character that nothing else has."""
        return next(self._free)

    def _touched(self, content: str) -> Iterator[int]:
        position = 0
        while match := search_in_parts(self._pattern, content, position, self._longest):
            yield match.start()
            position = match.start() + 1
        for control in self._control_texts:
            for length in range(1, min(len(control), len(content) + 1)):
                if content.endswith(control[:length]):
                    yield len(content) - length
                if content.startswith(control[-length:]):
                    yield 0
            if content and content in control:
                yield 0

    def _stand_in_for(self, character: str) -> str:
        if character not in self._stand_in:
            self._stand_in[character] = next(self._free)
        return self._stand_in[character]


def _unused_characters(texts: Sequence[str]) -> Iterator[str]:
    """Private-use characters that are in none of ``texts``, which are only read if one is taken."""
    used = set()
    for text in texts:
        for start in range(0, len(text), SEARCHED_CHARACTERS):
            used.update(_PRIVATE_USE.findall(text, start, start + SEARCHED_CHARACTERS))
    for code in chain(*_PRIVATE_USE_CODES):
        if chr(code) not in used:
            yield chr(code)
    raise ChatTemplateError(
        "the messages use every private-use character of Unicode",
        hint="shorten the messages",
    )
