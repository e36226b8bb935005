"""Findings about ports, clocks and multicast, from what was found out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machines.doctor_cases import a_case, a_system, the_finding

from potluck.probe.doctor.case import Case, Cluster, LocalNetwork, Peer, Port, Severity
from potluck.probe.doctor.examine import examine

A, B, C = "a" * 16, "b" * 16, "c" * 16


def a_peer(node_id: str, *, skew: float = 0.0, problem: str = "", is_reached: bool = True) -> Peer:
    return Peer(
        node_id=node_id,
        skew_seconds=skew,
        uncertainty_seconds=0.01,
        port_problem=problem,
        is_reached=is_reached,
        is_heard=True,
    )


def with_peers(root: Path, *peers: Peer, files: dict[str, str] | None = None) -> Case:
    cluster = Cluster(node_id=A, address="10.77.0.1:7333", peers=peers)
    return a_case(a_system(root, files), network=None, cluster=cluster)


def test_nothing_is_found_in_a_sound_cluster(tmp_path: Path) -> None:
    on_loopback = Peer(node_id=C, skew_seconds=0.0, uncertainty_seconds=0.1)
    assert examine(with_peers(tmp_path, a_peer(B, skew=1.9), on_loopback)) == ()


def test_a_node_that_is_open_to_others_and_alone(tmp_path: Path) -> None:
    found = the_finding(with_peers(tmp_path))
    assert found.severity is Severity.NOTE
    assert found.message == "this node, at 10.77.0.1:7333, has found no other node"
    assert found.command == "potluck up --join HOST"
    assert "7333/tcp" in found.details
    assert "UDP port 7446 on the interface that has 10.77.0.1" in found.details
    inside = Cluster(node_id=A, address="127.0.0.1:40001", peers=())
    assert examine(a_case(a_system(tmp_path), network=None, cluster=inside)) == ()


def test_a_node_whose_address_is_gone(tmp_path: Path) -> None:
    cluster = Cluster(node_id=A, address="10.77.0.1:7333", peers=(), is_address_gone=True)
    found = the_finding(a_case(a_system(tmp_path), network=None, cluster=cluster))
    assert found.severity is Severity.PREVENTS
    assert "no longer has the address of its node, 10.77.0.1" in found.message


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    port = Port(
        number=7333,
        purpose="other nodes (--lan)",
        option="--lan --listen 10.0.0.5:7335",
        problem="in use by another program",
    )
    network = LocalNetwork(address="10.0.0.5", ports=(port,), multicast_problem="")
    found = the_finding(a_case(a_system(tmp_path), network=network))
    assert found.severity is Severity.NOTE
    assert found.message == "TCP port 7333 for other nodes (--lan): in use by another program"
    assert found.command == "potluck up --lan --listen 10.0.0.5:7335"
    assert found.details == "ss -ltnp 'sport = :7333' shows the program that listens there"


def test_an_interface_without_multicast(tmp_path: Path) -> None:
    network = LocalNetwork(address="10.0.0.5", ports=(), multicast_problem="no such device")
    found = the_finding(a_case(a_system(tmp_path), network=network))
    assert found.severity is Severity.NOTE
    assert found.message == (
        "multicast does not work at 10.0.0.5 (no such device): nodes cannot discover each other"
    )
    assert found.command == "potluck up --join HOST:PORT"


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({}, "sudo iptables -I INPUT -p tcp --dport 7333 -j ACCEPT"),
        ({"etc/ufw/ufw.conf": "ENABLED=yes\n"}, "sudo ufw allow 7333/tcp"),
        (
            {"run/firewalld/x": "", "etc/ufw/ufw.conf": "ENABLED=no\n"},
            "sudo firewall-cmd --permanent --add-port=7333/tcp && sudo firewall-cmd --reload",
        ),
    ],
)
def test_blocked_ports(tmp_path: Path, files: dict[str, str], command: str) -> None:
    peers = (
        a_peer(B, problem="nobody answers", is_reached=False),
        a_peer(C, problem="no route to host"),
    )
    first, second = examine(with_peers(tmp_path, *peers, files=files))
    assert first.severity is Severity.PREVENTS
    assert first.message == (
        f"node {B} and this node cannot communicate: neither can connect to the other; "
        "this node's address is 10.77.0.1:7333 (nobody answers)"
    )
    assert second.severity is Severity.NOTE
    assert second.message == (
        f"node {C} cannot connect to this node's address 10.77.0.1:7333 (no route to host): "
        "all connections between them are opened from here"
    )
    assert first.command == second.command == command


def test_pairs_of_other_nodes_that_cannot_talk(tmp_path: Path) -> None:
    cluster = Cluster(
        node_id=A,
        address="10.77.0.1:7333",
        peers=(a_peer(B), a_peer(C)),
        silent_pairs=((A, B), (B, C)),
    )
    found = the_finding(a_case(a_system(tmp_path, None), network=None, cluster=cluster))
    assert found.severity is Severity.SLOWS
    assert f"{B} and {C}." in found.message
    assert A not in found.message


def test_a_clock_that_differs(tmp_path: Path) -> None:
    found = the_finding(with_peers(tmp_path, a_peer(B, skew=-3.5), a_peer(C, skew=0.1)))
    assert found.severity is Severity.NOTE
    assert found.message == (
        f"the clock of node {B} is 3.50 s (±0.01 s) behind this node's: logs cannot be compared, "
        f"and downloads may be rejected"
    )
    assert found.command == "sudo timedatectl set-ntp true"
    assert found.details == "on the node whose clock is wrong"


def test_the_error_of_a_slow_link_is_no_skew(tmp_path: Path) -> None:
    peer = Peer(node_id=B, skew_seconds=4.0, uncertainty_seconds=3.0)
    assert examine(with_peers(tmp_path, peer)) == ()


def test_a_clock_that_differs_from_all_others_is_this_nodes(tmp_path: Path) -> None:
    found = the_finding(with_peers(tmp_path, a_peer(B, skew=86400), a_peer(C, skew=86400.5)))
    assert found.message == (
        "this node's clock is 86,400 s behind those of all 2 others: logs cannot be compared, "
        "and downloads may be rejected"
    )
    two = examine(with_peers(tmp_path, a_peer(B, skew=-100), a_peer(C, skew=100)))
    assert [found.message.split(":")[0] for found in two] == [
        f"the clock of node {B} is 100 s (±0.01 s) behind this node's",
        f"the clock of node {C} is 100 s (±0.01 s) ahead of this node's",
    ]


def test_a_node_that_does_not_answer(tmp_path: Path) -> None:
    peer = Peer(node_id=B, problem="node b did not answer 'node.clock' within 5 s")
    found = the_finding(with_peers(tmp_path, peer))
    assert found.severity is Severity.PREVENTS
    assert found.message == (
        f"node {B} does not respond: node b did not answer 'node.clock' within 5 s"
    )
    assert found.command == "potluck down; potluck up"


def test_multicast_that_does_not_arrive(tmp_path: Path) -> None:
    deaf = [
        Peer(node_id=node, skew_seconds=0.0, uncertainty_seconds=0.0, is_heard=False)
        for node in (B, C)
    ]
    found = the_finding(with_peers(tmp_path, *deaf))
    assert found.severity is Severity.NOTE
    assert found.message == (
        f"multicast of nodes {B}, {C} does not arrive here: new nodes may not discover the cluster"
    )
    assert found.command == "potluck up --join 10.77.0.1:7333"
    assert found.details == "on a new node"
