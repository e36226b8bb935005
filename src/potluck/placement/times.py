"""How long the parts of a model take on a unit, for any kind of step.

The prediction from a unit's trial is corrected by what its workers measured while they served
models of the same shape: by the ratio of the two for similar steps, interpolated between kinds of
steps, and weighted by the number of measured steps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeVar

from potluck.models.work import num_visible, share_of_experts
from potluck.placement.speed import QUOTA_PERIOD_SECONDS, UnitSpeed, interpolated
from potluck.placement.work import ModelWork, PartWork
from potluck.types.placement import Basis
from potluck.types.speed import StepTime

_T = TypeVar("_T")
_R = TypeVar("_R")

LEAST_SECONDS = 1e-9
"""The minimum time of any part: no time is 0."""
MOST_SECONDS = 1e6

_MOST_RATIO = 30.0
"""A measured step may take this many times longer or less than predicted; anything else is an
outlier.
"""
_SAMPLES_OF_PRIOR = 4.0
"""This many measured steps have the same weight as the prediction."""
_SAMPLES_OF_SERVED = 8
_MOST_STEP_TIMES = 1000
"""The maximum number of step times of a unit that are considered."""


def once_each(values: Iterable[_T], result_of: Callable[[_T], _R]) -> list[_R]:
    """Return the result for each value; it is computed once for values that are one object."""
    ordered = list(values)
    distinct = {id(each): each for each in ordered}
    results = {key: result_of(each) for key, each in distinct.items()}
    return [results[id(each)] for each in ordered]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """How long a step takes on one unit, in seconds, by the parts of the model that a stage has.

    ``item_seconds`` are those of the embedding, of each decoder layer and of the head;
    ``stage_seconds`` is the fixed time of every stage. All are positive and finite, and sustained:
    for steps one after the other without a pause. If a control group limits the unit, a step takes
    only ``usable_share`` of that time until the unit has used up its part of a period of
    ``quota_period_seconds``. In a group, ``exchange_seconds`` of ``item_seconds`` are spent in
    exchanges between its members; their basis is ``exchange_basis``.
    """

    item_seconds: tuple[float, ...]
    stage_seconds: float
    basis: Basis
    usable_share: float = 1.0
    quota_period_seconds: float = QUOTA_PERIOD_SECONDS
    exchange_seconds: tuple[float, ...] = ()
    exchange_basis: Basis | None = None

    def exchanging_seconds(self, start: int, end: int) -> float:
        """Return how much of the time of the items ``[start, end)`` is spent in exchanges."""
        return sum(self.exchange_seconds[start:end])

    def seconds(self, start: int, end: int) -> float:
        """Return the sustained time of a stage with the items ``[start, end)``."""
        return sum(self.item_seconds[start:end]) + self.stage_seconds

    def undisturbed_seconds(self, start: int, end: int) -> float:
        """Return the time of such a stage after a pause: part of it runs at full speed."""
        return _after_pause(self.seconds(start, end), self.usable_share, self.quota_period_seconds)

    def expected_seconds(self, start: int, end: int) -> float:
        """Return the typical time of such a stage in a pipeline.

        A step that fits in its unit's part of a period is not throttled, unless others preceded it.
        """
        short = self.seconds(start, end) * self.usable_share
        fits = short <= self.usable_share * self.quota_period_seconds
        return short if fits else self.seconds(start, end)


class CorrectionPoint(NamedTuple):
    """The factor by which steps of ``num_tokens`` take longer than predicted."""

    num_tokens: int
    factor: float
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The factor by which steps take longer than predicted, by tokens in ascending order."""

    points: tuple[CorrectionPoint, ...] = ()

    def at(self, num_tokens: int) -> float:
        """Return the factor, interpolated on a logarithmic scale; 1 if nothing was measured."""
        if not self.points:
            return 1.0
        points = ((math.log(each.num_tokens), math.log(each.factor)) for each in self.points)
        return math.exp(interpolated(points, math.log(max(1, num_tokens))))

    def is_served(self, num_tokens: int) -> bool:
        """Return whether enough steps of about this many tokens were measured."""
        return any(
            each.num_samples >= _SAMPLES_OF_SERVED
            and each.num_tokens / 2 <= num_tokens <= each.num_tokens * 2
            for each in self.points
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTimes:
    """How long the parts of one model take on one unit."""

    work: ModelWork
    speed: UnitSpeed
    decode_correction: Correction = Correction()
    prefill_correction: Correction = Correction()

    def decode(self, num_sequences: int = 1, context_tokens: int = 512) -> PartTimes:
        """Return the times of a step that decodes one token for each of this many sequences.

        Each sees ``context_tokens`` positions, including its own.
        """
        return self.step(max(1, num_sequences), context_tokens, is_prompt=False)

    def prefill(self, num_tokens: int, context_tokens: int = 0) -> PartTimes:
        """Return the times of a step with a chunk of ``num_tokens`` of one prompt.

        The last of them sees ``context_tokens`` positions, and at least those of the chunk. A token
        is sampled after the last one.
        """
        num_tokens = max(1, num_tokens)
        return self.step(num_tokens, max(context_tokens, num_tokens), is_prompt=True)

    def corrected(self, step_times: Iterable[StepTime]) -> UnitTimes:
        """Return these times, corrected only by what workers measured for this shape.

        Implausible figures, which another node sent, are ignored.
        """
        first = islice(step_times, _MOST_STEP_TIMES)
        believed = [each for each in first if each.is_plausible]
        decodes = [each for each in believed if each.num_tokens == each.num_sequences]
        prefills = [each for each in believed if each.num_tokens > each.num_sequences]
        plain = UnitTimes(work=self.work, speed=self.speed)
        return replace(
            plain,
            decode_correction=_correction(plain, decodes),
            prefill_correction=_correction(plain, prefills),
        )

    def correction(self, *, is_prompt: bool) -> Correction:
        """Return the correction of a step of one prompt, or of one that decodes."""
        return self.prefill_correction if is_prompt else self.decode_correction

    def step(self, num_tokens: int, context_tokens: int, *, is_prompt: bool) -> PartTimes:
        """Return the times of a step of one prompt (``prefill``), or of one that decodes."""
        speed, work = self.speed, self.work
        correction = self.correction(is_prompt=is_prompt)
        basis = speed.prefill_basis if is_prompt else speed.decode_basis
        num_wanted = 1 if is_prompt else num_tokens
        scale = correction.at(num_tokens) / speed.usable_share
        model_bytes = work.num_bytes

        def layer_seconds(part: PartWork) -> float:
            computing = part_seconds(
                speed, part, num_tokens, context_tokens, model_bytes, is_prompt=is_prompt
            )
            return _bounded(scale * (speed.layer_seconds.value + computing))

        head = _product_seconds(speed, work.head, num_wanted, model_bytes, is_prompt=False)
        head += num_wanted * work.config.vocab_size * speed.seconds_per_logit
        embedding = num_tokens * work.hidden_size * speed.seconds_per_embedded_value
        return PartTimes(
            item_seconds=(
                _bounded(scale * embedding),
                *once_each(work.layers, layer_seconds),
                _bounded(scale * head),
            ),
            stage_seconds=_bounded(scale * speed.step_seconds.value),
            basis=Basis.SERVED if correction.is_served(num_tokens) else basis,
            usable_share=speed.usable_share,
            quota_period_seconds=speed.quota_period_seconds,
        )


def part_seconds(
    speed: UnitSpeed,
    part: PartWork,
    num_tokens: int,
    context_tokens: int,
    model_bytes: float,
    *,
    is_prompt: bool,
) -> float:
    """Return the uncorrected time of the products, the attention and the states of a part.

    ``model_bytes`` are those of all matrices of the model.
    """
    seconds = _product_seconds(speed, part, num_tokens, model_bytes, is_prompt=is_prompt)
    seconds += _attention_seconds(
        speed, part, num_tokens, context_tokens, model_bytes, is_prompt=is_prompt
    )
    return seconds + _state_seconds(speed, part, num_tokens, model_bytes, is_prompt=is_prompt)


def _product_seconds(
    speed: UnitSpeed, part: PartWork, num_tokens: int, model_bytes: float, *, is_prompt: bool
) -> float:
    """Return the time of the products of a part."""
    rate = speed.read_bytes_per_second(model_bytes)
    seconds = 0.0
    for product in part.products:
        share, per_expert = 1.0, float(num_tokens)
        if product.num_experts > 1:
            share = share_of_experts(product.num_chosen, product.num_experts, num_tokens)
            # Each active expert gets its part of the tokens.
            per_expert = num_tokens * product.num_chosen / (share * product.num_experts)
        arithmetic = speed.arithmetic_seconds(product.format, per_expert, is_prompt=is_prompt)
        seconds += share * (product.num_bytes / rate + product.num_weights * arithmetic)
    return seconds


def _attention_seconds(
    speed: UnitSpeed,
    part: PartWork,
    num_tokens: int,
    context_tokens: int,
    model_bytes: float,
    *,
    is_prompt: bool,
) -> float:
    """Return the time of attention; tokens of one prompt read its cache together."""
    if not part.attention_multiply_adds:
        return 0.0
    per_sequence = num_tokens if is_prompt else 1
    end = max(context_tokens, per_sequence)
    visible = num_visible(end - per_sequence, end, part.window) * (num_tokens // per_sequence)
    if is_prompt and num_tokens > 1:
        return visible * part.attention_multiply_adds / speed.prefill_attention.value
    reading = visible * part.cache_bytes / speed.read_bytes_per_second(model_bytes)
    return reading + visible * part.attention_multiply_adds / speed.attention.value


def _state_seconds(
    speed: UnitSpeed, part: PartWork, num_tokens: int, model_bytes: float, *, is_prompt: bool
) -> float:
    """Return the time of the states of a part, each read and written once per sequence.

    Writing adds no measurable time: 16 sequences of 2 MiB for each of 12 layers take as long as
    reading the states and computing with them.
    """
    if not part.state_bytes:
        return 0.0
    num_sequences = 1 if is_prompt else num_tokens
    reading = num_sequences * part.state_bytes / speed.read_bytes_per_second(model_bytes)
    return reading + num_tokens * part.state_multiply_adds / speed.states.value


def _correction(times: UnitTimes, measured: Sequence[StepTime]) -> Correction:
    """Return the ratios of measured to predicted times, by number of tokens."""
    by_tokens: dict[int, list[tuple[float, int]]] = {}
    for each in measured:
        nearest = _ratio(times.speed, each.seconds, _predicted(times, each))
        bounded = min(max(nearest, 1 / _MOST_RATIO), _MOST_RATIO)
        by_tokens.setdefault(each.num_tokens, []).append((bounded, each.num_samples))
    points = []
    for num_tokens, ratios in sorted(by_tokens.items()):
        count = sum(samples for _, samples in ratios)
        weight = count / (count + _SAMPLES_OF_PRIOR)
        points.append(CorrectionPoint(num_tokens, _weighted_median(ratios) ** weight, count))
    return Correction(points=tuple(points))


def _predicted(times: UnitTimes, step: StepTime) -> float:
    if step.num_tokens == step.num_sequences:
        parts = times.decode(step.num_sequences, step.context_tokens)
    else:
        parts = times.prefill(step.num_tokens, step.context_tokens)
    embedding, *layers, head = parts.item_seconds
    layer = statistics.fmean(layers) if layers else 0.0
    return (
        step.num_layers * layer
        + step.has_embedding * embedding
        + step.has_head * head
        + parts.stage_seconds
    )


def _ratio(speed: UnitSpeed, measured: float, predicted: float) -> float:
    """Return the ratio of the measured to the predicted time without the effect of a quota.

    A value between the time after a pause and the sustained time confirms the prediction.
    """
    if measured >= predicted:
        return measured / predicted
    short = _after_pause(predicted, speed.usable_share, speed.quota_period_seconds)
    return min(1.0, measured / short)


def _after_pause(seconds: float, usable_share: float, period_seconds: float) -> float:
    """Return the time after a pause of a step whose sustained time is ``seconds``.

    It runs at full speed until its part of a period is used up.
    """
    ahead = (1 - usable_share) * period_seconds
    return max(seconds * usable_share, seconds - ahead)


def _weighted_median(values: Sequence[tuple[float, int]]) -> float:
    ordered = sorted(values)
    half = sum(weight for _, weight in ordered) / 2
    seen = 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= half:
            return value
    return ordered[-1][0]


def _bounded(seconds: float) -> float:
    return min(max(seconds, LEAST_SECONDS), MOST_SECONDS)
