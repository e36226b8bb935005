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
from dataclasses import dataclass, field
from datetime import datetime

from potluck.errors import ChatTemplateError, ParameterError
from potluck.types.text import ChatMessage, Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles that messages may have; each template knows some of them."""

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))


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
        now: datetime | None = None,
    ) -> str:
        """The text of a chat; with ``add_generation_prompt`` the assistant's turn is opened.

        ``now`` is the time for templates that write the date; the present by default. Raises
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
        return run_template(
            self.source,
            {
                **self.special_tokens,
                "messages": [{"role": m.role, "content": m.content} for m in messages],
                "tools": None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            },
            now=now or datetime.now().astimezone(),
        )


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool = True,
    now: datetime | None = None,
) -> list[int]:
    """The tokens of a chat, ready for the model to go on with the assistant's turn.

    Raises ``ChatTemplateError`` also when there is no template, and whatever ``render`` raises.
    """
    if template is None:
        raise ChatTemplateError(
            "the model has no chat template",
            hint="it is not a chat model: give it a plain prompt to continue",
        )
    shield = _Shield(
        control_texts=tokenizer.special_tokens,
        used=[template.source, *template.special_tokens.values(), *(m.content for m in messages)],
    )
    shielded = [ChatMessage(role=m.role, content=shield.cover(m.content)) for m in messages]
    rendered = template.render(shielded, add_generation_prompt=add_generation_prompt, now=now)
    text, literal = shield.uncover(rendered)
    return tokenizer.encode(text, add_bos=False, parse_special=True, literal=literal)


class _Shield:
    """Replaces characters so that no control token's text is left, and puts them back."""

    def __init__(self, *, control_texts: Iterable[str], used: Iterable[str]) -> None:
        self._control_texts = [text for text in control_texts if text]
        self._pattern = re.compile("|".join(map(re.escape, self._control_texts)) or "(?!)")
        self._free = _unused_characters(frozenset().union(*map(frozenset, used)))
        self._stand_in: dict[str, str] = {}

    def cover(self, content: str) -> str:
        """``content`` with one character replaced wherever a control token could be read.

        That is where its whole text stands, and where the content ends with its beginning, begins
        with its end or is a part of it, so that the template's own text next to it could complete
        it.
        """
        characters = list(content)
        for index in self._touched(content):
            characters[index] = self._stand_in_for(content[index])
        return "".join(characters)

    def uncover(self, rendered: str) -> tuple[str, tuple[int, ...]]:
        """The text without replacements, and the indices where they were."""
        original = {stand_in: character for character, stand_in in self._stand_in.items()}
        if not original:
            return rendered, ()
        literal = tuple(i for i, character in enumerate(rendered) if character in original)
        return "".join(original.get(c, c) for c in rendered), literal

    def _touched(self, content: str) -> Iterator[int]:
        position = 0
        while match := self._pattern.search(content, position):
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


def _unused_characters(used: frozenset[str]) -> Iterator[str]:
    for block in _PRIVATE_USE:
        for code in block:
            if chr(code) not in used:
                yield chr(code)
    raise ChatTemplateError(
        "the messages use every private-use character of Unicode",
        hint="shorten the messages",
    )
