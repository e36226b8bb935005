"""The masks of the last stage's steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from potluck.errors import EngineError, PotluckError
from potluck.grammars.matchers import Matcher, Matchers
from potluck.types.engine import NO_MASKS
from potluck.types.step import SampledToken, SequenceId, SequenceSlice, Step

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.grammars.vocabulary import Vocabulary
    from potluck.types.engine import TokenMasks

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Followed:
    """A sequence and its state in its grammar; without a ``matcher`` it must end.

    ``output_tokens`` are the tokens that the matcher has accepted. ``last`` is the position and
    token that were sampled last, and ``ahead`` the mask of the next token, if known.
    """

    matcher: Matcher | None
    output_tokens: list[int]
    last: tuple[int, int] | None = None
    ahead: NDArray[np.uint32] | None = None


class StepMasks:
    """Follows the sequences with grammars on a last stage. Not thread-safe.

    ``before`` is called before each step, ``marked`` with its tokens, and ``after`` when these have
    been sent; it computes the next masks ahead of the next step. ``open_vocabulary`` is called for
    the first grammar, and again for the next one if it raised a ``PotluckError``; without it,
    grammars are refused.
    """

    def __init__(self, open_vocabulary: Callable[[], Vocabulary] | None) -> None:
        self._open_vocabulary = open_vocabulary
        self._matchers: Matchers | None = None
        self._live: dict[SequenceId, _Followed] = {}
        self._cut_off: set[tuple[SequenceId, int]] = set()

    def before(self, step: Step) -> TokenMasks:
        """Return the masks of the sequences that sample in ``step``.

        Sequences without a grammar have none, and neither do those for which nothing will be
        sampled because the first draft is wrong. Masks after a draft that the grammar does not
        allow are not needed: those rows repeat the last one. A sequence whose grammar can no longer
        be followed is cut off at its next token, so as not to affect the others in its step. Raise
        ``EngineError`` if this node was not set up for grammars.
        """
        for opening in step.opened:
            self._end(opening.sequence_id)
            if opening.grammar is not None:
                self._open(opening.sequence_id, opening.grammar, opening.output_tokens)
        self._cut_off.clear()
        if not self._live:
            return NO_MASKS
        masks = {}
        for part in step.slices:
            followed = self._live.get(part.sequence_id) if part.sample else None
            if followed is None or _is_wrong(part, followed):
                continue
            rows = self._rows(part, followed)
            if rows is not None:
                masks[part.sequence_id] = rows
        return masks

    def marked(self, sampled: Sequence[SampledToken]) -> tuple[SampledToken, ...]:
        """Return the tokens of the last step passed to ``before``, with ``is_cut_off`` set for
        those that could only end their texts because their grammars cannot be followed any further.
        """
        if not self._cut_off:
            return tuple(sampled)
        return tuple(
            msgspec.structs.replace(token, is_cut_off=True)
            if (token.sequence_id, token.position) in self._cut_off
            else token
            for token in sampled
        )

    def after(self, step: Step, sampled: Iterable[SampledToken]) -> None:
        """Accept the tokens that ``step`` has sampled, and compute the next masks."""
        if not self._live:
            return
        closed = frozenset(step.closed)
        firsts = {
            part.sequence_id: _first_sampled(part)
            for part in step.slices
            if part.sample and part.sequence_id in self._live
        }
        moved: dict[SequenceId, _Followed] = {}
        for token in sampled:
            first = firsts.get(token.sequence_id)
            if first is None or token.position < first or token.sequence_id in closed:
                continue  # it was scored, or it is the last one
            followed = moved[token.sequence_id] = self._live[token.sequence_id]
            self._accept(followed, token)
        for followed in moved.values():
            matcher = followed.matcher
            followed.ahead = None if matcher is None else matcher.mask()
        for sequence_id in closed:
            self._end(sequence_id)

    def reset(self) -> None:
        """Remove all sequences."""
        for sequence_id in tuple(self._live):
            self._end(sequence_id)

    def _accept(self, followed: _Followed, token: SampledToken) -> None:
        followed.last = token.position, token.token
        matcher = followed.matcher
        if matcher is not None:
            followed.output_tokens.append(token.token)
            if not matcher.accept(token.token):
                _log.warning("a sampled token does not match its grammar: %s", matcher.problem)

    def _open(self, sequence_id: SequenceId, grammar: str, output_tokens: Sequence[int]) -> None:
        if self._open_vocabulary is None:
            raise EngineError("this node was not set up for grammars")
        followed = self._live[sequence_id] = _Followed(None, list(output_tokens))
        try:
            if self._matchers is None:
                self._matchers = Matchers(self._open_vocabulary())
            followed.matcher = self._at(self._matchers, grammar, output_tokens)
        except PotluckError as error:  # a file that has changed or cannot be fetched, too
            _log.warning("a validated grammar failed during decoding: %s", error)

    def _at(self, matchers: Matchers, grammar: str, output_tokens: Sequence[int]) -> Matcher:
        matcher = matchers.take(grammar)
        if not matcher.accept_all(output_tokens):
            _log.warning("a replayed sequence does not match its grammar: %s", matcher.problem)
        return matcher

    def _rows(self, part: SequenceSlice, followed: _Followed) -> NDArray[np.uint32] | None:
        """Return the masks of a slice, with a row for each token after which one may be sampled."""
        sequence_id, first = part.sequence_id, _first_sampled(part)
        positions = range(first, part.start_position + len(part.tokens) + 1)
        matcher = followed.matcher
        if matcher is None:
            self._cut_off.update((sequence_id, position) for position in positions)
            if self._matchers is None:
                return None
            return np.tile(self._matchers.end_mask, (len(positions), 1))
        mask = matcher.mask() if followed.ahead is None else followed.ahead
        followed.ahead = mask
        if matcher.is_cut_off:
            self._cut_off.update((sequence_id, position) for position in positions)
        if len(positions) == 1:
            return mask[np.newaxis]
        drafts = part.tokens[first - part.start_position :]
        rows = [mask]
        for position, (row, is_cut_off) in enumerate(matcher.masks_after(drafts, mask), first + 1):
            rows.append(row)
            if is_cut_off:
                self._cut_off.add((sequence_id, position))
        if matcher.is_broken and self._matchers is not None:
            followed.matcher = self._at(self._matchers, matcher.grammar, followed.output_tokens)
        rows += [rows[-1]] * (len(positions) - len(rows))
        return np.stack(rows)

    def _end(self, sequence_id: SequenceId) -> None:
        followed = self._live.pop(sequence_id, None)
        if followed is not None and followed.matcher is not None and self._matchers is not None:
            self._matchers.give_back(followed.matcher)


def _first_sampled(part: SequenceSlice) -> int:
    """Return the position of the first token that is sampled for a slice."""
    num_known = len(part.tokens) if not part.num_drafts else part.wanted.start + 1
    return part.start_position + num_known


def _is_wrong(part: SequenceSlice, followed: _Followed) -> bool:
    """Return whether it is known that nothing is sampled for a slice that begins with a draft."""
    if not part.begins_with_draft or followed.last is None:
        return False
    return followed.last != (part.start_position, part.tokens[0])
