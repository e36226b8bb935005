"""Links between nodes: measured, assumed, and such as cannot be true."""

from __future__ import annotations

import math

import pytest

from potluck.placement.links import LOOPBACK, NETWORK, link_table
from potluck.types.cluster import NodeId
from potluck.types.placement import Basis
from potluck.types.speed import LinkSpeed, NodeSpeeds

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
HOSTS = {A: "one", B: "two", C: "one"}


def speeds(latency: float, bytes_per_second: float, num_samples: int = 3) -> list[NodeSpeeds]:
    link = LinkSpeed(
        node_id=B,
        latency_seconds=latency,
        bytes_per_second=bytes_per_second,
        num_samples=num_samples,
        age_seconds=1.0,
    )
    return [NodeSpeeds(node_id=A, links=(link,))]


def test_a_measured_link() -> None:
    link = link_table(speeds(2e-3, 5e6), HOSTS).link(A, B)
    assert (link.latency_seconds, link.bytes_per_second) == (2e-3, 5e6)
    assert link.basis is Basis.MEASURED
    assert link.hop_seconds(5e5) > 0.1 + 2e-3


def test_without_the_other_direction_both_are_alike() -> None:
    table = link_table(speeds(2e-3, 5e6), HOSTS)
    assert table.link(B, A) == table.link(A, B)


def test_unknown_links_are_assumed_by_machine() -> None:
    table = link_table([], HOSTS)
    assert table.link(A, B) == NETWORK
    assert table.link(A, C) == LOOPBACK
    assert table.link(A, A) == LOOPBACK
    assert table.link(NodeId("x"), NodeId("y")) == NETWORK


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 1e300])
def test_what_cannot_be_true_is_assumed(bad: float) -> None:
    assert link_table(speeds(bad, bad), HOSTS).link(A, B) == NETWORK
    half = link_table(speeds(bad, 5e6), HOSTS).link(A, B)
    assert half.latency_seconds == NETWORK.latency_seconds
    assert half.bytes_per_second == 5e6
    assert half.basis is Basis.ASSUMED


def test_a_latency_of_nothing_is_not_nothing() -> None:
    link = link_table(speeds(0.0, 5e6), HOSTS).link(A, B)
    assert link.hop_seconds(0) > 0


def test_no_samples_is_no_measurement() -> None:
    assert link_table(speeds(2e-3, 5e6, num_samples=0), HOSTS).link(A, B) == NETWORK
