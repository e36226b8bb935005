"""Chat templates: convert messages to text, and to tokens in the format that a chat model was
trained on.

A template is a Jinja program from the model's files. It runs as in ``transformers``, in Jinja's
sandbox and within limits on loops, calls and sizes (``potluck.text.template_environment``).
``potluck.text.template_data`` prepares the messages and tools for it.

Control tokens that the template writes become control tokens; the same strings in messages, tools
and variables stay text (``potluck.text.control_tokens``). The rendered text is the whole prompt:
nothing is prepended, so bos comes from the template or is absent, as in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from potluck.errors import ChatTemplateError, ParameterError
from potluck.text.control_tokens import ControlTokenEscaper, texts_of, texts_of_message
from potluck.text.reasoning import reasoning_format, thinking_variables
from potluck.text.template_data import EFFORT_VARIABLES, messages_data, tool_data
from potluck.text.template_gaps import fill_gaps, with_calls
from potluck.text.template_losses import complete
from potluck.types.text import ChatEnding, ChatMessage, ChatPrompt, Tokenizer, Tool

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that messages may have; each template supports some of them."""

_RESERVED = ("messages", "tools", "add_generation_prompt")
"""Variables of templates that are set by dedicated arguments."""
_TURN_CHARACTERS = 256
"""Maximum length of the text with which a template opens a turn; templates use less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template's source, and the texts of ``bos_token``, ``eos_token`` … that it can refer to.

    ``tool_source`` is the template for chats with tools, if the model has a separate one. ``roles``
    are the roles that messages may have.
    """

    source: str = field(repr=False)
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    roles: Sequence[str] = ROLES
    tool_source: str | None = field(default=None, repr=False)

    def source_for(self, tools: Sequence[Tool]) -> str:
        """Return the source of the template for a chat with ``tools``."""
        with_tools = self.tool_source if tools else None
        return with_calls(self.source if with_tools is None else with_tools)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Tool] = (),
        add_generation_prompt: bool = True,
        reasoning_effort: str | None = None,
        thinks: bool | None = None,
        template_variables: Mapping[str, object] | None = None,
        now: datetime | None = None,
    ) -> str:
        """Render a chat; with ``add_generation_prompt`` the assistant's turn is opened.

        ``reasoning_effort`` sets the corresponding variable of the template, under whichever name,
        and ``thinks`` sets its reasoning switch. Each of ``template_variables`` sets a variable of
        the template and overrides all others of its name. ``now`` is the time for templates that
        write the date; the default is the current time. Raises ``ChatTemplateError`` if the
        template is broken, exceeds its limits or rejects the messages, and ``ParameterError`` for
        an unknown role or a reserved variable.
        """
        from potluck.text.template_environment import run_template

        for message in messages:
            if message.role not in self.roles:
                raise ParameterError(
                    "messages",
                    f"unknown role {message.role!r} in a message",
                    hint=f"known roles: {', '.join(self.roles)}",
                )
        for name in _RESERVED:
            if template_variables and name in template_variables:
                raise ParameterError(
                    "chat_template_kwargs",
                    f"{name} is not a template variable that can be set",
                    hint=f"these variables come from the request itself: {', '.join(_RESERVED)}",
                )
        source = self.source_for(tools)
        variables: dict[str, object] = {
            **self.special_tokens,
            "messages": messages_data(messages, source),
            "tools": [tool_data(tool) for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if reasoning_effort is not None:  # templates test whether it is defined
            variables.update(dict.fromkeys(EFFORT_VARIABLES, reasoning_effort))
        if thinks is not None:
            variables.update(thinking_variables(source, is_on=thinks))
        variables.update(template_variables or {})
        return run_template(source, variables, now=now or datetime.now().astimezone())


def chat_ending(
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
) -> ChatEnding:
    """Return how a chat ends, based on the last message's role or the client's arguments.

    If neither argument is given, a last message of the assistant is continued unless it calls
    tools, and any other chat gets a new turn. If one is given, they mean what they mean in vLLM:
    the omitted one is false, except that ``add_generation_prompt`` is true unless
    ``continue_final_message`` is. Raises ``ParameterError`` if both are true.
    """
    if add_generation_prompt and continue_final_message:
        raise ParameterError(
            "continue_final_message",
            "continue_final_message and add_generation_prompt cannot both be true",
            hint="the last message is either continued or followed by a new one; set one of them "
            "to false",
        )
    if continue_final_message:
        return ChatEnding.CONTINUED
    if add_generation_prompt is None and continue_final_message is None:
        last = messages[-1] if messages else None
        is_begun = last is not None and last.role == "assistant" and not last.tool_calls
        return ChatEnding.CONTINUED if is_begun else ChatEnding.NEW_TURN
    return ChatEnding.CLOSED if add_generation_prompt is False else ChatEnding.NEW_TURN


def prompt_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[ChatMessage],
    *,
    ending: ChatEnding = ChatEnding.NEW_TURN,
    reasoning_effort: str | None = None,
    thinks: bool | None = None,
    tools: Sequence[Tool] = (),
    template_variables: Mapping[str, object] | None = None,
    now: datetime | None = None,
    max_tokens: int | None = None,
) -> ChatPrompt:
    """Build the prompt of a chat, ready for the model to continue as ``ending`` specifies.

    Anything that the template does not support (tools, system messages) is rewritten as messages
    that it does support; see ``potluck.text.template_gaps`` and ``template_losses``.

    Raises ``ChatTemplateError`` also if there is no template, or if it drops part of a message that
    is to be continued. Raises as ``render`` and ``Tokenizer.encode``, which gets ``max_tokens``.
    """
    if template is None:
        raise ChatTemplateError(
            "the model has no chat template",
            hint="it is not a chat model; use text completion instead",
        )
    if ending is ChatEnding.CONTINUED and messages and messages[-1].tool_calls:
        raise ParameterError(
            "messages",
            "the last message contains tool calls and cannot be continued",
            hint="add the results of the tools as messages with the role tool",
        )
    filled = fill_gaps(
        messages, tools, source=template.source_for(tools), special_tokens=template.special_tokens
    )
    render = partial(
        template.render,
        reasoning_effort=reasoning_effort,
        thinks=thinks,
        now=now or datetime.now().astimezone(),
    )
    opened = partial(
        render,
        tools=tools,
        template_variables=template_variables,
        add_generation_prompt=ending is ChatEnding.NEW_TURN,
    )
    chat = _Chat(
        template=template,
        messages=complete(filled, opened),
        tools=tools,
        variables=template_variables or {},
        ending=ending,
        render=render,
    )
    text, literal, turn = chat.prompt(tokenizer.special_tokens)
    tokens = tokenizer.encode(
        text, add_bos=False, parse_special=True, literal=literal, max_tokens=max_tokens
    )
    return ChatPrompt(tokens=tokens, turn=turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chat:
    """The inputs of a prompt; ``messages`` have a form that the template writes completely.

    ``render`` renders the template with the settings of the chat.
    """

    template: ChatTemplate
    messages: Sequence[ChatMessage]
    tools: Sequence[Tool]
    variables: Mapping[str, object]
    ending: ChatEnding
    render: partial[str]

    def prompt(self, control_texts: Sequence[str]) -> tuple[str, tuple[int, ...], str]:
        """Return the text, the indices in it that are not part of control tokens, and the open
        turn.
        """
        escaper = ControlTokenEscaper(control_texts=control_texts, used=self._texts())
        text, literal, turn = self._render_with(escaper)
        if escaper.has_left_words:
            # Templates may compare these words with their own; if not, they are covered as well.
            strict = ControlTokenEscaper(
                control_texts=control_texts, used=self._texts(), is_strict=True
            )
            try:
                strict_text, strict_literal, _ = self._render_with(strict)
            except ChatTemplateError:
                return text, literal, turn
            if strict_text == text:
                literal = strict_literal
        return text, literal, turn

    def _texts(self) -> Iterator[str]:
        yield self.template.source_for(self.tools)
        yield from self.template.special_tokens.values()
        yield from texts_of(self.variables)
        for message in self.messages:
            yield from texts_of_message(message)
        for tool in self.tools:
            yield from (tool.name, tool.description)
            yield from texts_of(tool.parameters)

    def _render_with(self, escaper: ControlTokenEscaper) -> tuple[str, tuple[int, ...], str]:
        messages = [escaper.escape_message(message) for message in self.messages]
        render = partial(
            self.render,
            tools=[escaper.escape_tool(tool) for tool in self.tools],
            template_variables=escaper.escape_object(
                self.variables, parameter="chat_template_kwargs"
            ),
        )
        if self.ending is ChatEnding.CONTINUED:
            closed = partial(render, add_generation_prompt=False)
            rendered = _render_continued(closed, messages, escaper.free_character())
            before = messages[:-1]
        else:
            is_opened = self.ending is ChatEnding.NEW_TURN
            rendered = render(messages, add_generation_prompt=is_opened)
            before = messages
        text, literal = escaper.unescape(rendered)
        start = self._turn_start(rendered, partial(render, before, add_generation_prompt=False))
        return text, literal, text[start:]

    def _turn_start(self, rendered: str, render_before: Callable[[], str]) -> int:
        """Return the index in ``rendered`` at which the model's turn begins."""
        if self.ending is ChatEnding.CLOSED:
            return len(rendered)
        probable = max(0, len(rendered) - _TURN_CHARACTERS)
        reasoning = reasoning_format(self.template.source_for(self.tools))
        marks = () if reasoning is None else reasoning.marks
        if self.ending is ChatEnding.NEW_TURN and not any(
            rendered.find(mark, probable) >= 0 for mark in marks
        ):
            return probable
        try:
            before = render_before()
        # some templates reject a chat that ends like this, or that has no message
        except ChatTemplateError:
            return probable
        return _num_common(before, rendered)


def _num_common(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _render_continued(
    render: Callable[[Sequence[ChatMessage]], str], messages: Sequence[ChatMessage], mark: str
) -> str:
    """Render a chat up to the end of the last message's content, or of its reasoning.

    ``render`` renders messages without a generation prompt. ``mark`` is a character that neither
    the messages nor the template contain. White space at the end of the message is kept where the
    template keeps it, because a model that was trained on trimmed messages has not seen it.

    Raises ``ChatTemplateError`` if the template writes the last message only in part or not at all,
    and ``ParameterError`` without messages.

    A chat template writes every message whole, including the end of its turn. Only the template
    knows which part of that text is the message's own. So the message is rendered with a marker
    after its last character, and everything from the marker on is cut off: the rest is what the
    template writes when the model has come that far. A message that has reasoning but no content
    yet is continued within the reasoning.

    ``transformers`` does the same (``continue_final_message``), with two differences: here, a
    message that is only white space keeps the white space that the template itself writes before
    it, and a message in which the template changes only white space is accepted.
    """
    if not messages:
        raise ParameterError("messages", "there is no message to continue", hint="give one")
    *earlier, last = messages
    is_thought = bool(last.reasoning) and not last.content
    content = (last.reasoning if is_thought else None) or last.content
    # A template that trims contents removes the space, and only at the end.
    marked = f"{content}{mark} "
    rendered = render(
        [*earlier, replace(last, reasoning=marked) if is_thought else replace(last, content=marked)]
    )
    text, found, after = rendered.rpartition(mark)
    text = text.replace(f"{mark} ", "").replace(mark, "")  # the template writes the message twice
    if not found or not _has_end(text, content):
        raise ChatTemplateError(
            "the last message cannot be continued: the chat template renders "
            + ("only part of it" if found else "nothing of it"),
            hint="set continue_final_message to false to start a new message",
        )
    if after.startswith(" "):
        return text
    if not content.strip():
        # Nothing of the message is left, and white space before the mark is the template's.
        return (
            text
            if not content
            else _render_continued(render, [*earlier, replace(last, content="")], mark)
        )
    return text.removesuffix(content[len(content.rstrip()) :])


def _has_end(text: str, content: str) -> bool:
    """Return whether ``text`` ends with ``content``, ignoring differences in white space."""
    return "".join(text.split()).endswith("".join(content.split()))
