"""The prediction for a plan: time per token, tokens per second, time to the first token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.cuts import Cut
from potluck.placement.group_times import GroupTimes
from potluck.placement.links import Link, header_bytes, step_bytes
from potluck.placement.times import PartTimes, UnitTimes
from potluck.types.placement import Basis, Prediction, StagePrediction, worst

MARGINS = {Basis.SERVED: 0.15, Basis.MEASURED: 0.3, Basis.TABLE: 0.6, Basis.ASSUMED: 0.9}

_NOTABLE = 0.01
"""The basis of hops is reported if they widen the margin by this much; it is shown in whole
percents.
"""
_SIMULATED_CHUNKS = 64
"""Simulated chunks of a prompt; longer prompts continue at the rate of the last chunks."""


def predict(request: PlaceRequest, cuts: Sequence[Cut], *, gap: float = 0.0) -> Prediction:
    """Return the prediction for the stages ``cuts`` on the candidates, which may be groups.

    The number of steps in flight is chosen to maximize the tokens per second of all streams. Raise
    ``ValueError`` if there is no stage.
    """
    if not cuts:
        raise ValueError("there are no stages")
    pipeline = _Pipeline(request=request, cuts=cuts)
    preferences = request.preferences
    context_tokens = preferences.context_tokens
    one = pipeline.step(1, context_tokens)
    num_streams = max(1, preferences.num_streams)
    loads = [
        _Load.of(pipeline.step(-(-num_streams // count), context_tokens), count)
        for count in range(1, min(num_streams, len(cuts) + 1) + 1)
    ]
    load = min(loads, key=lambda each: each.period_seconds)
    chunk = max(1, min(request.max_step_tokens, preferences.prompt_tokens))
    prefill = [
        each.prefill(chunk, max(chunk, preferences.prompt_tokens)) for each in pipeline.times
    ]
    bases = [worst(a.basis, b.basis) for a, b in zip(one.parts, prefill, strict=True)]
    exchanging = [
        part.exchanging_seconds(cut.start, cut.end)
        for part, cut in zip(one.parts, cuts, strict=True)
    ]
    computing = [
        max(0.0, seen - exchange)
        for seen, exchange in zip(one.seen_seconds, exchanging, strict=True)
    ]
    margin, link_basis = _margin(
        list(zip(computing, bases, strict=True)),
        [
            *zip(one.hop_seconds, (link.basis for link in pipeline.crossed_links), strict=True),
            *(
                (seconds, part.exchange_basis)
                for seconds, part in zip(exchanging, one.parts, strict=True)
                if part.exchange_basis is not None
            ),
        ],
    )
    stages = tuple(
        StagePrediction(
            node_id=unit.node_id,
            unit_id=unit.unit_id,
            decode_seconds=one.seen_seconds[index],
            loaded_seconds=load.step.seen_seconds[index],
            prefill_seconds_per_token=prefill[index].seconds(cut.start, cut.end) / chunk,
            hop_seconds=0.0 if is_led else one.hop_seconds[index + 1],
            basis=bases[index],
            exchange_seconds=exchanging[index],
        )
        for index, cut in enumerate(cuts)
        for is_led, unit in _units_of(pipeline.unit(cut))
    )
    return Prediction(
        stages=stages,
        entry_seconds=one.hop_seconds[0],
        token_seconds=one.path_seconds,
        tokens_per_second=1 / one.path_seconds,
        first_token_seconds=pipeline.first_token_seconds(
            preferences.prompt_tokens, chunk, load.steps_in_flight
        ),
        prompt_tokens=preferences.prompt_tokens,
        num_streams=num_streams,
        total_tokens_per_second=num_streams / load.period_seconds,
        steps_in_flight=load.steps_in_flight,
        bottleneck=_first_stage(pipeline, load.bottleneck),
        margin=margin,
        gap=gap,
        link_basis=link_basis,
    )


def _units_of(candidate: Candidate) -> list[tuple[bool, Candidate]]:
    """Return the units of a candidate, each with whether it is led by another."""
    return [(index > 0, unit) for index, unit in enumerate(candidate.members or (candidate,))]


def _first_stage(pipeline: _Pipeline, index: int | None) -> int | None:
    """Return the index of the first unit's stage of the cut with this index."""
    if index is None:
        return None
    return sum(max(1, len(pipeline.unit(cut).members)) for cut in pipeline.cuts[:index])


def _margin(
    stages: Sequence[tuple[float, Basis]], hops: Sequence[tuple[float, Basis]]
) -> tuple[float, Basis | None]:
    """Return the margin of stages and hops together, and the basis of the hops.

    Each counts by its share of the time. The basis is that of the hops which contribute most to the
    margin; None if the margin of the stages alone is about the same.
    """
    of_stages, of_hops = (dict.fromkeys(Basis, 0.0) for _ in range(2))
    for seconds_by_basis, parts in ((of_stages, stages), (of_hops, hops)):
        for seconds, basis in parts:
            seconds_by_basis[basis] += seconds
    alone = _weighted_margin(of_stages)
    margin = _weighted_margin({basis: of_stages[basis] + of_hops[basis] for basis in Basis})
    if margin < alone + _NOTABLE:
        return margin, None
    return margin, max(Basis, key=lambda basis: MARGINS[basis] * of_hops[basis])


def _weighted_margin(seconds: Mapping[Basis, float]) -> float:
    """Return the mean of the margins of the bases, weighted by the seconds of each."""
    return sum(MARGINS[basis] * each for basis, each in seconds.items()) / sum(seconds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepTimes:
    """The times of a step: ``hop_seconds`` has the way in first, and the way back last.

    ``stage_seconds`` are sustained, ``short_seconds`` those without throttling by a quota, and
    ``seen_seconds`` those that most steps take. ``unit_seconds`` are the sustained seconds of all
    stages of the unit of each stage.
    """

    parts: tuple[PartTimes, ...]
    stage_seconds: tuple[float, ...]
    short_seconds: tuple[float, ...]
    seen_seconds: tuple[float, ...]
    unit_seconds: tuple[float, ...]
    hop_seconds: tuple[float, ...]
    busy_seconds: tuple[float, ...]

    @property
    def path_seconds(self) -> float:
        """Return the time of one step at a time: quotas are renewed while other stages compute."""
        return max(sum(self.short_seconds) + sum(self.hop_seconds), *self.unit_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Several streams: all get a token in ``period_seconds``."""

    step: _StepTimes
    steps_in_flight: int
    period_seconds: float
    bottleneck: int | None

    @classmethod
    def of(cls, step: _StepTimes, steps_in_flight: int) -> _Load:
        slowest = max(step.unit_seconds)
        busiest = max(slowest, *step.busy_seconds)
        limited = steps_in_flight * busiest
        is_limited = limited >= step.path_seconds and busiest == slowest
        return cls(
            step=step,
            steps_in_flight=steps_in_flight,
            period_seconds=max(limited, step.path_seconds),
            bottleneck=step.unit_seconds.index(slowest) if is_limited else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipeline:
    request: PlaceRequest
    cuts: Sequence[Cut]

    def unit(self, cut: Cut) -> Candidate:
        return self.request.candidates[cut.unit]

    @property
    def times(self) -> list[UnitTimes | GroupTimes]:
        return [self.unit(cut).times for cut in self.cuts]

    @property
    def crossed_links(self) -> list[Link]:
        """Return the links that a step crosses, including the way in and the way back."""
        ends = self.request.coordinator
        nodes = [ends, *(self.unit(cut).node_id for cut in self.cuts), ends]
        return [self.request.links.link(a, b) for a, b in pairwise(nodes)]

    def step(self, num_sequences: int, context_tokens: int) -> _StepTimes:
        parts = tuple(each.decode(num_sequences, context_tokens) for each in self.times)
        return self._step(parts, num_sequences, num_sequences)

    def chunk(self, num_tokens: int, context_tokens: int) -> _StepTimes:
        parts = tuple(each.prefill(num_tokens, context_tokens) for each in self.times)
        return self._step(parts, num_tokens, 1)

    def _step(self, parts: tuple[PartTimes, ...], num_tokens: int, num_results: int) -> _StepTimes:
        hidden_size = self.times[0].work.hidden_size
        sizes = [step_bytes(num_tokens, hidden_size)] * (len(self.cuts) + 1)
        sizes[0], sizes[-1] = header_bytes(num_tokens), header_bytes(num_results)
        stages = [(part, cut.start, cut.end) for part, cut in zip(parts, self.cuts, strict=True)]
        sustained = tuple(part.seconds(start, end) for part, start, end in stages)
        of_unit: defaultdict[int, float] = defaultdict(float)
        for cut, seconds in zip(self.cuts, sustained, strict=True):
            of_unit[cut.unit] += seconds
        return _StepTimes(
            parts=parts,
            stage_seconds=sustained,
            short_seconds=tuple(part.undisturbed_seconds(a, b) for part, a, b in stages),
            seen_seconds=tuple(part.expected_seconds(a, b) for part, a, b in stages),
            unit_seconds=tuple(of_unit[cut.unit] for cut in self.cuts),
            hop_seconds=tuple(
                way.hop_seconds(size) for way, size in zip(self.crossed_links, sizes, strict=True)
            ),
            busy_seconds=tuple(
                way.busy_seconds(size) for way, size in zip(self.crossed_links, sizes, strict=True)
            ),
        )

    def first_token_seconds(self, prompt_tokens: int, chunk: int, steps_in_flight: int) -> float:
        """Return how long a prompt takes through the stages, one chunk after the other."""
        num_chunks = max(1, -(-prompt_tokens // chunk))
        free = [0.0] * len(self.cuts)
        finished: list[float] = []
        for number in range(min(num_chunks, _SIMULATED_CHUNKS)):
            start = number * chunk
            end = min(prompt_tokens, start + chunk) if prompt_tokens > 0 else 1
            step = self.chunk(end - start, end)
            at = finished[number - steps_in_flight] if number >= steps_in_flight else 0.0
            for index, seconds in enumerate(step.stage_seconds):
                at = max(at + step.hop_seconds[index], free[index]) + seconds
                free[index] = at
            finished.append(at + step.hop_seconds[-1])
        rest = num_chunks - len(finished)
        if rest > 0:
            half = len(finished) // 2
            pace = (finished[-1] - finished[half]) / (len(finished) - 1 - half)
            return finished[-1] + rest * pace
        return finished[-1]
