from __future__ import annotations

from dataclasses import replace

import pytest

from potluck.cluster.network.edges.path_figures import PathFigures
from potluck.cluster.network.links.exchange import Measured
from potluck.cluster.network.links.figures import NUM_KEPT, LinkFigures, Sample
from potluck.types.cluster import NodeId
from potluck.types.speed import LinkSpeed

PEER = NodeId("b" * 16)


def a_sample(
    at: float = 0.0, *, latency: float = 0.005, rate: float = 10e6, round_trip: float | None = 0.01
) -> Sample:
    return Sample(
        at=at, latency_seconds=latency, bytes_per_second=rate, round_trip_seconds=round_trip
    )


def a_path(
    round_trip: float | None,
    rate: float = 0.0,
    *,
    is_lower_bound: bool = False,
    recent: float | None = None,
) -> PathFigures:
    return PathFigures(
        round_trip_seconds=round_trip,
        recent_round_trip_seconds=round_trip if recent is None else recent,
        bytes_per_second=rate,
        is_lower_bound=is_lower_bound,
        sent_bytes=1,
        received_bytes=1,
    )


def figures(*samples: Sample) -> LinkFigures:
    found = LinkFigures()
    for sample in samples:
        found = found.measured(sample)
    return found


def speed(figures: LinkFigures, now: float = 100.0) -> LinkSpeed:
    found = figures.speed(PEER, now)
    assert found is not None
    return found


def test_nothing_is_known_of_a_link_that_was_not_measured() -> None:
    assert LinkFigures().speed(PEER, 0.0) is None
    assert LinkFigures().used(a_path(0.01), 1.0).speed(PEER, 2.0) is None
    assert LinkFigures().measured_at is None


def test_the_medians_of_the_last_measurements_count() -> None:
    latencies = (0.005, 0.0051, 0.05, 0.0049, 0.0052)
    found = figures(*(a_sample(at, latency=each) for at, each in enumerate(latencies)))
    assert speed(found) == LinkSpeed(
        node_id=PEER,
        latency_seconds=0.0051,
        bytes_per_second=10e6,
        num_samples=5,
        age_seconds=96.0,
    )
    assert len(found.measured(a_sample(5)).samples) == NUM_KEPT


@pytest.mark.parametrize("factor", [0.25, 4])
def test_two_measurements_in_a_row_tell_a_change(factor: float) -> None:
    before = [a_sample(at) for at in range(3)]
    once = figures(*before, a_sample(4, latency=0.005 * factor))
    assert speed(once).latency_seconds == 0.005
    twice = once.measured(a_sample(5, latency=0.005 * factor))
    assert speed(twice).latency_seconds == 0.005 * factor
    assert speed(twice).num_samples == 2
    rates = figures(*before, a_sample(4, rate=10e6 * factor), a_sample(5, rate=10e6 * factor))
    assert speed(rates).bytes_per_second == 10e6 * factor


def test_the_noise_of_very_short_latencies_is_no_change() -> None:
    found = figures(*(a_sample(latency=20e-6) for _ in range(3)), *[a_sample(latency=90e-6)] * 2)
    assert len(found.samples) == 5
    assert speed(found).latency_seconds == 20e-6


def test_an_edge_in_use_shifts_the_latency() -> None:
    measured = figures(a_sample(10, latency=0.0055, round_trip=0.01))
    used = measured.used(a_path(0.04), 50.0)
    assert speed(used).latency_seconds == pytest.approx(0.0205)
    assert speed(used).age_seconds == 50.0
    back = measured.used(a_path(0.001), 50.0)
    assert speed(back).latency_seconds == pytest.approx(0.001)
    close = measured.used(a_path(0.011), 50.0)
    assert speed(close).latency_seconds == 0.0055
    assert speed(measured.used(a_path(None), 50.0)).latency_seconds == 0.0055


def test_a_measurement_after_it_counts_more_than_an_edge() -> None:
    used = figures(a_sample(10)).used(a_path(0.04, 1e6), 50.0)
    assert speed(used.measured(a_sample(60))).latency_seconds == 0.005
    assert speed(used.measured(a_sample(60))).bytes_per_second == 10e6


@pytest.mark.parametrize("is_lower_bound", [False, True])
def test_an_edge_in_use_says_what_is_possible_at_least(is_lower_bound: bool) -> None:
    measured = figures(a_sample(10))
    for rate, expected in ((4e6, 10e6), (40e6, 40e6), (0.0, 10e6)):
        used = measured.used(a_path(0.01, rate, is_lower_bound=is_lower_bound), 20)
        assert speed(used).bytes_per_second == expected
        assert used.is_doubtful == (rate == 4e6 and not is_lower_bound)


def test_a_doubt_and_one_measurement_tell_a_change() -> None:
    before = figures(*(a_sample(at) for at in range(4)))
    slower = a_sample(50, latency=0.02, round_trip=0.04)
    assert not before.is_doubtful
    assert speed(before.measured(slower)).latency_seconds == 0.005
    doubted = before.used(a_path(0.01, recent=0.04, is_lower_bound=True), 40)
    assert doubted.is_doubtful
    assert speed(doubted).latency_seconds == 0.005
    assert speed(doubted.measured(slower)).latency_seconds == 0.02
    assert not doubted.measured(slower).is_doubtful
    # It was the edge.
    assert speed(doubted.measured(a_sample(50))).num_samples == 5


def test_within_one_machine_the_kernels_rate_says_nothing() -> None:
    measured = figures(a_sample(10, latency=20e-6, rate=1e9, round_trip=5e-6))
    used = measured.used(a_path(5e-6, 65e9), 20)
    assert speed(used).bytes_per_second == 1e9


def test_a_sample_takes_the_round_trip_of_its_own_connection() -> None:
    measured = Measured(latency_seconds=0.002, bytes_per_second=1e6)
    assert Sample.of(measured, None, 3.0) == a_sample(3.0, latency=0.002, rate=1e6, round_trip=None)
    assert Sample.of(measured, a_path(0.003), 3.0).round_trip_seconds == 0.003


def a_bound(at: float, rate: float) -> Sample:
    return replace(a_sample(at, rate=rate), is_lower_bound=True)


def test_what_was_only_reached_raises_the_rate_and_never_lowers_it() -> None:
    known = figures(*(a_sample(at) for at in range(3)))
    low = known.measured(a_bound(5, 1e6)).measured(a_bound(6, 1e6))
    assert speed(low).bytes_per_second == 10e6
    assert speed(low).num_samples == 5
    high = known.measured(a_bound(5, 90e6)).measured(a_bound(6, 80e6))
    assert speed(high).bytes_per_second == 90e6
    assert speed(high).num_samples == 2
    doubted = known.used(a_path(0.01, recent=0.1), 3)
    assert speed(doubted.measured(a_bound(5, 1e6))).bytes_per_second == 10e6
    assert speed(figures(a_bound(1, 2e6), a_bound(2, 3e6))).bytes_per_second == 3e6
