"""The masks of the last stage's steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from potluck.errors import EngineError
from potluck.grammars.matchers import Matcher, Matchers
from potluck.types.engine import NO_MASKS
from potluck.types.step import SampledToken, SequenceId, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from potluck.grammars.vocabulary import Vocabulary
    from potluck.types.engine import TokenMasks

_log = logging.getLogger(__name__)


class StepMasks:
    """Follows the sequences of a last stage that have grammars. For use by one thread.

    ``before`` is called before each step and ``after`` when its tokens are known and sent on: the
    masks that follow are computed then, and wait for the next step. ``open_vocabulary`` is called
    once, when the first grammar comes; without it grammars are refused.
    """

    def __init__(self, open_vocabulary: Callable[[], Vocabulary] | None) -> None:
        self._open_vocabulary = open_vocabulary
        self._matchers: Matchers | None = None
        self._live: dict[SequenceId, Matcher] = {}
        self._ahead: dict[SequenceId, NDArray[np.uint32]] = {}

    def before(self, step: Step) -> TokenMasks:
        """Return which tokens the sequences may choose from that sample in ``step``.

        Those without a grammar are not in it. Raise ``ParameterError`` for a grammar that cannot
        be compiled.
        """
        for opening in step.opened:
            self._end(opening.sequence_id)
            if opening.grammar is not None:
                matcher = self._take(opening.grammar)
                self._live[opening.sequence_id] = matcher
                if not matcher.accept_all(opening.output_tokens):
                    _log.warning("a replayed sequence does not match its grammar")
        if not self._live:
            return NO_MASKS
        return {
            part.sequence_id: self._mask(part.sequence_id)
            for part in step.slices
            if part.sample and part.sequence_id in self._live
        }

    def after(self, step: Step, sampled: Iterable[SampledToken]) -> None:
        """Go on past the tokens that ``step`` has sampled, and compute the masks that follow."""
        if not self._live:
            return
        closed = frozenset(step.closed)
        ends = {
            part.sequence_id: part.start_position + len(part.tokens)
            for part in step.slices
            if part.sample and part.sequence_id in self._live
        }
        for token in sampled:
            if ends.get(token.sequence_id) != token.position:
                continue  # it was scored
            matcher = self._live[token.sequence_id]
            self._ahead.pop(token.sequence_id, None)
            if token.sequence_id in closed:
                continue
            if not matcher.accept(token.token):
                _log.warning("a sampled token does not match its grammar: %s", matcher.problem)
            self._ahead[token.sequence_id] = matcher.mask()
        for sequence_id in closed:
            self._end(sequence_id)

    def reset(self) -> None:
        """Forget all sequences."""
        for sequence_id in tuple(self._live):
            self._end(sequence_id)

    def _take(self, grammar: str) -> Matcher:
        if self._matchers is None:
            if self._open_vocabulary is None:
                raise EngineError("grammars were not prepared for here")
            self._matchers = Matchers(self._open_vocabulary())
        return self._matchers.take(grammar)

    def _mask(self, sequence_id: SequenceId) -> NDArray[np.uint32]:
        ahead = self._ahead.get(sequence_id)
        return self._live[sequence_id].mask() if ahead is None else ahead

    def _end(self, sequence_id: SequenceId) -> None:
        self._ahead.pop(sequence_id, None)
        matcher = self._live.pop(sequence_id, None)
        if matcher is not None and self._matchers is not None:
            self._matchers.give_back(matcher)
