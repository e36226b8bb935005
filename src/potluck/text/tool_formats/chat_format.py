"""The output format of a model: reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.text.delimiters import DelimiterScanner
from potluck.text.reasoning import ReasoningFormat, ReasoningSplitter, ThoughtState
from potluck.text.tool_formats.stream import CallStream, Steps
from potluck.text.tool_formats.syntax import (
    SPACE,
    TEXT,
    LarkSource,
    ToolSyntax,
    callable_tools,
    either,
    is_constrained,
)
from potluck.types.output import (
    OutputParser,
    OutputPart,
    ReasoningPart,
    TextPart,
    ToolCallArguments,
    ToolMode,
    ToolUse,
)
from potluck.types.text import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """Reasoning first, then text and calls (``potluck.types.output.OutputFormat``).

    ``control_tokens`` are the texts of all control tokens of the model.
    """

    syntax: ToolSyntax
    reasoning: ReasoningFormat | None
    control_tokens: frozenset[str]

    @property
    def name(self) -> str:
        """The name of the format in ``--tool-format``."""
        return self.syntax.name

    @property
    def control_texts(self) -> frozenset[str]:
        """Control tokens that the parser has to see."""
        thoughts = self.reasoning.control_texts if self.reasoning is not None else frozenset()
        return (thoughts | set(self.syntax.control_texts)) & self.control_tokens

    def parser(self, tool_use: ToolUse, *, prompt_end: str) -> OutputParser:
        """Return a parser for one output."""
        calls: OutputParser
        if tool_use.tools and tool_use.mode is not ToolMode.NONE:
            calls = CallParser(self.syntax, tool_use)
        else:
            calls = _WithoutMarks(sorted(set(self.syntax.control_texts) & self.control_tokens))
        if self.reasoning is None:
            return calls
        splitter = ReasoningSplitter(self.reasoning, state=self.reasoning.state_after(prompt_end))
        return _ThinkingParser(splitter, calls)

    def grammar(
        self, tool_use: ToolUse, *, prompt_end: str, response: str | None = None
    ) -> str | None:
        """Return the grammar of the allowed outputs, or None if all are allowed."""
        lark = LarkSource(self.control_tokens)
        answer = self._answer(lark, tool_use, response)
        if answer is None:
            return None
        return lark.grammar(f"{self._thought(lark, prompt_end)} {answer}")

    def _answer(self, lark: LarkSource, tool_use: ToolUse, response: str | None) -> str | None:
        """Return the expression of everything after the reasoning; None if it is unconstrained."""
        response_expression = None if response is None else self._marked(lark, lark.part(response))
        if not tool_use.tools or tool_use.mode is ToolMode.NONE:
            return response_expression
        tools = callable_tools(tool_use)
        if tool_use.mode is ToolMode.REQUIRED:
            return self._sections(lark, tool_use)
        if response_expression is not None:
            return either((response_expression, self._sections(lark, tool_use)))
        if not is_constrained(tool_use):
            return None
        if self.syntax.writes_bare:
            return either((self._not_bare(), self._sections(lark, tool_use)))
        until = lark.until(self.syntax.openings[0])
        section = self.syntax.section(lark, tools, is_parallel=tool_use.is_parallel)
        call = lark.rule(f"{until} {section}")
        if tool_use.is_parallel:
            return f"{call}* {TEXT}"
        return either((call, TEXT))

    def _sections(self, lark: LarkSource, tool_use: ToolUse) -> str:
        """Return the expression of an answer that consists only of calls."""
        tools = callable_tools(tool_use)
        is_parallel = tool_use.is_parallel
        section = self.syntax.section(lark, tools, is_parallel=is_parallel)
        if not self.syntax.writes_bare:
            section = f"{lark.text(self.syntax.openings[0])} {section}"
        section = lark.rule(section)
        if is_parallel and self.syntax.repeats:
            return f"{section} ({SPACE} {section})*"
        return section

    def _not_bare(self) -> str:
        """Return the expression of text that does not begin as calls do."""
        first = "".join(f"\\{text[0]}" for text in self.syntax.bare_openings)
        return f"/([^{first}\\s](?s:.*))?/"

    def _marked(self, lark: LarkSource, answer: str) -> str:
        """Return the expression of an answer, with the marks that the model may write around it."""
        if self.reasoning is None or not self.reasoning.answer_open_texts:
            return answer
        opened = lark.text(self.reasoning.answer_open_texts[0])
        closed = lark.text(self.reasoning.answer_close_texts[0])
        return either((answer, f"{opened} {SPACE} {answer} {SPACE} {closed}"))

    def _thought(self, lark: LarkSource, prompt_end: str) -> str:
        """Return the expression of the reasoning that comes first."""
        if self.reasoning is None:
            return ""
        state = self.reasoning.state_after(prompt_end)
        if state in (ThoughtState.CLOSED, ThoughtState.ANSWER):
            return SPACE if state is ThoughtState.CLOSED else ""
        thought = f"{lark.until(self.reasoning.close_text)} {SPACE}"
        if state is ThoughtState.OPEN:
            return thought
        return f"({SPACE} {lark.text(self.reasoning.open_texts[0])} {thought})?"


class SteppedParser:
    """Runs ``steps``, which read from ``stream``, as far as text is available."""

    def __init__(self, stream: CallStream, steps: Steps[None]) -> None:
        self._stream = stream
        self._steps = steps
        self._is_done = False
        self._advance()

    def push(self, text: str) -> Sequence[OutputPart]:
        """Process more text; return the parts that have become unambiguous."""
        self._stream.add(text)
        self._advance()
        return _joined(self._stream.take_parts())

    def finish(self, *, is_cut: bool = False) -> Sequence[OutputPart]:
        """Return the text held back, at the end of the output."""
        self._stream.end(is_cut=is_cut)
        self._advance()
        return _joined(self._stream.take_parts())

    def _advance(self) -> None:
        if not self._is_done:
            self._is_done = next(self._steps, True) is True


def _joined(parts: Sequence[OutputPart]) -> Sequence[OutputPart]:
    """Return ``parts`` with consecutive parts merged where one continues the other."""
    result: list[OutputPart] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            result[-1] = TextPart(text=last.text + part.text)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            result[-1] = ReasoningPart(text=last.text + part.text)
        elif (
            isinstance(part, ToolCallArguments)
            and isinstance(last, ToolCallArguments)
            and part.index == last.index
        ):
            result[-1] = ToolCallArguments(index=part.index, text=last.text + part.text)
        else:
            result.append(part)
    return result


class CallParser(SteppedParser):
    """Separates text and calls in answers that contain no reasoning.

    If a grammar constrains the calls, only those that begin as the grammar specifies are calls: the
    grammar treats everything else as text, and guarantees nothing about its arguments.
    """

    def __init__(self, syntax: ToolSyntax, tool_use: ToolUse) -> None:
        self._syntax = syntax
        self._tools: Sequence[Tool] = tool_use.tools
        self._must_call = tool_use.mode is ToolMode.REQUIRED
        self._openings, self._bare_openings = syntax.openings, syntax.bare_openings
        if is_constrained(tool_use):
            self._openings = () if syntax.writes_bare else syntax.openings[:1]
            self._bare_openings = syntax.bare_openings if syntax.writes_bare else ()
        super().__init__(CallStream([tool.name for tool in tool_use.tools]), self._read())

    def _read(self) -> Steps[None]:
        stream, syntax = self._stream, self._syntax
        may_be_text = not self._must_call
        if self._bare_openings:
            yield from stream.skip_space()
            opening = yield from stream.at_one_of(self._bare_openings)
            if opening and not (yield from syntax.read(stream, opening, self._tools)):
                stream.give_up(may_be_text=may_be_text)
        marks = DelimiterScanner(self._openings)
        while mark := (yield from stream.read_text(marks, may_be_text=may_be_text)):
            if not (yield from syntax.read(stream, mark, self._tools)):
                stream.give_up()
        stream.finish()


class _ThinkingParser:
    """Splits off reasoning, and passes the rest to another parser."""

    def __init__(self, splitter: ReasoningSplitter, calls: OutputParser) -> None:
        self._splitter = splitter
        self._calls = calls

    def push(self, text: str) -> Sequence[OutputPart]:
        return self._pass_on(self._splitter.push(text))

    def finish(self, *, is_cut: bool = False) -> Sequence[OutputPart]:
        rest = self._pass_on(self._splitter.finish())
        return [*rest, *self._calls.finish(is_cut=is_cut)]

    def _pass_on(self, parts: Sequence[OutputPart]) -> Sequence[OutputPart]:
        passed: list[OutputPart] = []
        for part in parts:
            passed += self._calls.push(part.text) if isinstance(part, TextPart) else (part,)
        return passed


class _WithoutMarks(SteppedParser):
    """Removes control tokens that occur only in calls, for requests without tools."""

    def __init__(self, marks: Sequence[str]) -> None:
        super().__init__(CallStream(()), self._read(DelimiterScanner(marks)))

    def _read(self, marks: DelimiterScanner) -> Steps[None]:
        stream = self._stream
        while (yield from stream.text_pieces(marks, lambda text: stream.tell(TextPart(text=text)))):
            stream.drop_held()
