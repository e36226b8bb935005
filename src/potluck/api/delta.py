"""Deltas: increments of one choice of an answer."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.types.output import OutputPart, ReasoningPart, TextPart
from potluck.types.sequence import FinishReason
from potluck.types.step import TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A token of the text with its log-probability; ``offset`` is its start in characters.

    ``top`` lists the most likely tokens at its position. The first token of a prompt has no
    log-probability, because nothing precedes it.
    """

    token: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """An increment of one choice: parts of its output, its tokens if log-probabilities were
    requested, and its finish reason. ``stopped_by`` is the stop string that ended it, if any.
    """

    parts: tuple[OutputPart, ...] = ()
    tokens: tuple[ScoredToken, ...] = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | None = None

    @property
    def text(self) -> str:
        """The text of the answer alone, without reasoning and tool calls."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def reasoning(self) -> str:
        """The reasoning alone."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))

    @property
    def is_empty(self) -> bool:
        """Whether the delta contains nothing visible to a client."""
        return not self.parts and not self.tokens and self.finish_reason is None
