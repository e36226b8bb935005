"""What is known of the way to one node: recent measurements, corrected by edges in use.

Pure: times are of the caller's clock.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from potluck.cluster.edges.path_figures import PathFigures
from potluck.cluster.links.exchange import Measured
from potluck.types.cluster import NodeId
from potluck.types.speed import LinkSpeed

NUM_KEPT = 5
"""Measurements whose median counts: one that met a busy machine does not."""

_CHANGE = 1.5
"""Two measurements in a row that both differ by this factor from what was known, in the same
direction, are a link that has changed: what came before is forgotten."""

_LEAST_CHANGE_SECONDS = 100e-6
"""Latencies closer than this are never a change: processors that wake up vary by as much."""

_LEAST_ROUND_TRIP_SECONDS = 100e-6
"""Below it, the other end is on the same machine: data is acknowledged by the very call that sends
it there, and what the kernel calls a delivery rate says nothing."""

_LATENCY_SHIFT = 0.2
"""An edge in use corrects the latency if it is off by this part at least, and by
``_LEAST_CHANGE_SECONDS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement, at ``at``. ``round_trip_seconds`` is the kernel's, of its connection."""

    at: float
    latency_seconds: float
    bytes_per_second: float
    round_trip_seconds: float | None = None

    @classmethod
    def of(cls, measured: Measured, path: PathFigures | None, at: float) -> Sample:
        """Return what ``measured`` and its connection say."""
        return cls(
            at=at,
            latency_seconds=measured.latency_seconds,
            bytes_per_second=measured.bytes_per_second,
            round_trip_seconds=None if path is None else path.round_trip_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """The way to one node. ``in_use`` is what an edge showed at ``in_use_at``, if one did."""

    samples: tuple[Sample, ...] = ()
    in_use: PathFigures | None = None
    in_use_at: float = 0.0

    @property
    def measured_at(self) -> float | None:
        """When the last measurement was; None if there was none."""
        return self.samples[-1].at if self.samples else None

    def measured(self, sample: Sample) -> LinkFigures:
        """Return the figures after another measurement."""
        samples = (*self.samples, sample)[-NUM_KEPT:]
        if _has_changed([each.latency_seconds for each in samples], _LEAST_CHANGE_SECONDS) or (
            _has_changed([each.bytes_per_second for each in samples], 0.0)
        ):
            samples = samples[-2:]
        return replace(self, samples=samples)

    def used(self, path: PathFigures, at: float) -> LinkFigures:
        """Return the figures after an edge to the node was looked at."""
        return replace(self, in_use=path, in_use_at=at)

    def speed(self, node_id: NodeId, now: float) -> LinkSpeed | None:
        """Return the link's speed as it is known now; None if it was never measured."""
        if not self.samples:
            return None
        latest = self.samples[-1]
        latency = statistics.median(each.latency_seconds for each in self.samples)
        rate = statistics.median(each.bytes_per_second for each in self.samples)
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


def _has_changed(values: list[float], least_change: float) -> bool:
    """Whether the last two values are both above all that came before, or both below."""
    *before, one, other = values if len(values) > 2 else [*values, 0.0, 0.0][:2]
    if not before:
        return False
    known = statistics.median(before)
    lower, upper = sorted((one, other))
    is_higher = lower > _CHANGE * known and lower - known > least_change
    is_lower = upper * _CHANGE < known and known - upper > least_change
    return is_higher or is_lower


def _corrected_latency(latency: float, latest: Sample, in_use: PathFigures) -> float:
    """Add what the network's round trip has grown by since it was measured, or take it off.

    The kernel's figure lacks what the processes add: the difference of two of them does not.
    """
    if in_use.round_trip_seconds is None or latest.round_trip_seconds is None:
        return latency
    shift = (in_use.round_trip_seconds - latest.round_trip_seconds) / 2
    if abs(shift) < max(_LATENCY_SHIFT * latency, _LEAST_CHANGE_SECONDS):
        return latency
    return max(latency + shift, in_use.round_trip_seconds / 2)


def _corrected_rate(rate: float, in_use: PathFigures) -> float:
    """Take what a large frame reached on an edge; less than that was possible at least."""
    round_trip = in_use.round_trip_seconds
    if round_trip is None or round_trip < _LEAST_ROUND_TRIP_SECONDS or not in_use.bytes_per_second:
        return rate
    if in_use.is_lower_bound:
        return max(rate, in_use.bytes_per_second)
    return in_use.bytes_per_second
