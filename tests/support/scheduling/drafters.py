"""Drafters that guess right, wrong, or whatever, and check how they are used."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from potluck.types.sequence import SequenceRequest
from potluck.types.step import SequenceId

Follow = Callable[[Sequence[int]], int]
"""Returns the token that the model gives after a history."""


class InstantSource:
    """The part of a ``DraftSource`` whose drafters take no time."""

    def seconds(self, k: int) -> float:
        """See ``DraftSource``."""
        return 0.0


class QuietDrafter:
    """The part of a ``Drafter`` that guesses nothing, and only knows whether it is closed."""

    is_closed = False

    def chances(self, tokens: Sequence[int], most: int) -> Sequence[float] | None:
        """See ``Drafter``."""
        return None

    def truncate(self, num_tokens: int) -> None:
        """See ``Drafter``."""

    def close(self) -> None:
        """See ``Drafter``."""
        self.is_closed = True


@dataclass
class CheckedDrafter(QuietDrafter):
    """Guesses with ``follow``; each guess is wrong with the probability ``error``.

    With ``delay`` it has no answer that often. It checks that what it is shown only grows, but for
    what is taken back.
    """

    follow: Follow
    draws: random.Random
    error: float
    delay: float = 0.0
    vocab_size: int = 1000
    shown: list[int] = field(default_factory=list)

    def propose(self, tokens: Sequence[int], k: int) -> Sequence[int] | None:
        """See ``Drafter``."""
        assert not self.is_closed
        assert k > 0
        assert list(tokens[: len(self.shown)]) == self.shown, "what was shown has changed"
        self.shown = list(tokens)
        if self.draws.random() < self.delay:
            return None
        guesses: list[int] = []
        while len(guesses) < k and self.draws.random() < 0.95:
            guess = self.follow([*tokens, *guesses])
            if self.draws.random() < self.error:
                guess = self.draws.randrange(self.vocab_size)
            guesses.append(guess)
        return guesses

    def truncate(self, num_tokens: int) -> None:
        """See ``Drafter``."""
        assert not self.is_closed
        assert num_tokens < len(self.shown), "there is nothing to take back"
        del self.shown[num_tokens:]


@dataclass
class CheckedDrafts(InstantSource):
    """A source of such drafters."""

    follow: Follow
    seed: int = 0
    errors: tuple[float, ...] = (0.0, 0.1, 0.5, 1.0)
    delay: float = 0.0
    vocab_size: int = 1000
    opened: list[CheckedDrafter] = field(default_factory=list)

    def open(self, sequence_id: SequenceId, request: SequenceRequest) -> CheckedDrafter | None:
        """See ``DraftSource``. Some sequences have no drafter."""
        draws = random.Random(f"{self.seed} {sequence_id}")
        if draws.random() < 0.1:
            return None
        drafter = CheckedDrafter(
            self.follow,
            draws,
            error=draws.choice(self.errors),
            delay=self.delay,
            vocab_size=self.vocab_size,
        )
        self.opened.append(drafter)
        return drafter
