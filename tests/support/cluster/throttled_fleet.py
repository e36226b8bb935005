"""Agents on this machine, as fast as control groups let them be and as far apart as a relay does.

Needs root, version 1 of the kernel's CPU controller and util-linux; with a relay iproute2 too.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.cluster.agents import AgentProcess, Fleet
from support.network.netns import Host
from support.network.relay import Link, relayed_lan
from support.processes.waiting import eventually

CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
_NAMESPACES = Path("/run/netns")
_numbers = itertools.count()
_CLONE_NEWNET = 0x40000000
_SHARES = 262_144
"""The most there is: whatever else runs on the machine takes little from the fleet."""

_LEAST_QUOTA_MICROSECONDS = 1000
_PERIOD_MICROSECONDS = 5000
"""Short, so that a step is much longer and is slowed down evenly."""

_READY_SECONDS = 120.0
_LINK_SECONDS = 4.0
"""Links are measured shortly after nodes have met."""

_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An agent's: ``cores`` are what it gets of ``core``, at most 1."""

    cores: float
    core: int
    memory: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Between two machines, in both directions."""

    one: int
    other: int
    delay_seconds: float
    bytes_per_second: float = 0.0


class ThrottledFleet:
    """Made by :func:`throttled_fleet`; all agents are up and have measured themselves."""

    def __init__(self, agents: Sequence[AgentProcess], hosts: Sequence[Host]) -> None:
        self.agents = tuple(agents)
        self._hosts = tuple(hosts)

    @property
    def coordinator(self) -> AgentProcess:
        """The agent that deploys and that clients ask."""
        return self.agents[0]

    @property
    def port(self) -> int:
        """Where the coordinator serves HTTP: on its own host's loopback interface."""
        return int(self.coordinator.url.rpartition(":")[2])

    def at_coordinator(self, works: Sequence[Callable[[], None]]) -> None:
        """Do all of ``works`` at once on the coordinator's host; raise what one of them raised."""
        failed: list[Exception] = []

        def run(work: Callable[[], None]) -> None:
            try:
                if self._hosts:
                    _enter(self._hosts[0])
                work()
            except Exception as error:  # noqa: BLE001 - raised below, in the thread that asked
                failed.append(error)

        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def agent_of(self, node_id: str) -> int:
        """Return the number of the agent of a node."""
        (found,) = [agent.number for agent in self.agents if agent.node_id == node_id]
        return found


def require_groups() -> None:
    """Raise ``OSError`` where control groups of version 1 cannot throttle cores."""
    with _groups([Machine(cores=0.5, core=0)]):
        pass


@contextlib.contextmanager
def throttled_fleet(
    directory: Path, machines: Sequence[Machine], distances: Sequence[Distance] = ()
) -> Iterator[ThrottledFleet]:
    """Start an agent on each machine, the first of which coordinates.

    With ``distances`` each is on a host of its own. Whatever else asks for the processor waits.
    Raises ``OSError`` where there are no such control groups.
    """
    with contextlib.ExitStack() as opened:
        groups = opened.enter_context(_groups(machines))
        hosts: tuple[Host, ...] = ()
        if distances:
            relay = opened.enter_context(relayed_lan(len(machines), seed=1))
            hosts = relay.hosts
            for each in distances:
                link = Link(
                    delay_seconds=each.delay_seconds, bytes_per_second=each.bytes_per_second
                )
                relay.set_between(hosts[each.one], hosts[each.other], link)
        fleet = opened.enter_context(Fleet(directory))
        agents: list[AgentProcess] = []
        for number, (machine, group) in enumerate(zip(machines, groups, strict=True)):
            prefix = _prefix(machine, group, hosts[number] if hosts else None)
            lan = ["--lan"] if hosts and not agents else []
            agent = fleet.start(
                number,
                *lan,
                join=agents[0] if agents else None,
                memory_limit=machine.memory,
                prefix=prefix,
                # Each measures its own machine, and none finds what another measured.
                environ={"XDG_CACHE_HOME": str(directory / f"cache-{number}")},
            )
            if not agents:
                agent.await_up()
            agents.append(agent)
        for agent in agents:
            eventually(
                lambda agent=agent: "other nodes reach it at" in agent.log,  # type: ignore[misc]
                within=_READY_SECONDS,
                what=f"agent {agent.number} is up: {agent.log}",
            )
        fleet.await_members(within=_READY_SECONDS)
        eventually(
            lambda: _have_measured(agents[0], len(agents)),
            within=_READY_SECONDS,
            what="all agents have measured themselves",
        )
        time.sleep(_LINK_SECONDS)
        yield ThrottledFleet(agents, hosts)


def _have_measured(agent: AgentProcess, num_nodes: int) -> bool:
    nodes = agent.cluster()["nodes"]
    units = [unit for node in nodes for unit in node.get("units") or []]
    return len(units) >= num_nodes and not any(
        "not tested yet" in (unit.get("reason") or "") or unit.get("role") == "pending"
        for unit in units
    )


def _prefix(machine: Machine, group: Path, host: Host | None) -> list[str]:
    """The command that goes on in the group, on the core, and on the host.

    ``ip netns exec`` would hide the control groups.
    """
    enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    pin = ["taskset", "-c", str(machine.core)]
    namespace = ["nsenter", f"--net={_NAMESPACES / host.namespace}"] if host is not None else []
    return [*enter, *pin, *namespace]


@contextlib.contextmanager
def _groups(machines: Sequence[Machine]) -> Iterator[list[Path]]:
    """A control group for each machine, within one that precedes all else on this machine.

    This process is in that one, too, with what it starts that is on none of the machines.
    """
    parent = CPU_GROUPS / f"potluck-placement-{os.getpid()}-{next(_numbers)}"
    before = _own_group()
    with contextlib.ExitStack() as cleanup:
        parent.mkdir()
        cleanup.callback(_remove, parent)
        (parent / "cpu.shares").write_text(str(_SHARES))
        client = parent / "client"
        client.mkdir()
        cleanup.callback(_remove, client)
        (client / "cgroup.procs").write_text(str(os.getpid()))
        cleanup.callback((before / "cgroup.procs").write_text, str(os.getpid()))
        groups = []
        for number, machine in enumerate(machines):
            group = parent / f"machine-{number}"
            group.mkdir()
            cleanup.callback(_remove, group)
            period = max(_PERIOD_MICROSECONDS, round(_LEAST_QUOTA_MICROSECONDS / machine.cores))
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(round(period * machine.cores)))
            groups.append(group)
        yield groups


def _own_group() -> Path:
    """Return the control group of this process."""
    for line in Path("/proc/self/cgroup").read_text("ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return CPU_GROUPS / path.lstrip("/")
    raise OSError("the kernel has no CPU controller of version 1")


def _remove(group: Path) -> None:
    """Remove a control group once the last process in it has ended."""
    deadline = time.monotonic() + _END_SECONDS
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _enter(host: Host) -> None:
    """Have this thread open its sockets on a host."""
    namespace = os.open(_NAMESPACES / host.namespace, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(namespace)
