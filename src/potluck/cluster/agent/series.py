"""The activity of deployed models in the last hour, by second. Bounded; callers have the clock."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from potluck.types.cluster_events import ModelSample
from potluck.types.gateway import ModelMetrics, StageMetrics

KEPT_SECONDS = 3600
MAX_MODELS = 8
"""The most models kept. If each has ``MAX_STAGES`` stages, the series takes 16 MB; with one model
of three stages it takes 0.4 MB."""

_FIELDS = (
    "tokens_per_second",
    "first_token_seconds",
    "num_running",
    "num_waiting",
    "cache_hit_share",
    "cache_used_share",
    "draft_acceptance",
)
_STAGE_FIELDS = ("stage_seconds", "stage_busy")

Column: TypeAlias = "array[float]"
_NOTHING = array("d", [math.nan])


MAX_STAGES = 32
"""The most stages of a deployment that are sampled."""


class Sampler:
    """Compares the totals of one deployment with the previous ones.

    A reading without stages, as its coordinator has it at any time, says nothing about them; stages
    are compared with the last reading that had them.
    """

    def __init__(self) -> None:
        self._latest: tuple[ModelMetrics, float] | None = None
        self._latest_stages: tuple[ModelMetrics, float] | None = None

    @property
    def latest_at(self) -> float | None:
        """Return the time of the last reading; None before the first."""
        return None if self._latest is None else self._latest[1]

    def take(self, metrics: ModelMetrics, at: float) -> ModelSample:
        """Return the activity since the last reading. ``at`` is in seconds of a monotonic clock.

        Only gauges are known at the first reading, and when the totals restart at 0 because another
        node coordinates the deployment.
        """
        before, self._latest = self._latest, (metrics, at)
        stages = self._stages(metrics, at)
        gauges = ModelSample(
            num_running=metrics.num_running,
            num_waiting=metrics.num_waiting,
            cache_used_share=_share(
                metrics.num_blocks - metrics.num_free_blocks, metrics.num_blocks
            ),
            stage_seconds=tuple(each[0] for each in stages),
            stage_busy=tuple(each[1] for each in stages),
        )
        if before is None or at <= before[1] or _began_again(before[0], metrics):
            return gauges
        old, seconds = before[0], at - before[1]
        generated, was = metrics.generated, old.generated
        return replace(
            gauges,
            tokens_per_second=(generated.num_tokens - was.num_tokens) / seconds,
            first_token_seconds=_share(
                generated.first_token_seconds - was.first_token_seconds,
                generated.num_first_tokens - was.num_first_tokens,
            ),
            cache_hit_share=_share(
                metrics.prefix.num_hits - old.prefix.num_hits,
                metrics.prefix.num_admissions - old.prefix.num_admissions,
            ),
            draft_acceptance=_share(
                metrics.drafts.num_accepted - old.drafts.num_accepted,
                metrics.drafts.num_drafted - old.drafts.num_drafted,
            ),
        )

    def _stages(
        self, metrics: ModelMetrics, at: float
    ) -> Sequence[tuple[float | None, float | None]]:
        """Return for each stage the mean time of a step, and the share of time that it computed."""
        if not metrics.stages:
            return ()
        before, self._latest_stages = self._latest_stages, (metrics, at)
        old: Mapping[int, StageMetrics] = {}
        seconds = 0.0
        if before is not None and before[0].epoch == metrics.epoch:
            old = {each.stage: each for each in before[0].stages}
            seconds = at - before[1]
        new = {each.stage: each for each in metrics.stages}
        num_stages = min(max(new) + 1, MAX_STAGES)
        return [_stage(old.get(index), new.get(index), seconds) for index in range(num_stages)]


def _stage(
    old: StageMetrics | None, new: StageMetrics | None, seconds: float
) -> tuple[float | None, float | None]:
    if old is None or new is None or seconds <= 0:
        return None, None
    computing = new.compute_seconds - old.compute_seconds
    num_steps = new.num_steps - old.num_steps
    if computing < 0 or num_steps < 0:
        return None, None
    # Totals arrive irregularly, so an interval may contain more busy time than its length.
    return _share(computing, num_steps), min(1.0, computing / seconds)


def _began_again(old: ModelMetrics, new: ModelMetrics) -> bool:
    return (
        new.generated.num_tokens < old.generated.num_tokens
        or new.prefix.num_admissions < old.prefix.num_admissions
        or new.drafts.num_drafted < old.drafts.num_drafted
    )


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


class Series:
    """Samples by second and model, for the last ``num_seconds``."""

    def __init__(self, num_seconds: int = KEPT_SECONDS) -> None:
        self._num_seconds = num_seconds
        self._models: dict[str, _Columns] = {}

    def put(
        self, model_id: str, sample: ModelSample, second: int, *, after: int | None = None
    ) -> None:
        """Record the activity of a model in the seconds after ``after``, up to ``second``.

        Without ``after`` that is one second. Seconds count from any origin; none earlier than the
        last is accepted. If there are too many models, the one with the oldest data is dropped.
        """
        columns = self._models.pop(model_id, None)
        if columns is None:
            columns = _Columns(self._num_seconds, second - 1)
            while len(self._models) >= MAX_MODELS:
                del self._models[min(self._models, key=lambda each: self._models[each].latest)]
        self._models[model_id] = columns
        columns.put(sample, second, after)

    def window(self, second: int, seconds: int, now: float) -> SeriesWindow:
        """Return a copy of the ``seconds`` up to ``second``, which any thread can use.

        ``now`` is the time of ``second`` in seconds since 1970.
        """
        seconds = min(seconds, self._num_seconds)
        first = second - seconds + 1
        self._forget(second)
        return SeriesWindow(
            end=round(now),
            num_seconds=seconds,
            models={
                model_id: dict(columns.view(first, second))
                for model_id, columns in self._models.items()
            },
        )

    def _forget(self, second: int) -> None:
        """Drop models without data."""
        oldest = second - self._num_seconds
        self._models = {
            model_id: each for model_id, each in self._models.items() if each.latest > oldest
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesWindow:
    """The activity of models in the ``num_seconds`` up to ``end``, in seconds since 1970.

    Each field has one value per second, and fields of stages one such column per stage. Seconds
    without a value are NaN, which JSON writes as null.
    """

    end: int
    num_seconds: int
    models: Mapping[str, Mapping[str, Column | Sequence[Column]]]

    def document(self, step_seconds: int = 1) -> dict[str, object]:
        """Return the document of schema ``potluck.series/1``.

        Its values are means over ``step_seconds``; each time is the last second of its step, and
        the first step may be shorter. This takes some 30 ms for a model of 14 stages.
        """
        first = self.end - self.num_seconds + 1
        times = range(self.end, first - 1, -step_seconds)[::-1]
        return {
            "schema": "potluck.series/1",
            "step_seconds": step_seconds,
            "times": list(times),
            "models": {
                model_id: {
                    name: _means(value, step_seconds)
                    if isinstance(value, array)
                    else [_means(column, step_seconds) for column in value]
                    for name, value in fields.items()
                }
                for model_id, fields in self.models.items()
            },
        }


class _Columns:
    """The columns of one model: a ring buffer per field. ``latest`` is the last second recorded."""

    def __init__(self, num_seconds: int, latest: int) -> None:
        self.latest = latest
        self._num_seconds = num_seconds
        self._fields = {name: self._empty() for name in _FIELDS}
        self._stages: dict[str, list[Column]] = {name: [] for name in _STAGE_FIELDS}

    def put(self, sample: ModelSample, second: int, after: int | None) -> None:
        if second <= self.latest:
            return
        first = second if after is None else min(second, after + 1)
        first = max(first, self.latest + 1, second - self._num_seconds + 1)
        for missed in range(max(self.latest + 1, second - self._num_seconds + 1), first):
            self._set_all(missed, None)
        for noted in range(first, second + 1):
            self._set_all(noted, sample)
        self.latest = second

    def view(self, first: int, last: int) -> Iterator[tuple[str, Column | Sequence[Column]]]:
        for name, column in self._fields.items():
            yield name, self._read(column, first, last)
        for name, columns in self._stages.items():
            yield name, [self._read(column, first, last) for column in columns]

    def _set_all(self, second: int, sample: ModelSample | None) -> None:
        slot = second % self._num_seconds
        for name, column in self._fields.items():
            column[slot] = _number(None if sample is None else getattr(sample, name))
        for name, columns in self._stages.items():
            values = () if sample is None else getattr(sample, name)[:MAX_STAGES]
            columns += [self._empty() for _ in range(len(values) - len(columns))]
            for index, column in enumerate(columns):
                column[slot] = _number(values[index] if index < len(values) else None)

    def _read(self, column: Column, first: int, last: int) -> Column:
        """Return the values of the seconds from ``first`` to ``last``."""
        known_first = max(first, self.latest - self._num_seconds + 1)
        known_last = min(last, self.latest)
        if known_first > known_last:
            return _NOTHING * (last - first + 1)
        start, end = known_first % self._num_seconds, known_last % self._num_seconds
        known = column[start : end + 1] if start <= end else column[start:] + column[: end + 1]
        return _NOTHING * (known_first - first) + known + _NOTHING * (last - known_last)

    def _empty(self) -> Column:
        return _NOTHING * self._num_seconds


def _means(column: Column, step: int) -> list[float]:
    """Return the means of the known values of each ``step``; the last step ends the column."""
    if step == 1:
        return column.tolist()
    means = []
    for end in range((len(column) - 1) % step + 1, len(column) + 1, step):
        known = [each for each in column[max(0, end - step) : end] if not math.isnan(each)]
        means.append(_number(sum(known) / len(known) if known else None))
    return means


def _number(value: float | None) -> float:
    """Return ``value`` rounded to the digits worth sending; NaN for None."""
    return math.nan if value is None else float(f"{value:.4g}")
