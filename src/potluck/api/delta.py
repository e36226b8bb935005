"""What a choice of an answer gains at a time."""

from __future__ import annotations

from dataclasses import dataclass

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
    """What a choice gains: text, its tokens if log-probabilities were asked for, its end."""

    text: str = ""
    tokens: tuple[ScoredToken, ...] = ()
    finish_reason: FinishReason | None = None

    @property
    def is_empty(self) -> bool:
        """Nothing that a client could see."""
        return not self.text and not self.tokens and self.finish_reason is None
