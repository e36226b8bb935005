"""What a choice of an answer gains at a time."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.types.output import OutputPart, TextPart
from potluck.types.sequence import FinishReason
from potluck.types.step import TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A token of the text with its log-probability; ``offset`` is where it begins, in characters.

    ``top`` are the likeliest tokens in its place. The first token of a prompt has no
    log-probability, because nothing comes before it.
    """

    token: int
    logprob: float | None
    top: tuple[TokenLogprob, ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What a choice gains: parts of its output, its tokens if log-probabilities were asked for, and
    its end. ``stopped_by`` is the stop string that ended it, if one did.
    """

    parts: tuple[OutputPart, ...] = ()
    tokens: tuple[ScoredToken, ...] = ()
    finish_reason: FinishReason | None = None
    stopped_by: str | None = None

    @property
    def text(self) -> str:
        """The text of the answer alone, without thoughts and calls."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def is_empty(self) -> bool:
        """Nothing that a client could see."""
        return not self.parts and not self.tokens and self.finish_reason is None
