"""Rendering a chat so that its last message stays open.

A chat template writes every message whole, with the end of its turn. Where that text is the last
message's own and where the template's, only the template knows. So the message is rendered with a
mark after its last character, and all from the mark on is cut off: whatever the template writes
around a message, what is left is what it writes when the model has come that far. A message that
has thoughts but no content yet is continued within the thoughts.

``transformers`` does the same (``continue_final_message``), with two differences: a message of
white space alone keeps the white space that the template itself writes before it, and a message in
which the template changes nothing but white space is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from potluck.errors import ChatTemplateError, ParameterError
from potluck.types.text import ChatMessage


def render_continued(
    render: Callable[[Sequence[ChatMessage]], str], messages: Sequence[ChatMessage], mark: str
) -> str:
    """The text of a chat up to the end of the last message's content, or of its thoughts.

    ``render`` renders messages without a generation prompt. ``mark`` is a character that neither
    the messages nor the template have. White space at the end of the message is kept where the
    template keeps it, because a model that was trained on trimmed messages has not seen it.

    Raises ``ChatTemplateError`` if the template writes the last message only in part or not at all,
    and ``ParameterError`` without messages.
    """
    if not messages:
        raise ParameterError("messages", "there is no message to continue", hint="give one")
    *earlier, last = messages
    is_thought = bool(last.reasoning) and not last.content
    content = (last.reasoning if is_thought else None) or last.content
    # A template that trims contents takes the space away, and only what is at the end.
    marked = f"{content}{mark} "
    rendered = render(
        [*earlier, replace(last, reasoning=marked) if is_thought else replace(last, content=marked)]
    )
    text, found, after = rendered.rpartition(mark)
    text = text.replace(f"{mark} ", "").replace(mark, "")  # the template writes it twice
    if not found or not _has_end(text, content):
        raise ChatTemplateError(
            "the last message cannot be continued: the chat template writes "
            + ("only a part of it" if found else "nothing of it"),
            hint="let the model begin a new message: continue_final_message false",
        )
    if after.startswith(" "):
        return text
    if not content.strip():
        # Nothing is left of it, and white space before the mark is the template's.
        return (
            text
            if not content
            else render_continued(render, [*earlier, replace(last, content="")], mark)
        )
    return text.removesuffix(content[len(content.rstrip()) :])


def _has_end(text: str, content: str) -> bool:
    """Whether ``text`` ends with ``content``, whatever white space there is in either."""
    return "".join(text.split()).endswith("".join(content.split()))
