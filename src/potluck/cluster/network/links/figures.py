"""The known speed of the link to one node: recent measurements, corrected by edges in use.

An edge in use shows at once that its link is faster than measured. A lower speed is only a reason
to measure again: the kernel reports the minimum round trip of five minutes, and the rate achieved
depends on what was sent.

Pure: times are of the caller's clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from potluck.cluster.network.edges.path_figures import PathFigures
from potluck.cluster.network.links.exchange import Measured
from potluck.types.cluster import NodeId
from potluck.types.speed import LinkSpeed

NUM_KEPT = 5
"""The number of measurements kept; their median discards one that met a busy machine."""

_CHANGE = 1.5
"""If two consecutive measurements both differ from the known value by this factor, in the same
direction, the link has changed, and earlier measurements are discarded. One is enough if an edge in
use has raised a doubt."""

_LEAST_CHANGE_SECONDS = 100e-6
"""A smaller difference of latencies is never a change: waking a CPU varies by as much."""

_LEAST_ROUND_TRIP_SECONDS = 100e-6
"""Below this the other end is on the same machine: data is acknowledged within the call that sends
it, and the kernel's delivery rate is meaningless."""

_LATENCY_SHIFT = 0.2
"""An edge in use corrects the latency if it is off by at least this fraction and by
``_LEAST_CHANGE_SECONDS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement, at ``at``.

    ``is_lower_bound``: see ``Measured``. ``round_trip_seconds`` is what the kernel reports for its
    connection.
    """

    at: float
    latency_seconds: float
    bytes_per_second: float
    is_lower_bound: bool = False
    round_trip_seconds: float | None = None

    @classmethod
    def of(cls, measured: Measured, path: PathFigures | None, at: float) -> Sample:
        """Return the sample of a measurement and of its connection."""
        return cls(
            at=at,
            latency_seconds=measured.latency_seconds,
            bytes_per_second=measured.bytes_per_second,
            is_lower_bound=measured.is_lower_bound,
            round_trip_seconds=None if path is None else path.round_trip_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """Figures of the link to one node. ``in_use`` is what an edge showed at ``in_use_at``."""

    samples: tuple[Sample, ...] = ()
    in_use: PathFigures | None = None
    in_use_at: float = 0.0

    @property
    def measured_at(self) -> float | None:
        """The time of the last measurement; None if there was none."""
        return self.samples[-1].at if self.samples else None

    @property
    def is_doubtful(self) -> bool:
        """Whether an edge in use suggests that the link is now slower than measured.

        The cause may be the edge: a receiver that computes acknowledges late, and frames in
        sequence seldom reach a high rate. Another measurement decides.
        """
        in_use = self.in_use
        if in_use is None or not self.samples or self.in_use_at <= self.samples[-1].at:
            return False
        recent = in_use.recent_round_trip_seconds
        latency = _latency(self.samples)
        if recent is not None and recent / 2 > _CHANGE * latency + _LEAST_CHANGE_SECONDS:
            return True
        rate = _rate(self.samples)
        is_reached = _has_rate(in_use) and not in_use.is_lower_bound
        return is_reached and 0 < in_use.bytes_per_second * _CHANGE < rate

    def measured(self, sample: Sample) -> LinkFigures:
        """Return the figures after another measurement."""
        samples = (*self.samples, sample)[-NUM_KEPT:]
        if self.is_doubtful and _has_changed((*samples, sample)):
            samples = (sample,)
        elif len(samples) > 2 and _has_changed(samples):
            samples = samples[-2:]
        return replace(self, samples=samples)

    def used(self, path: PathFigures, at: float) -> LinkFigures:
        """Return the figures after reading those of an edge to the node."""
        return replace(self, in_use=path, in_use_at=at)

    def speed(self, node_id: NodeId, now: float) -> LinkSpeed | None:
        """Return the best current estimate of the link's speed; None if it was never measured."""
        if not self.samples:
            return None
        latest = self.samples[-1]
        latency, rate = _latency(self.samples), _rate(self.samples)
        last_at = latest.at
        if self.in_use is not None and self.in_use_at > latest.at:
            latency = _corrected_latency(latency, latest, self.in_use)
            rate = _corrected_rate(rate, self.in_use)
            last_at = self.in_use_at
        return LinkSpeed(
            node_id=node_id,
            latency_seconds=latency,
            bytes_per_second=rate,
            num_samples=len(self.samples),
            age_seconds=max(0.0, now - last_at),
        )


def _has_changed(samples: Sequence[Sample]) -> bool:
    """Return whether the last two samples show that the link has changed."""
    *before, one, other = samples
    if not before:
        return False
    latencies = (one.latency_seconds, other.latency_seconds)
    if _differ(_latency(before), latencies, _LEAST_CHANGE_SECONDS):
        return True
    rates = (one.bytes_per_second, other.bytes_per_second)
    is_bound = one.is_lower_bound or other.is_lower_bound
    known = _rate(before)
    return _differ(known, rates, 0.0) and not (is_bound and min(rates) < known)


def _latency(samples: Sequence[Sample]) -> float:
    return statistics.median(each.latency_seconds for each in samples)


def _rate(samples: Sequence[Sample]) -> float:
    """Return the median of the known rates, or the highest lower bound if that is higher."""
    known = [each.bytes_per_second for each in samples if not each.is_lower_bound]
    reached = [each.bytes_per_second for each in samples if each.is_lower_bound]
    return max([*reached, *([statistics.median(known)] if known else [])])


def _differ(known: float, values: tuple[float, float], least_change: float) -> bool:
    """Return whether both values are well above the known one, or both well below."""
    lower, upper = sorted(values)
    is_higher = lower > _CHANGE * known and lower - known > least_change
    is_lower = upper * _CHANGE < known and known - upper > least_change
    return is_higher or is_lower


def _corrected_latency(latency: float, latest: Sample, in_use: PathFigures) -> float:
    """Correct the latency by the change of the network's round trip since it was measured.

    The kernel's figure excludes the time that the processes add; the difference of two figures does
    not depend on it.
    """
    if in_use.round_trip_seconds is None or latest.round_trip_seconds is None:
        return latency
    shift = (in_use.round_trip_seconds - latest.round_trip_seconds) / 2
    if abs(shift) < max(_LATENCY_SHIFT * latency, _LEAST_CHANGE_SECONDS):
        return latency
    return max(latency + shift, in_use.round_trip_seconds / 2)


def _corrected_rate(rate: float, in_use: PathFigures) -> float:
    """Return the rate, or that of an edge in use if that is higher."""
    return max(rate, in_use.bytes_per_second) if _has_rate(in_use) else rate


def _has_rate(in_use: PathFigures) -> bool:
    round_trip = in_use.round_trip_seconds
    return round_trip is not None and round_trip >= _LEAST_ROUND_TRIP_SECONDS
