"""Compiled grammars, and where a sequence is in one.

A matcher costs memory that grows with what it has seen, so those of sequences that have ended are
kept, as many as fit in a bound, for others with the same grammar: what they have learnt of it makes
their masks cheap.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from potluck.errors import ParameterError
from potluck.grammars.build import require_own_form
from potluck.grammars.limits import (
    FREE_SECONDS,
    FREE_SECONDS_PER_TOKEN,
    MAX_IDLE_MATCHERS,
    parser_limits,
)
from potluck.grammars.problems import TOO_COMPLEX, problem_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import llguidance
    import numpy as np
    from numpy.typing import NDArray

    from potluck.grammars.vocabulary import Vocabulary


class Matcher:
    """Where one sequence is in its grammar. For use by one thread.

    Nothing here raises for what a model or a client does: a matcher that is given a token which
    its grammar does not allow, or whose grammar turns out to be too complex, has a ``problem`` and
    from then on allows the end of the text only.
    """

    def __init__(self, vocabulary: Vocabulary, library: llguidance.LLMatcher, grammar: str) -> None:
        self.grammar = grammar
        self._vocabulary = vocabulary
        self._library = library
        self._num_tokens = 0
        self._spent_seconds = 0.0
        self._is_too_slow = self._is_cut_off = False
        self._num_unfollowed = 0  # since it is too slow
        self._num_ends = 0  # after the library's matcher had ended, which does not count them

    @property
    def is_accepting(self) -> bool:
        """Whether what was accepted so far is a whole text of the grammar."""
        return self.problem is None and self._library.is_accepting()

    @property
    def problem(self) -> str | None:
        """Why the grammar could not be followed further, if so."""
        if self._library.is_error():
            return problem_of(self._library.get_error())
        return TOO_COMPLEX if self._is_too_slow else None

    @property
    def is_cut_off(self) -> bool:
        """Whether the last mask allowed the end of the text only because of a problem."""
        return self._is_cut_off

    @property
    def num_tokens(self) -> int:
        """How many tokens were accepted, and not taken back."""
        return self._num_tokens

    def mask(self) -> NDArray[np.uint32]:
        """Return which tokens may come next; the array is the caller's.

        Bit ``t % 32`` of word ``t // 32`` is set if the token ``t`` is allowed. At least one is.
        """
        if self._is_too_slow:
            self._is_cut_off = True
            return self._vocabulary.end_mask
        started = time.perf_counter()
        mask = self._vocabulary.mask_of(self._library)
        self._spend(time.perf_counter() - started)
        self._is_cut_off = self._library.is_error()
        return mask

    def accept(self, token: int) -> bool:
        """Go on past ``token``; return whether it was allowed."""
        self._num_tokens += 1
        if self._is_too_slow:
            self._num_unfollowed += 1
            return token in self._vocabulary.end_tokens
        started = time.perf_counter()
        was_allowed = self._consume(token)
        self._spend(time.perf_counter() - started)
        return was_allowed

    def accept_all(self, tokens: Sequence[int]) -> bool:
        """Go on past all of ``tokens``; return whether they were allowed."""
        return all(self.accept(token) for token in tokens)

    def _spend(self, seconds: float) -> None:
        """Give up for good if it is too much: tokens that follow earn no more time."""
        self._spent_seconds += seconds
        if self._spent_seconds > FREE_SECONDS + FREE_SECONDS_PER_TOKEN * self._num_tokens:
            self._is_too_slow = True

    def _consume(self, token: int) -> bool:
        if self._library.is_stopped() and not self._library.is_error():
            if token in self._vocabulary.end_tokens:
                self._num_ends += 1
                return True
        elif token in self._vocabulary.end_tokens and not self._names(token):
            token = self._vocabulary.end
        return self._library.consume_token(token)

    def rollback(self, num_tokens: int) -> None:
        """Take back the last ``num_tokens``. Raise ``ValueError`` if there were fewer."""
        if not 0 <= num_tokens <= self._num_tokens:
            raise ValueError(f"{num_tokens} of {self._num_tokens} tokens cannot be taken back")
        self._num_tokens -= num_tokens
        num_unfollowed = min(num_tokens, self._num_unfollowed)
        self._num_unfollowed -= num_unfollowed
        num_tokens -= num_unfollowed
        num_ends = min(num_tokens, self._num_ends)
        self._num_ends -= num_ends
        if num_tokens > num_ends:
            self._library.rollback(num_tokens - num_ends)

    def restart(self) -> bool:
        """Go back to the beginning; return False if that is not possible, after a problem."""
        if self.problem is not None:
            return False
        self._num_tokens = self._num_ends = 0
        self._spent_seconds = 0.0
        self._is_cut_off = False
        return self._library.reset()

    def _names(self, token: int) -> bool:
        """Whether the grammar itself asks for this token, which would also end a text, here."""
        return self._library.validate_tokens([token]) == 1


class Matchers:
    """Matchers for a model, at the beginning of their grammars. For use by one thread."""

    def __init__(self, vocabulary: Vocabulary, *, max_idle: int = MAX_IDLE_MATCHERS) -> None:
        self._vocabulary = vocabulary
        self._max_idle = max_idle
        self._idle: OrderedDict[int, Matcher] = OrderedDict()
        self._limits = parser_limits()

    @property
    def num_idle(self) -> int:
        """How many matchers are kept."""
        return len(self._idle)

    @property
    def end_mask(self) -> NDArray[np.uint32]:
        """A new mask that allows the end of a text and nothing else."""
        return self._vocabulary.end_mask

    def take(self, grammar: str) -> Matcher:
        """Return a matcher for ``grammar``, compiled unless one is kept.

        Raise ``ParameterError`` if it cannot be compiled.
        """
        for key, matcher in reversed(self._idle.items()):
            if matcher.grammar == grammar:
                del self._idle[key]
                return matcher
        return self._compile(grammar)

    def give_back(self, matcher: Matcher) -> None:
        """Keep ``matcher``, which is not used any more, for others with its grammar."""
        if self._max_idle and matcher.restart():
            self._idle[id(matcher)] = matcher
            while len(self._idle) > self._max_idle:
                self._idle.popitem(last=False)

    def _compile(self, grammar: str) -> Matcher:
        import llguidance

        require_own_form(grammar)
        library = llguidance.LLMatcher(
            self._vocabulary.library, grammar, log_level=0, limits=self._limits
        )
        if library.is_error():
            raise ParameterError("grammar", problem_of(library.get_error()))
        return Matcher(self._vocabulary, library, grammar)
