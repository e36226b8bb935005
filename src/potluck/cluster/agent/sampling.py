"""The activity of a deployment between two readings of its totals. Pure: callers have the clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potluck.types.gateway import ModelMetrics, StageMetrics
from potluck.types.samples import ModelSample

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
        return ModelSample(
            tokens_per_second=(generated.num_tokens - was.num_tokens) / seconds,
            first_token_seconds=_share(
                generated.first_token_seconds - was.first_token_seconds,
                generated.num_first_tokens - was.num_first_tokens,
            ),
            num_running=gauges.num_running,
            num_waiting=gauges.num_waiting,
            cache_hit_share=_share(
                metrics.prefix.num_hits - old.prefix.num_hits,
                metrics.prefix.num_admissions - old.prefix.num_admissions,
            ),
            cache_used_share=gauges.cache_used_share,
            draft_acceptance=_share(
                metrics.drafts.num_accepted - old.drafts.num_accepted,
                metrics.drafts.num_drafted - old.drafts.num_drafted,
            ),
            stage_seconds=gauges.stage_seconds,
            stage_busy=gauges.stage_busy,
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
