"""Checks of ports, clocks and multicast: locally, and with the other nodes of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.probe.doctor.case import Case, Finding, Peer, Severity
from potluck.probe.doctor.multicast import PORT

_MOST_SKEW_SECONDS = 2.0
"""Clocks that are synchronized over the network stay within a few hundredths of a second."""


def taken_ports(case: Case) -> Iterator[Finding]:
    """Check for ports that an agent needs but cannot listen on."""
    for port in case.network.ports if case.network else ():
        if port.problem:
            yield Finding(
                check="port",
                severity=Severity.NOTE,
                message=f"TCP port {port.number} for {port.purpose}: {port.problem}",
                command=f"potluck up {port.option}",
                details=f"ss -ltnp 'sport = :{port.number}' shows the program that listens there",
            )


def local_multicast(case: Case) -> Iterator[Finding]:
    """Check for an interface without working multicast."""
    network = case.network
    if network is None or not network.address or not network.multicast_problem:
        return
    yield Finding(
        check="multicast",
        severity=Severity.NOTE,
        message=(
            f"multicast does not work at {network.address} ({network.multicast_problem}): nodes "
            "cannot discover each other"
        ),
        command="potluck up --join HOST:PORT",
        details="give the address of a node that is already up",
    )


def no_other_node(case: Case) -> Iterator[Finding]:
    """Check for a node that is open to others and has found none."""
    cluster = case.cluster
    if cluster is None or cluster.peers or cluster.address.startswith("127."):
        return
    host, _, port = cluster.address.rpartition(":")
    if cluster.is_address_gone:
        yield Finding(
            check="alone",
            severity=Severity.PREVENTS,
            message=f"this machine no longer has the address of its node, {host}, and the node"
            " waits for another one",
            command="ip address",
            details="shows the addresses of this machine; a node that was started with --listen"
            " takes only one of the same interface",
        )
        return
    yield Finding(
        check="alone",
        severity=Severity.NOTE,
        message=f"this node, at {cluster.address}, has found no other node",
        command="potluck up --join HOST",
        details=f"if there is another, with its address: discovery needs multicast (UDP port {PORT}"
        f" on the interface that has {host}), and each node's port ({port}/tcp here) has to be"
        " open",
    )


def silent_nodes(case: Case) -> Iterator[Finding]:
    """Check for nodes that do not respond."""
    for peer in _peers(case):
        if peer.problem:
            yield Finding(
                check="node",
                severity=Severity.PREVENTS,
                message=f"node {peer.node_id} does not respond: {peer.problem}",
                command="potluck down; potluck up",
                details="on that node, with the options it was started with",
            )


def clocks(case: Case) -> Iterator[Finding]:
    """Check for clocks that differ.

    Potluck's certificates are not affected, since they are valid from 1970 on.
    """
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
            "on the node whose clock is wrong",
        )


def _tolerance(peer: Peer) -> float:
    return _MOST_SKEW_SECONDS + (peer.uncertainty_seconds or 0.0)


def _seconds(seconds: float) -> str:
    return f"{abs(seconds):,.2f} s" if abs(seconds) < 100 else f"{abs(seconds):,.0f} s"


def _clock(message: str, details: str) -> Finding:
    return Finding(
        check="clock",
        severity=Severity.NOTE,
        message=f"{message}: logs cannot be compared, and downloads may be rejected",
        command="sudo timedatectl set-ntp true",
        details=details,
    )


def blocked_ports(case: Case) -> Iterator[Finding]:
    """Check for nodes that cannot connect to each other, or to this one."""
    cluster = case.cluster
    if cluster is None:
        return
    port = cluster.address.rpartition(":")[2]
    blocked = [peer for peer in cluster.peers if peer.port_problem]
    if silent := [peer for peer in blocked if not peer.is_reached]:
        yield Finding(
            check="port",
            severity=Severity.PREVENTS,
            message=f"{_named(silent)} and this node cannot communicate: neither can connect to"
            f" the other; this node's address is {cluster.address}"
            f" ({silent[0].port_problem})",
            command=_open_ports(case, port),
            details="on one of the two; a firewall or router between them may block the connection",
        )
    if reached := [peer for peer in blocked if peer.is_reached]:
        yield Finding(
            check="port",
            severity=Severity.NOTE,
            message=f"{_named(reached)} cannot connect to this node's address {cluster.address}"
            f" ({reached[0].port_problem}): all connections between them are opened"
            " from here",
            command=_open_ports(case, port),
            details="on this node; a firewall or router between the nodes may block the connection",
        )
    others = [pair for pair in cluster.silent_pairs if cluster.node_id not in pair]
    if others:
        named = ", ".join(" and ".join(pair) for pair in others)
        yield Finding(
            check="pairs",
            severity=Severity.SLOWS,
            message="nodes that cannot communicate, as neither can connect to the other:"
            f" {named}. Plans avoid placing adjacent stages on them",
            command=_open_ports(case, port),
            details="on one node of each pair",
        )


def _named(peers: list[Peer]) -> str:
    nodes = "node" if len(peers) == 1 else "nodes"
    return f"{nodes} {', '.join(peer.node_id for peer in peers)}"


def _open_ports(case: Case, ports: str) -> str:
    """Use the firewall's own tool if its configuration says that it is enabled."""
    ufw = case.system.text(case.system.below_files("/etc/ufw/ufw.conf")) or ""
    if "ENABLED=yes" in ufw:
        return f"sudo ufw allow {ports}/tcp"
    if case.system.below_files("/run/firewalld").exists():
        return (
            f"sudo firewall-cmd --permanent --add-port={ports.replace(':', '-')}/tcp "
            "&& sudo firewall-cmd --reload"
        )
    return f"sudo iptables -I INPUT -p tcp --dport {ports} -j ACCEPT"


def blocked_multicast(case: Case) -> Iterator[Finding]:
    """Check for nodes that joined by address and whose multicast does not arrive."""
    cluster = case.cluster
    unheard = [peer for peer in _peers(case) if peer.is_heard is False]
    if cluster is None or not unheard:
        return
    yield Finding(
        check="multicast",
        severity=Severity.NOTE,
        message=f"multicast of {_named(unheard)} does not arrive here: new nodes may not discover"
        " the cluster",
        command=f"potluck up --join {cluster.address}",
        details="on a new node",
    )


def _peers(case: Case) -> tuple[Peer, ...]:
    return () if case.cluster is None else case.cluster.peers
