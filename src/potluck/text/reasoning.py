"""Reasoning formats of models, and splitting an output into reasoning and the answer.

Each family marks reasoning in its own way. A model's chat template contains the marks, because it
writes the reasoning of earlier turns or opens that of the next turn (``reasoning_format``). Some
templates open it at the end of the prompt, so that the output begins inside it, and some close an
empty one there to turn reasoning off: the end of the prompt is therefore part of the input.

White space next to the marks belongs to the format, not to the content. It is removed, as templates
do when they write reasoning of earlier turns.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from potluck.text.delimiters import DelimiterScanner
from potluck.types.output import OutputPart, ReasoningPart, TextPart

_T = TypeVar("_T")

_TAG = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


class ThoughtState(enum.Enum):
    """The part of the format in which an output begins.

    ``UNDECIDED``: the model either opens its reasoning or answers. ``OPEN``: inside the reasoning.
    ``CLOSED``: the reasoning is over, and the answer begins. ``ANSWER``: inside the answer.
    """

    UNDECIDED = "undecided"
    OPEN = "open"
    CLOSED = "closed"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The marks of reasoning in one format.

    Reasoning begins with one of ``open_texts``, usually the first, and ends with ``close_text``.
    Formats that also mark the answer have ``answer_open_texts`` and ``answer_close_texts``, which
    are removed. With ``may_recur``, reasoning can also follow parts of the answer, which requires
    marks that no text contains; otherwise an open mark within the answer is text.
    """

    open_texts: tuple[str, ...]
    close_text: str
    answer_open_texts: tuple[str, ...] = ()
    answer_close_texts: tuple[str, ...] = ()
    may_recur: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All texts that the format removes from an output."""
        return (
            *self.open_texts,
            self.close_text,
            *self.answer_open_texts,
            *self.answer_close_texts,
        )

    @property
    def control_texts(self) -> frozenset[str]:
        """The marks that are control tokens in some models."""
        return frozenset(tag for mark in self.marks for tag in _TAG.findall(mark))

    def state_after(self, prompt_end: str) -> ThoughtState:
        """Return the state in which an output begins after ``prompt_end``.

        ``prompt_end`` is the part of the model's turn that is in the prompt (see
        ``potluck.types.text.ChatPrompt.turn``). It may include preceding text, as long as that
        contains no marks.
        """
        opened, closed = (
            max(_end_of_last(mark, prompt_end) for mark in marks)
            for marks in (self.open_texts, (self.close_text, *self.answer_open_texts))
        )
        if opened == closed:
            return ThoughtState.UNDECIDED
        if opened > closed:
            return ThoughtState.OPEN
        return ThoughtState.ANSWER if prompt_end[closed:].strip() else ThoughtState.CLOSED


class ReasoningSplitter:
    """Splits one output into reasoning and the answer as it arrives.

    The parts, joined by kind, do not depend on how the text is divided into pieces. Nothing is
    dropped except marks and the white space next to them. Use from one thread.
    """

    def __init__(
        self, reasoning: ReasoningFormat, *, state: ThoughtState = ThoughtState.UNDECIDED
    ) -> None:
        self._format = reasoning
        self._marks = {each: DelimiterScanner(_marks_in(reasoning, each)) for each in ThoughtState}
        self._held = ""
        self._state = state
        self._skips_space = state in (ThoughtState.OPEN, ThoughtState.CLOSED)

    def push(self, text: str) -> Sequence[OutputPart]:
        """Process more text; return the parts that have become unambiguous."""
        self._held += text
        return self._take(is_end=False)

    def finish(self) -> Sequence[OutputPart]:
        """Return the text held back, at the end of the output."""
        return self._take(is_end=True)

    def _take(self, *, is_end: bool) -> list[OutputPart]:
        parts: list[OutputPart] = []
        while True:
            if self._skips_space:
                self._held = self._held.lstrip()
                self._skips_space = not self._held
            start, mark = self._marks[self._state].find(self._held, is_end=is_end)
            text, rest = self._held[:start], self._held[start:]
            is_start = self._state in (ThoughtState.UNDECIDED, ThoughtState.CLOSED)
            if is_start and text.strip():
                self._state = ThoughtState.ANSWER  # where other marks are text
                continue
            if self._state is ThoughtState.OPEN:
                stripped = text.rstrip()
                if not mark and not is_end:
                    rest = text[len(stripped) :] + rest
                text = stripped
            elif self._state is ThoughtState.UNDECIDED:
                if mark:
                    text = ""
                elif not is_end:
                    return parts
            self._held = rest[len(mark) :]
            if text:
                kind = ReasoningPart if self._state is ThoughtState.OPEN else TextPart
                parts.append(kind(text=text))
            if not mark:
                return parts
            self._pass(mark)

    def _pass(self, mark: str) -> None:
        if self._state is not ThoughtState.OPEN and mark in self._format.answer_close_texts:
            return
        is_opened = mark in self._format.open_texts
        self._state = ThoughtState.OPEN if is_opened else ThoughtState.CLOSED
        self._skips_space = True


def _marks_in(reasoning: ReasoningFormat, state: ThoughtState) -> tuple[str, ...]:
    if state is ThoughtState.OPEN:
        return (reasoning.close_text,)
    is_first = state is ThoughtState.UNDECIDED
    marks = list(reasoning.answer_close_texts)
    if is_first or reasoning.may_recur:
        marks += reasoning.open_texts
    if state is not ThoughtState.ANSWER or reasoning.may_recur:
        marks += reasoning.answer_open_texts
    if is_first:
        marks.append(reasoning.close_text)  # of omitted reasoning
    return tuple(dict.fromkeys(marks))


def _end_of_last(mark: str, text: str) -> int:
    index = text.rfind(mark)
    return -1 if index < 0 else index + len(mark)


def _tagged(tag: str = "think", **options: Any) -> ReasoningFormat:
    return ReasoningFormat(open_texts=(f"<{tag}>",), close_text=f"</{tag}>", **options)


_SIGNS: tuple[tuple[tuple[str, ...], ReasoningFormat | None], ...] = (
    # gpt-oss (harmony). A message of the commentary channel without a recipient is for the user.
    (
        ("<|channel|>analysis",),
        ReasoningFormat(
            open_texts=(
                "<|channel|>analysis<|message|>",
                "<|start|>assistant<|channel|>analysis<|message|>",
            ),
            close_text="<|end|>",
            answer_open_texts=(
                "<|channel|>final<|message|>",
                "<|start|>assistant<|channel|>final<|message|>",
                "<|channel|>commentary<|message|>",
                "<|start|>assistant<|channel|>commentary<|message|>",
            ),
            answer_close_texts=("<|end|>", "<|return|>"),
            may_recur=True,
        ),
    ),
    # Muse: a message to itself.
    (
        ("to=self<|message|>",),
        ReasoningFormat(
            open_texts=(" to=self<|message|>", "<|start|>assistant to=self<|message|>"),
            close_text="<|eom|>",
            answer_open_texts=(" to=user<|message|>", "<|start|>assistant to=user<|message|>"),
            answer_close_texts=("<|eot|>", "<|eom|>"),
            may_recur=True,
        ),
    ),
    # Kimi K3 writes its tags through a macro.
    (
        ("'<|open|>'", "open_tag('think'"),
        ReasoningFormat(
            open_texts=("<|open|>think<|sep|>",),
            close_text="<|close|>think<|sep|>",
            answer_open_texts=("<|open|>response<|sep|>",),
            answer_close_texts=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        ),
    ),
    # Gemma 4.
    (
        ("<|channel>", "<channel|>"),
        ReasoningFormat(
            open_texts=("<|channel>thought",),
            close_text="<channel|>",
            may_recur=True,
        ),
    ),
    # Command A and R7B. Models without reasoning mark the answer all the same.
    *(
        (
            (text,),
            ReasoningFormat(
                open_texts=("<|START_THINKING|>",),
                close_text="<|END_THINKING|>",
                answer_open_texts=("<|START_RESPONSE|>", "<|START_TEXT|>"),
                answer_close_texts=("<|END_RESPONSE|>", "<|END_TEXT|>"),
            ),
        )
        for text in ("<|END_THINKING|>", "<|END_RESPONSE|>")
    ),
    # Magistral and Ministral 3.
    (
        ("[/THINK]",),
        ReasoningFormat(open_texts=("[THINK]",), close_text="[/THINK]", may_recur=True),
    ),
    # Apertus.
    (
        ("<|inner_suffix|>",),
        ReasoningFormat(
            open_texts=("<|inner_prefix|>",),
            close_text="<|inner_suffix|>",
            may_recur=True,
        ),
    ),
    # Granite 3.2 uses words instead of tags.
    (
        ("Here is my thought process:", "Here is my response:"),
        ReasoningFormat(
            open_texts=("Here is my thought process:", "Here's my thought process:"),
            close_text="Here is my response:",
        ),
    ),
    # MiniMax M2, whose templates write tool results between <response> tags.
    (("</think>", "<minimax:tool_call>"), _tagged()),
    # Granite 3.3 and ERNIE 4.5.
    (
        ("</think>", "</response>"),
        _tagged(
            answer_open_texts=("<response>",),
            answer_close_texts=("</response>",),
        ),
    ),
    # Hunyuan.
    (
        ("</think>", "</answer>"),
        _tagged(answer_open_texts=("<answer>",), answer_close_texts=("</answer>",)),
    ),
    (("</seed:think>",), _tagged("seed:think")),
    (("</mm:think>",), _tagged("mm:think")),
    # EXAONE Deep.
    (("</thought>",), _tagged("thought")),
    # DeepSeek R1 and V3, Qwen 3, GLM 4, Kimi K2, MiniMax M2, Nemotron, SmolLM3, EXAONE 4 …
    (("</think>",), _tagged()),
)
"""Texts that identify a format: its templates contain all of them. The first match is used."""


_SWITCHES: Mapping[str, tuple[object, object]] = {
    "enable_thinking": (False, True),  # Qwen 3, GLM 4, Gemma 4, Nemotron 3, SmolLM3, Hunyuan
    "thinking": (False, True),  # DeepSeek V3.1, Granite 3, Kimi K3
    "reasoning": (False, True),  # Command A
    "thinking_budget": (0, -1),  # Seed-OSS
}
"""Template variables that turn reasoning on or off."""


def thinking_variables(template_source: str, *, is_on: bool) -> dict[str, object]:
    """Return the variables that turn reasoning on or off, limited to those that the template reads.

    The result is empty for a template without such a switch, such as that of gpt-oss, whose models
    always reason.
    """
    from potluck.text.template_environment import free_variables

    names = free_variables(template_source)
    return {name: values[is_on] for name, values in _SWITCHES.items() if name in names}


def reasoning_format(template_source: str) -> ReasoningFormat | None:
    """Return the reasoning format of a chat template, or None if it shows none.

    A template can contain the marks even though the model never reasons; an output without them is
    all answer.
    """
    return find_by_signs(_SIGNS, template_source, None)


def find_by_signs(
    signs: Sequence[tuple[tuple[str, ...], _T]], template_source: str, default: _T
) -> _T:
    """Return the first format all of whose texts a chat template contains, or ``default``."""
    return next(
        (found for texts, found in signs if all(text in template_source for text in texts)), default
    )
