"""The masks of the last stage's steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from potluck.errors import EngineError, ParameterError
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

    ``before`` is called before each step, ``marked`` with its tokens, and ``after`` when these have
    been sent on: the masks that follow are computed then, and wait for the next step.
    ``open_vocabulary`` is called when the first grammar comes, and again with the next one where it
    raised ``EngineError``; without it grammars are refused.
    """

    def __init__(self, open_vocabulary: Callable[[], Vocabulary] | None) -> None:
        self._open_vocabulary = open_vocabulary
        self._matchers: Matchers | None = None
        self._live: dict[SequenceId, Matcher | None] = {}
        self._ahead: dict[SequenceId, NDArray[np.uint32]] = {}
        self._cut_off: frozenset[SequenceId] = frozenset()

    def before(self, step: Step) -> TokenMasks:
        """Return which tokens the sequences may choose from that sample in ``step``.

        Those without a grammar are not in it. A sequence whose grammar cannot be followed after all
        is cut off with its next token: it must not disturb the others of its step. Raise
        ``EngineError`` if grammars were not prepared for here.
        """
        for opening in step.opened:
            self._end(opening.sequence_id)
            if opening.grammar is not None:
                self._open(opening.sequence_id, opening.grammar, opening.output_tokens)
        self._cut_off = frozenset()
        if not self._live:
            return NO_MASKS
        sampled = [
            part.sequence_id
            for part in step.slices
            if part.sample and part.sequence_id in self._live
        ]
        masks = {
            sequence_id: mask
            for sequence_id in sampled
            if (mask := self._mask(sequence_id)) is not None
        }
        self._cut_off = frozenset(
            sequence_id
            for sequence_id in sampled
            if (matcher := self._live[sequence_id]) is None or matcher.is_cut_off
        )
        return masks

    def marked(self, sampled: Sequence[SampledToken]) -> tuple[SampledToken, ...]:
        """Return the tokens of the step that ``before`` was called for, with ``is_cut_off`` set.

        They could only end their texts, because the grammars cannot be followed any further.
        """
        return tuple(
            replace(token, is_cut_off=True) if token.sequence_id in self._cut_off else token
            for token in sampled
        )

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
            if token.sequence_id in closed or matcher is None:
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

    def _open(self, sequence_id: SequenceId, grammar: str, output_tokens: Sequence[int]) -> None:
        if self._open_vocabulary is None:
            raise EngineError("grammars were not prepared for here")
        self._live[sequence_id] = None
        try:
            if self._matchers is None:
                self._matchers = Matchers(self._open_vocabulary())
            matcher = self._live[sequence_id] = self._matchers.take(grammar)
        except (EngineError, ParameterError) as error:
            _log.warning("a grammar that was checked cannot be followed: %s", error)
            return
        if not matcher.accept_all(output_tokens):
            _log.warning("a replayed sequence does not match its grammar: %s", matcher.problem)

    def _mask(self, sequence_id: SequenceId) -> NDArray[np.uint32] | None:
        ahead = self._ahead.get(sequence_id)
        if ahead is not None:
            return ahead
        matcher = self._live[sequence_id]
        if matcher is None:
            return None if self._matchers is None else self._matchers.end_mask
        return matcher.mask()

    def _end(self, sequence_id: SequenceId) -> None:
        self._ahead.pop(sequence_id, None)
        matcher = self._live.pop(sequence_id, None)
        if matcher is not None and self._matchers is not None:
            self._matchers.give_back(matcher)
