from __future__ import annotations

from pathlib import Path

import pytest

from potluck.placement.fleet.file import read_fleet
from potluck.placement.fleet.planning import fleet_links, node_id_of
from potluck.placement.links import LOOPBACK, NETWORK, Link, LinkTable
from potluck.types.placement import Basis

MACHINES = """
[[machines]]
name = "a"
memory = "8 GiB"
[[machines]]
name = "b"
count = 2
memory = "8 GiB"
"""


def links(tmp_path: Path, text: str) -> LinkTable:
    path = tmp_path / "fleet.toml"
    path.write_text(MACHINES + text)
    return fleet_links(read_fleet(path))


def between(table: LinkTable, source: str, target: str) -> Link:
    return table.link(node_id_of(source), node_id_of(target))


def test_what_is_not_said_is_assumed(tmp_path: Path) -> None:
    table = links(tmp_path, "")
    assert between(table, "a", "b-1") == NETWORK
    assert between(table, "a", "a") == LOOPBACK


def test_what_is_said_is_not_measured(tmp_path: Path) -> None:
    table = links(tmp_path, '[links]\nlatency = "2 ms"\nbandwidth = "8 Mbit/s"\n')
    expected = Link(latency_seconds=2e-3, bytes_per_second=1e6, basis=Basis.TABLE)
    assert between(table, "b-1", "b-2") == expected
    assert between(table, "a", "a") == LOOPBACK


def test_half_of_a_link_is_as_good_as_its_other_half(tmp_path: Path) -> None:
    table = links(tmp_path, '[links]\nlatency = "0 ms"\n')
    link = between(table, "a", "b-1")
    assert link.bytes_per_second == NETWORK.bytes_per_second
    assert link.basis is Basis.ASSUMED
    assert link.latency_seconds > 0


def test_a_pair_differs_in_what_it_says_both_ways(tmp_path: Path) -> None:
    table = links(
        tmp_path,
        '[links]\nlatency = "1 ms"\nbandwidth = "1 GB/s"\n'
        '[[links.pairs]]\nfrom = "a"\nto = "b"\nlatency = "9 ms"\n',
    )
    for pair in (("a", "b-1"), ("b-2", "a")):
        link = between(table, *pair)
        assert link.latency_seconds == pytest.approx(9e-3)
        assert link.bytes_per_second == pytest.approx(1e9)
        assert link.basis is Basis.TABLE
    assert between(table, "b-1", "b-2").latency_seconds == pytest.approx(1e-3)


def test_a_pair_may_be_one_way(tmp_path: Path) -> None:
    text = '[[links.pairs]]\nfrom = "a"\nto = "b"\nlatency = "9 ms"\none_way = true\n'
    table = links(tmp_path, text)
    assert between(table, "a", "b-1").latency_seconds == pytest.approx(9e-3)
    assert between(table, "b-1", "a") == NETWORK


def test_both_ways_may_be_said_apart(tmp_path: Path) -> None:
    one = '[[links.pairs]]\nfrom = "a"\nto = "b"\nlatency = "9 ms"\none_way = true\n'
    other = '[[links.pairs]]\nfrom = "b"\nto = "a"\nlatency = "5 ms"\none_way = true\n'
    for text in (one + other, other + one):
        table = links(tmp_path, text)
        assert between(table, "a", "b-1").latency_seconds == pytest.approx(9e-3)
        assert between(table, "b-1", "a").latency_seconds == pytest.approx(5e-3)


def test_machines_of_one_entry_may_be_a_pair(tmp_path: Path) -> None:
    table = links(tmp_path, '[[links.pairs]]\nfrom = "b"\nto = "b"\nlatency = "9 ms"\n')
    assert between(table, "b-1", "b-2").latency_seconds == pytest.approx(9e-3)
    assert between(table, "b-1", "b-1") == LOOPBACK
