"""Ports, clocks and multicast: alone, and with the other nodes of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.probe.doctor.case import Case, Cluster, Peer
from potluck.probe.doctor.finding import Finding, Severity

_MOST_SKEW_SECONDS = 2.0
"""Clocks that are set over the network stay within a few hundredths."""

_EDGE_PORTS = (32768, 60999)
"""Linux's own choice of ephemeral ports, where ``ip_local_port_range`` cannot be read."""


def taken_ports(case: Case) -> Iterator[Finding]:
    """Ports that an agent would listen on and cannot."""
    for port in case.network.ports if case.network else ():
        if port.problem:
            yield Finding(
                check="port",
                severity=Severity.NOTE,
                message=f"TCP port {port.number} for {port.purpose}: {port.problem}",
                command=f"potluck up {port.option}",
                details=f"ss -ltnp 'sport = :{port.number}' shows who listens there",
            )


def local_multicast(case: Case) -> Iterator[Finding]:
    """An interface that takes no part in multicast."""
    network = case.network
    if network is None or not network.address or not network.multicast_problem:
        return
    yield Finding(
        check="multicast",
        severity=Severity.NOTE,
        message=(
            f"multicast does not work at {network.address} ({network.multicast_problem}): nodes "
            "do not find each other by themselves"
        ),
        command="potluck up --join HOST:PORT",
        details="name a node that is up already",
    )


def silent_nodes(case: Case) -> Iterator[Finding]:
    """Members that do not answer."""
    for peer in _peers(case):
        if peer.problem:
            yield Finding(
                check="node",
                severity=Severity.PREVENTS,
                message=f"node {peer.node_id} does not answer: {peer.problem}",
                command="potluck down; potluck up",
                details="on that node, with the options it was started with",
            )


def clocks(case: Case) -> Iterator[Finding]:
    """Clocks that differ. Potluck's certificates are valid from 1970 on and do not mind."""
    peers = [(peer, peer.skew_seconds) for peer in _peers(case) if peer.skew_seconds is not None]
    wrong = [(peer, skew) for peer, skew in peers if abs(skew) > _tolerance(peer)]
    skews = [skew for _, skew in wrong]
    if len(wrong) > 1 and len(wrong) == len(peers) and max(skews) - min(skews) < _MOST_SKEW_SECONDS:
        ahead = "behind" if skews[0] > 0 else "ahead of"
        yield _clock(
            f"this node's clock is {_seconds(skews[0])} {ahead} those of all {len(wrong)} others",
            "",
        )
        return
    for peer, skew in wrong:
        ahead = "ahead of" if skew > 0 else "behind"
        error = f"±{_seconds(peer.uncertainty_seconds or 0.0)}"
        yield _clock(
            f"the clock of node {peer.node_id} is {_seconds(skew)} ({error}) {ahead} this node's",
            "on whichever node is wrong",
        )


def _tolerance(peer: Peer) -> float:
    return _MOST_SKEW_SECONDS + (peer.uncertainty_seconds or 0.0)


def _seconds(seconds: float) -> str:
    return f"{abs(seconds):,.2f} s" if abs(seconds) < 100 else f"{abs(seconds):,.0f} s"


def _clock(message: str, details: str) -> Finding:
    return Finding(
        check="clock",
        severity=Severity.NOTE,
        message=f"{message}: logs cannot be compared, and downloads may be refused",
        command="sudo timedatectl set-ntp true",
        details=details,
    )


def blocked_ports(case: Case) -> Iterator[Finding]:
    """Other nodes that cannot connect to this one: its stages would have no edges."""
    cluster = case.cluster
    if cluster is None:
        return
    control = [peer for peer in cluster.peers if peer.control_problem]
    edges = [peer for peer in cluster.peers if peer.edge_problem and not peer.control_problem]
    if control:
        port = cluster.address.rpartition(":")[2]
        yield _blocked(case, control, f"this node's control address {cluster.address}", port)
    if edges:
        low, high = _ephemeral_ports(case)
        yield _blocked(case, edges, "this node's ports for edges", f"{low}:{high}")


def _blocked(case: Case, peers: list[Peer], what: str, ports: str) -> Finding:
    who = ", ".join(peer.node_id for peer in peers)
    reason = peers[0].control_problem or peers[0].edge_problem
    nodes = "node" if len(peers) == 1 else "nodes"
    return Finding(
        check="port",
        severity=Severity.PREVENTS,
        message=f"{nodes} {who} cannot connect to {what} ({reason})",
        command=_open_ports(case, ports),
        details="on this node; a firewall or router between the nodes may be the one that blocks",
    )


def _open_ports(case: Case, ports: str) -> str:
    """By the firewall's own tool where its configuration says that it is on."""
    ufw = case.system.text(case.below_files("/etc/ufw/ufw.conf")) or ""
    if "ENABLED=yes" in ufw:
        return f"sudo ufw allow {ports}/tcp"
    if case.below_files("/run/firewalld").exists():
        return (
            f"sudo firewall-cmd --permanent --add-port={ports.replace(':', '-')}/tcp "
            "&& sudo firewall-cmd --reload"
        )
    return f"sudo iptables -I INPUT -p tcp --dport {ports} -j ACCEPT"


def _ephemeral_ports(case: Case) -> tuple[int, int]:
    text = case.system.text(case.system.proc / "sys/net/ipv4/ip_local_port_range") or ""
    numbers = [int(part) for part in text.split() if part.isdecimal()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else _EDGE_PORTS


def blocked_multicast(case: Case) -> Iterator[Finding]:
    """Nodes whose multicast does not arrive: they were joined by address."""
    cluster = case.cluster
    unheard = [peer.node_id for peer in _peers(case) if peer.is_heard is False]
    if cluster is None or not unheard:
        return
    nodes = "node" if len(unheard) == 1 else "nodes"
    yield Finding(
        check="multicast",
        severity=Severity.NOTE,
        message=f"multicast of {nodes} {', '.join(unheard)} does not arrive here: new nodes may "
        "not find the cluster by themselves",
        command=f"potluck up --join {cluster.address}",
        details="on a new node",
    )


def _peers(case: Case) -> tuple[Peer, ...]:
    cluster: Cluster | None = case.cluster
    return () if cluster is None else cluster.peers
