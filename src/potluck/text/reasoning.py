"""How models write their thoughts, and splitting an output into thoughts and the answer.

Each family marks thoughts in its own way; a model's chat template contains the marks, because it
writes the thoughts of earlier turns, or opens the next one (``reasoning_format``). Some templates
open the thought at the end of the prompt, so that the output begins inside it, and some close an
empty one there to turn thinking off: the end of the prompt is therefore part of the input.

White space next to the marks belongs to the format, not to what is said. It is removed, as the
templates themselves do when they write a thought again.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from potluck.text.marks import Marks
from potluck.types.output import OutputPart, ReasoningPart, TextPart

_TAG = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


class ThoughtState(enum.Enum):
    """What an output begins with.

    ``UNDECIDED``: the model opens a thought, or it answers. ``OPEN``: it is within a thought.
    ``CLOSED``: the thought is over, and the answer begins. ``ANSWER``: it is within the answer.
    """

    UNDECIDED = "undecided"
    OPEN = "open"
    CLOSED = "closed"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The marks of thoughts in one format.

    A thought begins with one of ``open_texts`` and ends with ``close_text``. Formats that mark the
    answer too have ``answer_open_texts`` and ``answer_close_texts``; these are removed. With
    ``may_recur`` thoughts can also follow parts of the answer, which only marks that no text
    contains allow; otherwise an open mark within the answer is text.
    """

    name: str
    open_texts: tuple[str, ...]
    close_text: str
    answer_open_texts: tuple[str, ...] = ()
    answer_close_texts: tuple[str, ...] = ()
    may_recur: bool = False

    @property
    def open_text(self) -> str:
        """The mark that usually opens a thought."""
        return self.open_texts[0]

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
        """The tokens in the marks, which some models have as control tokens."""
        return frozenset(tag for mark in self.marks for tag in _TAG.findall(mark))

    def state_after(self, prompt_end: str) -> ThoughtState:
        """Return what an output begins with after ``prompt_end``.

        ``prompt_end`` is the model's turn as far as it is in the prompt (see
        ``potluck.text.chat.ChatPrompt.turn``). What comes before the turn does no harm as long as
        it contains no marks.
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
    """Splits one output into thoughts and the answer, as it comes.

    The parts, joined by kind, do not depend on how the text is divided into pieces. Nothing is
    lost but marks, and white space next to marks. For use by one thread.
    """

    def __init__(
        self, reasoning: ReasoningFormat, *, state: ThoughtState = ThoughtState.UNDECIDED
    ) -> None:
        self._format = reasoning
        self._marks = {each: Marks(_marks_in(reasoning, each)) for each in ThoughtState}
        self._held = ""
        self._state = state
        self._skips_space = state in (ThoughtState.OPEN, ThoughtState.CLOSED)

    @property
    def state(self) -> ThoughtState:
        """Where the output is now, as far as it is certain."""
        return self._state

    def push(self, text: str) -> Sequence[OutputPart]:
        """Take more text; return the parts that have become certain."""
        self._held += text
        return self._take(is_end=False)

    def finish(self) -> Sequence[OutputPart]:
        """Return what was held back, at the end of the output."""
        return self._take(is_end=True)

    def _take(self, *, is_end: bool) -> list[OutputPart]:
        parts: list[OutputPart] = []
        while True:
            if self._skips_space:
                self._held = self._held.lstrip()
                self._skips_space = not self._held
            start, mark = self._marks[self._state].find(self._held, is_end=is_end)
            text, rest = self._held[:start], self._held[start:]
            if self._is_start and text.strip():
                self._state = ThoughtState.ANSWER  # where other marks are text
                continue
            if self._state is ThoughtState.OPEN:
                said = text.rstrip()
                if not mark and not is_end:
                    rest = text[len(said) :] + rest
                text = said
            elif self._state is ThoughtState.UNDECIDED:
                if mark:
                    text = ""
                elif not is_end:
                    return parts
            self._held = rest[len(mark) :]
            if text:
                parts.append(self._part(text))
            if not mark:
                return parts
            self._pass(mark)

    @property
    def _is_start(self) -> bool:
        return self._state in (ThoughtState.UNDECIDED, ThoughtState.CLOSED)

    def _part(self, text: str) -> OutputPart:
        if self._state is ThoughtState.OPEN:
            return ReasoningPart(text=text)
        return TextPart(text=text)

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
        marks.append(reasoning.close_text)  # of a thought that was left out
    return tuple(dict.fromkeys(marks))


def _end_of_last(mark: str, text: str) -> int:
    index = text.rfind(mark)
    return -1 if index < 0 else index + len(mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sign:
    """A format, and texts that its templates contain, all of them."""

    texts: tuple[str, ...]
    reasoning: ReasoningFormat


def _tagged(name: str, *, prefix: str = "think", **options: Any) -> ReasoningFormat:
    return ReasoningFormat(
        name=name, open_texts=(f"<{prefix}>",), close_text=f"</{prefix}>", **options
    )


_SIGNS = (
    # gpt-oss (harmony). A message of the commentary channel without a recipient is for the user.
    _Sign(
        texts=("<|channel|>analysis",),
        reasoning=ReasoningFormat(
            name="harmony",
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
    # Muse: a message to oneself.
    _Sign(
        texts=("to=self<|message|>",),
        reasoning=ReasoningFormat(
            name="to-self",
            open_texts=(" to=self<|message|>", "<|start|>assistant to=self<|message|>"),
            close_text="<|eom|>",
            answer_open_texts=(" to=user<|message|>", "<|start|>assistant to=user<|message|>"),
            answer_close_texts=("<|eot|>", "<|eom|>"),
            may_recur=True,
        ),
    ),
    # Kimi K3 writes its tags through a macro.
    _Sign(
        texts=("'<|open|>'", "open_tag('think'"),
        reasoning=ReasoningFormat(
            name="kimi-k3",
            open_texts=("<|open|>think<|sep|>",),
            close_text="<|close|>think<|sep|>",
            answer_open_texts=("<|open|>response<|sep|>",),
            answer_close_texts=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        ),
    ),
    # Gemma 4.
    _Sign(
        texts=("<|channel>", "<channel|>"),
        reasoning=ReasoningFormat(
            name="gemma-4",
            open_texts=("<|channel>thought",),
            close_text="<channel|>",
            may_recur=True,
        ),
    ),
    # Command A and R7B. Those that do not think mark the answer all the same.
    *(
        _Sign(
            texts=(text,),
            reasoning=ReasoningFormat(
                name="command",
                open_texts=("<|START_THINKING|>",),
                close_text="<|END_THINKING|>",
                answer_open_texts=("<|START_RESPONSE|>", "<|START_TEXT|>"),
                answer_close_texts=("<|END_RESPONSE|>", "<|END_TEXT|>"),
            ),
        )
        for text in ("<|END_THINKING|>", "<|END_RESPONSE|>")
    ),
    # Magistral and Ministral 3.
    _Sign(
        texts=("[/THINK]",),
        reasoning=ReasoningFormat(
            name="mistral", open_texts=("[THINK]",), close_text="[/THINK]", may_recur=True
        ),
    ),
    # Apertus.
    _Sign(
        texts=("<|inner_suffix|>",),
        reasoning=ReasoningFormat(
            name="apertus",
            open_texts=("<|inner_prefix|>",),
            close_text="<|inner_suffix|>",
            may_recur=True,
        ),
    ),
    # Granite 3.2 has words instead of tags.
    _Sign(
        texts=("Here is my thought process:", "Here is my response:"),
        reasoning=ReasoningFormat(
            name="granite-3.2",
            open_texts=("Here is my thought process:", "Here's my thought process:"),
            close_text="Here is my response:",
        ),
    ),
    # MiniMax M2, whose templates write results of tools between <response> tags.
    _Sign(texts=("</think>", "<minimax:tool_call>"), reasoning=_tagged("think")),
    # Granite 3.3 and ERNIE 4.5.
    _Sign(
        texts=("</think>", "</response>"),
        reasoning=_tagged(
            "think-response",
            answer_open_texts=("<response>",),
            answer_close_texts=("</response>",),
        ),
    ),
    # Hunyuan.
    _Sign(
        texts=("</think>", "</answer>"),
        reasoning=_tagged(
            "think-answer", answer_open_texts=("<answer>",), answer_close_texts=("</answer>",)
        ),
    ),
    _Sign(texts=("</seed:think>",), reasoning=_tagged("seed", prefix="seed:think")),
    _Sign(texts=("</mm:think>",), reasoning=_tagged("minimax", prefix="mm:think")),
    # EXAONE Deep.
    _Sign(texts=("</thought>",), reasoning=_tagged("thought", prefix="thought")),
    # DeepSeek R1 and V3, Qwen 3, GLM 4, Kimi K2, MiniMax M2, Nemotron, SmolLM3, EXAONE 4 …
    _Sign(texts=("</think>",), reasoning=_tagged("think")),
)


_SWITCHES: Mapping[str, tuple[object, object]] = {
    "enable_thinking": (False, True),  # Qwen 3, GLM 4, Gemma 4, Nemotron 3, SmolLM3, Hunyuan
    "thinking": (False, True),  # DeepSeek V3.1, Granite 3, Kimi K3
    "reasoning": (False, True),  # Command A
    "thinking_budget": (0, -1),  # Seed-OSS
}
"""Variables of templates that turn thinking off and on."""


def thinking_variables(template_source: str, *, is_on: bool) -> dict[str, object]:
    """Return the variables that turn thinking on or off, those that the template reads.

    It is empty for a template that has no such switch, as that of gpt-oss, whose models always
    think.
    """
    from potluck.text.template_environment import free_variables

    names = free_variables(template_source)
    return {name: values[is_on] for name, values in _SWITCHES.items() if name in names}


def reasoning_format(template_source: str) -> ReasoningFormat | None:
    """Return how the models of a chat template write thoughts, or None if it shows no way.

    A template can show the marks for a model that never thinks; an output without them is all
    answer.
    """
    for sign in _SIGNS:
        if all(text in template_source for text in sign.texts):
            return sign.reasoning
    return None
