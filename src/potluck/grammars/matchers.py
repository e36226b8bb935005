"""Compiled grammars, and the state of a sequence in one.

The matchers of finished sequences are kept, up to a limit, for other sequences with the same
grammar: they have cached parts of it, which makes their masks cheap. The memory of a matcher grows
with this cache.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

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


class DraftMask(NamedTuple):
    """The tokens allowed after a draft; only the end of the text if it ``is_cut_off``."""

    mask: NDArray[np.uint32]
    is_cut_off: bool


class Matcher:
    """The state of one sequence in its grammar. Not thread-safe.

    Nothing here raises because of a model's or a client's behavior: a matcher that receives a token
    that its grammar does not allow, or whose grammar turns out to be too complex, has a
    ``problem``, and only allows the end of the text from then on.
    """

    def __init__(self, vocabulary: Vocabulary, library: llguidance.LLMatcher, grammar: str) -> None:
        self.grammar = grammar
        self._vocabulary = vocabulary
        self._library = library
        self.num_tokens = 0
        """The number of tokens that were accepted."""
        self.is_cut_off = False
        """Whether the last mask allowed the end of the text only because of a problem."""
        self.is_broken = False
        """Whether the state before ``masks_after`` could not be restored."""
        self._spent_seconds = 0.0
        self._is_too_slow = False
        self._num_ends = 0  # after the end of the library's matcher, which does not count them

    @property
    def is_accepting(self) -> bool:
        """Whether the tokens accepted so far are a complete text of the grammar."""
        return self.problem is None and self._library.is_accepting()

    @property
    def problem(self) -> str | None:
        """The reason why the grammar could not be followed further, or None."""
        if self._library.is_error():
            return problem_of(self._library.get_error())
        return TOO_COMPLEX if self._is_too_slow else None

    def mask(self) -> NDArray[np.uint32]:
        """Return the mask of the tokens allowed next; the caller owns the array.

        Bit ``t % 32`` of word ``t // 32`` is set if token ``t`` is allowed. At least one is.
        """
        if self._is_too_slow:
            self.is_cut_off = True
            return self._vocabulary.end_mask
        started = time.thread_time()
        mask = self._vocabulary.mask_of(self._library)
        self._spend(time.thread_time() - started)
        self.is_cut_off = self._library.is_error()
        return mask

    def accept(self, token: int) -> bool:
        """Accept ``token``; return whether it was allowed."""
        self.num_tokens += 1
        if self._is_too_slow:
            return token in self._vocabulary.end_tokens
        started = time.thread_time()
        was_allowed = self._consume(token)
        self._spend(time.thread_time() - started)
        return was_allowed

    def accept_all(self, tokens: Sequence[int]) -> bool:
        """Accept all of ``tokens``; return whether they were allowed."""
        return all(self.accept(token) for token in tokens)

    def masks_after(self, drafts: Sequence[int], mask: NDArray[np.uint32]) -> list[DraftMask]:
        """Return the masks after each of ``drafts``, up to the first draft that is not allowed.

        ``mask`` is the mask before the first draft. The matcher's state does not change, unless
        there is a problem after a draft, and then it ``is_broken``. The time of this call is not
        counted, since drafts may be wrong; but if it reaches the remaining time limit, only the end
        of the text is allowed, as would be the case without drafts.
        """
        started, num_before, ends_before = time.thread_time(), self.num_tokens, self._num_ends
        spent_before = self._spent_seconds
        found: list[DraftMask] = []
        for draft in drafts:
            if self.problem is not None or not self._vocabulary.allows(mask, draft):
                break
            self.num_tokens += 1
            self._consume(draft)
            mask = self._vocabulary.mask_of(self._library)
            self.is_broken = self._library.is_error()
            self._spent_seconds = spent_before + time.thread_time() - started
            is_cut_off = self.is_broken or self._has_spent_all
            found.append(DraftMask(self._vocabulary.end_mask if is_cut_off else mask, is_cut_off))
            if is_cut_off:
                break
        self._spent_seconds = spent_before
        if not self.is_broken:
            num_consumed = self.num_tokens - num_before - (self._num_ends - ends_before)
            self.num_tokens, self._num_ends = num_before, ends_before
            if num_consumed:
                self._library.rollback(num_consumed)
        return found

    @property
    def _has_spent_all(self) -> bool:
        return self._spent_seconds > FREE_SECONDS + FREE_SECONDS_PER_TOKEN * self.num_tokens

    def _spend(self, seconds: float) -> None:
        """Count ``seconds``, and give up permanently if the limit is exceeded."""
        self._spent_seconds += seconds
        if self._has_spent_all:
            self._is_too_slow = True

    def _consume(self, token: int) -> bool:
        if self._library.is_stopped() and not self._library.is_error():
            if token in self._vocabulary.end_tokens:
                self._num_ends += 1
                return True
        elif token in self._vocabulary.end_tokens and not self._names(token):
            token = self._vocabulary.end
        return self._library.consume_token(token)

    def restart(self) -> bool:
        """Return to the beginning. Return False if a problem makes that impossible."""
        if self.problem is not None:
            return False
        self.num_tokens = self._num_ends = 0
        self._spent_seconds = 0.0
        self.is_cut_off = False
        return self._library.reset()

    def _names(self, token: int) -> bool:
        """Return whether the grammar itself names this end-of-text token at this point."""
        return self._library.validate_tokens([token]) == 1


class Matchers:
    """A model's matchers, at the beginning of their grammars. Not thread-safe."""

    def __init__(self, vocabulary: Vocabulary, *, max_idle: int = MAX_IDLE_MATCHERS) -> None:
        self._vocabulary = vocabulary
        self._max_idle = max_idle
        self._idle: OrderedDict[int, Matcher] = OrderedDict()
        self._limits = parser_limits()

    @property
    def num_idle(self) -> int:
        """The number of idle matchers."""
        return len(self._idle)

    @property
    def end_mask(self) -> NDArray[np.uint32]:
        """A new mask that only allows the end of a text."""
        return self._vocabulary.end_mask

    def take(self, grammar: str) -> Matcher:
        """Return a matcher for ``grammar``, which is compiled unless there is an idle one.

        Raise ``ParameterError`` if it cannot be compiled.
        """
        for key, matcher in reversed(self._idle.items()):
            if matcher.grammar == grammar:
                del self._idle[key]
                return matcher
        return self._compile(grammar)

    def give_back(self, matcher: Matcher) -> None:
        """Keep ``matcher``, which is no longer used, for other sequences with its grammar."""
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
