"""Render a chat so that its last message stays open.

A chat template writes every message whole, including the end of its turn. Only the template knows
which part of that text is the message's own. So the message is rendered with a marker after its
last character, and everything from the marker on is cut off: the rest is what the template writes
when the model has come that far. A message that has reasoning but no content yet is continued
within the reasoning.

``transformers`` does the same (``continue_final_message``), with two differences: here, a message
that is only white space keeps the white space that the template itself writes before it, and a
message in which the template changes only white space is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from potluck.errors import ChatTemplateError, ParameterError
from potluck.types.text import ChatMessage


def render_continued(
    render: Callable[[Sequence[ChatMessage]], str], messages: Sequence[ChatMessage], mark: str
) -> str:
    """Render a chat up to the end of the last message's content, or of its reasoning.

    ``render`` renders messages without a generation prompt. ``mark`` is a character that neither
    the messages nor the template contain. White space at the end of the message is kept where the
    template keeps it, because a model that was trained on trimmed messages has not seen it.

    Raises ``ChatTemplateError`` if the template writes the last message only in part or not at all,
    and ``ParameterError`` without messages.
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
            else render_continued(render, [*earlier, replace(last, content="")], mark)
        )
    return text.removesuffix(content[len(content.rstrip()) :])


def _has_end(text: str, content: str) -> bool:
    """Return whether ``text`` ends with ``content``, ignoring differences in white space."""
    return "".join(text.split()).endswith("".join(content.split()))
