"""How many tokens to draft, given the duration of steps and the acceptance of earlier drafts.

Verifying a draft is not free: a step of one sequence with 8 tokens takes 1.3 to 2.2 times as long
as one with a single token (weights of 4 bits), and in a step of many sequences, which is bound by
arithmetic, almost nothing is free. So the length is the one that promises the most tokens per
second:

- *Step times* are measured, for decode steps with the same number of sequences, by the number of
  tokens that drafts add. Steps that were alone in the pipeline, which take as long as all stages
  together, are separate from those that followed others, which take as long as the slowest stage.
- *Acceptance* is estimated by the drafter, which knows how long the match is that it continues.
  If it cannot tell, it is estimated for each sequence: how often the first guess is right, and how
  often the next one is after a right one. The two differ: within copied text nearly all guesses are
  right, and the first one shows whether there is any.

Estimates are sometimes wrong, so every sequence has an account, in steps without drafts: the cost
of drafts is subtracted from it, and what they save is added. It may be overdrawn by ``_MAX_LOSS``
of the tokens that the sequence was given and by ``_FREE_STEPS``; then nothing is drafted until more
tokens have come. The same allowance pays for trying again when the estimates promise no gain. Steps
ahead have an account of their own.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Only a few different lengths, so that each is measured often. From 16 on a step is bound by
arithmetic in most formats."""

MAX_DRAFTS = LENGTHS[-1]

_MAX_LOSS = 0.012
"""Less than half of the permitted cost of drafting compared with none (3 %), as costs are
estimates."""

_FREE_STEPS = 0.7
"""Allows a sequence to begin with drafts."""

_MOST_SAVED = 3.0
"""Limits what can be saved up: a sequence whose text is no longer copied soon stops drafting."""

_LEAST_GAIN = 1.02
"""A length that promises less is not worth the error of its estimate."""

_PRIOR_TOKEN_COST = 0.1
"""The cost of a draft before any measurement, relative to a step with one token: between 0.02
(BF16, which is bound by reading weights) and 0.17 (4 bits)."""

_NUM_SAMPLES = 7
"""The number of steps of the median, which is not affected by a single slow one."""

_REFRESH_STEPS = 64
"""After this many steps with drafts one without is measured: step times change with the context and
with the load of the machine."""

_FORGET_STEPS = 512
"""After this many steps a measurement is out of date."""

_MAX_BASE_REQUESTS = 4
"""Steps without drafts at the beginning, if their time is not given."""

_LENGTH_AT_FIRST = 2
"""For all sequences of a step together, while the cost of drafts is unknown."""

_MOST_TABLES = 32
"""The maximum number of different sequence counts; the least recently used one is dropped."""

_MOST_CROWDED = 3.5
"""With one sequence in each of many steps, nothing would ever be tried otherwise."""

_COST_ERROR = 0.05
"""The relative error of the medians of two lengths on busy machines. It is added to the cost of
drafts, or drafts that seem to cost nothing would never be stopped."""

_LEAST_LIKELY = 0.1
"""The margin by which the probability that a step ahead is useful must exceed that needed for a
gain."""

_FIRST_RATE, _NEXT_RATE = 0.2, 0.1
"""How far one outcome moves an estimate. There are more outcomes of the later guesses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """Decode steps that differ only in their drafts.

    One has ``num_sequences`` of ``num_decoding``; the others are in other steps. It ``follows``
    another one through the pipeline.
    """

    num_sequences: int = 1
    num_decoding: int = 1
    follows: bool = False

    @property
    def crowding(self) -> float:
        """Return how much more expensive drafts are because other steps wait for a longer one.

        If no other step has drafts, this is the number of steps; if all have, it is 1.
        """
        return min(_MOST_CROWDED, max(1.0, self.num_decoding / self.num_sequences))


ALONE = StepKind()
"""Steps of the only sequence, with nothing before them in the pipeline."""

AHEAD = StepKind(follows=True)
"""Steps that begin with a draft."""


class DraftHistory:
    """The outcomes of one sequence's guesses, and its account."""

    def __init__(self) -> None:
        self.first = 0.5
        self.next = 0.8
        self._saved = 0.0
        self._saved_ahead = 0.0
        self._num_tokens = 0

    @property
    def allowance(self) -> float:
        """Return how many steps' time drafts may lose from now on."""
        return _FREE_STEPS + _MAX_LOSS * self._num_tokens + self._saved

    @property
    def allowance_ahead(self) -> float:
        """Return how many steps' time steps ahead may lose from now on."""
        return (_FREE_STEPS + _MAX_LOSS * self._num_tokens) / 2 + self._saved_ahead

    def went_ahead(self, saved: float) -> None:
        """Record that a step ahead has saved this many steps' time."""
        self._saved_ahead = min(_MOST_SAVED, self._saved_ahead + saved)

    def verified(
        self, num_right: int, *, is_wrong: bool, is_first: bool, num_tokens: int, cost: float
    ) -> None:
        """Record a comparison of guesses with samples, up to the first wrong one.

        The first ``num_right`` were right, and the one after them ``is_wrong`` or does not exist.
        With ``is_first`` there was none before them. ``num_tokens`` were sampled, and verifying
        took the time of ``cost`` steps.
        """
        outcomes = [1.0] * num_right + [0.0] * is_wrong
        if is_first and outcomes:
            self.first += _FIRST_RATE * (outcomes[0] - self.first)
        for outcome in outcomes[is_first:]:
            self.next += _NEXT_RATE * (outcome - self.next)
        self._num_tokens += num_tokens
        self._saved = min(_MOST_SAVED, self._saved + num_tokens - 1 - cost)

    def chances(self, *, is_first: bool) -> Sequence[float]:
        """Return how likely each of the longest guess's tokens is right if all before it are."""
        return (self.first if is_first else self.next, *[self.next] * (MAX_DRAFTS - 1))

    def likely(self, num_drafts: int) -> float:
        """Return how likely as many guesses as these are all right."""
        return self.first * self.next ** (num_drafts - 1)


_longest_of = attrgetter("longest")


def _no_time(length: int) -> float:
    return 0.0


@dataclass(slots=True)
class _Table:
    """The times of steps with the same number of sequences, by the tokens that drafts added to
    them.
    """

    follows: bool
    samples: dict[int, deque[float]] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)  # typical of the samples
    measured_at: dict[int, int] = field(default_factory=dict)
    num_steps: int = 0
    base_requested_at: int = -_REFRESH_STEPS
    num_base_requests: int = 0

    def record(self, seconds: float, num_drafts: int) -> None:
        place = next((each for each in (0, *LENGTHS) if each >= num_drafts), num_drafts)
        self.num_steps += 1
        self.measured_at[place] = self.num_steps
        self.samples.setdefault(place, deque(maxlen=_NUM_SAMPLES)).append(seconds)
        self.seconds[place] = self._typical(place)  # once a step: it is read some fifty times
        for each, at in tuple(self.measured_at.items()):
            if at + _FORGET_STEPS < self.num_steps:
                del self.measured_at[each], self.samples[each], self.seconds[each]

    @property
    def lacks_base(self) -> bool:
        """Return whether steps without drafts have not been measured and are requested."""
        return 0 not in self.seconds and self.num_base_requests < _MAX_BASE_REQUESTS

    def asks_for_base(self) -> bool:
        """Return whether the next step must have no drafts, so that its time can be measured."""
        is_due = self.lacks_base
        if 0 in self.seconds:
            at = max(self.measured_at[0], self.base_requested_at)
            is_due = self.num_steps - at >= _REFRESH_STEPS
        if is_due:
            self.base_requested_at = self.num_steps
            self.num_base_requests += 1
        return is_due

    def ratio(self, num_drafts: int) -> float | None:
        """Return how many times as long as without drafts a step takes; None if unknown.

        Values between measurements are interpolated linearly.
        """
        if num_drafts == 0:
            return 1.0
        if 0 not in self.seconds:
            return None
        base = self.seconds[0]
        before, known = 0, 1.0
        for place in LENGTHS:
            if place not in self.seconds:
                continue
            measured = max(known, self.seconds[place] / base)
            if place >= num_drafts:
                return known + (measured - known) * (num_drafts - before) / (place - before)
            before, known = place, measured
        return None

    def token_seconds(self) -> float | None:
        """Return the time of a draft; None if unknown."""
        if not self.longest:
            return None
        return max(0.0, self.seconds[self.longest] - self.seconds[0]) / self.longest

    @property
    def base(self) -> float | None:
        """Return the time of a step without drafts; None if unknown."""
        return self.seconds.get(0)

    def _typical(self, place: int) -> float:
        samples = self.samples[place]
        if not self.follows:
            return statistics.median(samples)
        # The time since the step before is that of the slowest stage, or longer if it had to wait.
        return sorted(samples)[len(samples) // _NUM_SAMPLES]

    def in_steps(self, seconds: float) -> float:
        """Return how many steps without drafts take as long; 0 if unknown."""
        return 0.0 if self.base is None else seconds / self.base

    @property
    def longest(self) -> int:
        """Return the largest number of drafts whose ``ratio`` is known."""
        return max(self.seconds, default=0) if 0 in self.seconds else 0


class DraftLengths:
    """Chooses lengths for a pipeline with ``num_steps`` steps in flight. Not thread-safe.

    ``drafting`` returns the seconds needed to make a number of guesses.
    """

    def __init__(self, num_steps: int = 1, drafting: Callable[[int], float] = _no_time) -> None:
        self._num_steps = num_steps
        self._drafting = drafting
        self._tables: dict[tuple[int, bool], _Table] = {}

    def record(self, seconds: float, kind: StepKind, num_drafts: int) -> None:
        """Record the time of a decode step, measured from the end of the one before if it follows
        one.
        """
        self._table(kind).record(seconds, num_drafts)

    def wants_plain(self, kind: StepKind) -> bool:
        """Return whether the next step must have no drafts, to be measured; asked once."""
        return self._table(kind).asks_for_base()

    def length(
        self,
        history: DraftHistory,
        kind: StepKind,
        chances: Sequence[float] | None = None,
        *,
        num_drafts: int = 0,
        is_first: bool = True,
        computes_again: bool = False,
    ) -> int:
        """Return how many tokens to draft for a sequence, 0 if there is no gain.

        ``chances`` are those of the drafter, if it knows them (``Drafter.chances``). The sequences
        of its step have ``num_drafts`` drafts so far. ``is_first``: no guess before them is in
        flight. ``computes_again``: if one is wrong, those that were right are computed twice.
        """
        least = 1 if chances is None else 0  # one is to learn whether there is a gain by now
        if chances is None:
            chances = history.chances(is_first=is_first)
        table, now = self._table(kind), self._ratio(num_drafts, kind)
        given = kind.num_sequences + num_drafts / 2
        best, best_rate = 0, _LEAST_GAIN * given / now
        most = max(0, min(len(chances), self._most_drafts(kind) - num_drafts))
        num_right, all_right = 0.0, 1.0
        for length, chance in enumerate(chances[:most], 1):
            all_right *= chance
            num_right += all_right
            if length not in LENGTHS:
                continue
            more = self._ratio(num_drafts + length, kind) - now
            if computes_again:
                again = self._ratio(num_drafts + 1 + round(num_right), kind) - now
                more += (1 - all_right) * again
            drafting = table.in_steps(self._drafting(length))
            rate = (given + num_right) / (now + kind.crowding * more + drafting)
            if rate > best_rate:
                best, best_rate = length, rate
        best = min(best or least, most)
        affordable = (
            length
            for length in (best, *reversed(LENGTHS))
            if length <= best and self.cost(length, kind, num_drafts) < history.allowance
        )
        return next(affordable, 0)

    def cost(self, length: int, kind: StepKind, num_drafts: int = 0) -> float:
        """Return the time that ``length`` more drafts take, in tokens not sampled meanwhile."""
        if not length:
            return 0.0
        more = self._ratio(num_drafts + length, kind) - self._ratio(num_drafts, kind)
        drafting = self._table(kind).in_steps(self._drafting(length))
        return kind.num_sequences * (kind.crowding * more + _COST_ERROR) + drafting

    def length_ahead(
        self,
        history: DraftHistory,
        *,
        likely: float,
        num_steps_ahead: int,
        chances: Sequence[float] | None = None,
    ) -> int:
        """Return how many guesses to make as if all in flight were right; 0 for none.

        Those in flight are in ``num_steps_ahead`` steps. They and the first of the new guesses are
        all right as ``likely`` as that; ``chances`` are those of the guesses after it, as in
        :meth:`length`. If all are right, the next tokens take only the time of one stage; if not,
        the first stage computes something useless, for half of that time on average.
        """
        if self._table(ALONE).lacks_base:
            return 0  # it cannot be measured next to others
        if likely <= _LEAST_LIKELY + 1 / (2 * self._num_steps - 1):
            return 0
        # The first guess replaces a token that is known.
        length = 1
        if not self.wants_plain(AHEAD):
            length += self.length(history, AHEAD, chances, is_first=False)
        for each in (length, 1):
            if num_steps_ahead * self.cost_of_dead(each) < history.allowance_ahead:
                return each
        return 0

    def cost_of_dead(self, num_drafts: int) -> float:
        """Return the time of a slice that gave nothing, in steps."""
        return 0.5 * self._ratio(num_drafts - 1, AHEAD) / self._num_steps

    @property
    def saved_by_live(self) -> float:
        """Return the time saved by a step ahead that is useful, in steps."""
        return 1 - 1 / self._num_steps

    def _ratio(self, num_drafts: int, kind: StepKind) -> float:
        """Return how many times as long as without drafts a step takes.

        A draft takes at most as long as a step takes per sequence.
        """
        tables = [self._table(kind)]
        if kind.follows:  # all stages together may have been measured, but not each one
            tables.append(self._table(replace(kind, follows=False)))
        most = 1 + num_drafts / kind.num_sequences
        for table in tables:
            ratio = table.ratio(num_drafts)
            if ratio is not None:
                return min(most, ratio)
        longest = max(tables, key=_longest_of)
        known = longest.ratio(longest.longest) or 1.0
        token = self._token_cost(tables[-1], kind.num_sequences)
        return min(most, known + token * (num_drafts - longest.longest))

    def _token_cost(self, table: _Table, num_sequences: int) -> float:
        """Return the cost of a draft relative to a step without any, from steps with any sequence
        count.
        """
        if table.base is not None:
            for other in reversed(self._tables.values()):
                seconds = other.token_seconds()
                if seconds is not None and other.follows is table.follows:
                    return seconds / table.base
        return _PRIOR_TOKEN_COST / (1 + _PRIOR_TOKEN_COST * (num_sequences - 1))

    def _most_drafts(self, kind: StepKind) -> int:
        """Return how many drafts a step may have: twice as many as were measured.

        Beyond that the cost is a guess, and steps with many tokens take longer than the first few
        drafts suggest.
        """
        measured = max(
            (table.longest for table in self._tables.values() if kind.follows or not table.follows),
            default=0,
        )
        return max(_LENGTH_AT_FIRST, 2 * measured)

    def _table(self, kind: StepKind) -> _Table:
        key = (kind.num_sequences, kind.follows)
        table = self._tables.pop(key, None) or _Table(kind.follows)
        self._tables[key] = table  # now the most recently used
        if len(self._tables) > _MOST_TABLES:
            del self._tables[next(iter(self._tables))]
        return table
