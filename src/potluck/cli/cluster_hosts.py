"""The hosts of the running cluster, as its nodes describe them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from potluck.errors import HostError
from potluck.portability.hosts.host import Host

if TYPE_CHECKING:
    from potluck.cluster.agent.hosts import HostAnswer
    from potluck.cluster.agent.state import StateDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentNode:
    """A node that did not describe its host, and why."""

    node_id: str
    problem: str


def gather_hosts(state: StateDirectory) -> tuple[list[Host], list[SilentNode]]:
    """What every node of the cluster is, by their names, and those of which that is not known.

    Nodes of one name, as agents on one machine are, have their node id in it. Blocking. Raises
    ``UsageError`` where no agent runs.
    """
    import msgspec

    from potluck.cluster.agent.asking import ask
    from potluck.cluster.agent.hosts import HostAnswer

    hosts: dict[str, Host] = {}
    silent: list[SilentNode] = []
    for document in ask(state.control_socket, "hosts", {}):
        if "event" in document:
            answer = msgspec.convert(document["event"], HostAnswer)
            try:
                hosts[answer.node_id] = _host(answer)
            except HostError as error:
                silent.append(SilentNode(node_id=answer.node_id, problem=error.message))
    named = Counter(host.name for host in hosts.values())
    distinct = [
        host if named[host.name] == 1 else replace(host, name=f"{host.name} ({node_id})")
        for node_id, host in hosts.items()
    ]
    distinct.sort(key=lambda each: each.name)
    silent.sort(key=lambda each: each.node_id)
    return distinct, silent


def _host(answer: HostAnswer) -> Host:
    """Raises ``HostError`` if there is none, for whatever reason."""
    from potluck.portability.hosts.document import read_host

    if answer.problem:
        raise HostError(answer.problem)
    try:
        document = json.loads(answer.description)
    except (ValueError, RecursionError) as error:
        raise HostError("its answer is not JSON") from error
    return read_host(document)
