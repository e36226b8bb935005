"""The hosts that ``potluck wheel`` commands name, the Python on them, and the cluster's hosts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.errors import HostError, UsageError
from potluck.portability.hosts.host import Host

if TYPE_CHECKING:
    from potluck.cluster.agent.hosts import HostAnswer
    from potluck.cluster.agent.state import StateDirectory
    from potluck.portability.hosts.host import HostPython


HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="HOST",
        help="A file with the output of potluck probe --json on a machine, or the name of a known "
        "host (debian-12-x86_64). Can be repeated. Default: this machine.",
        show_default=False,
    ),
]
PythonOption = Annotated[
    str,
    typer.Option(
        "--python",
        metavar="VERSION",
        help="CPython version to install for, for example 3.12 or 3.13t, instead of the host's "
        "own.",
        show_default=False,
    ),
]

_PYTHON = re.compile(r"(3)\.(\d{1,2})(t?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentNode:
    """A node that did not describe its host, and why."""

    node_id: str
    problem: str


def silent_lines(silent: Iterable[SilentNode]) -> Iterator[str]:
    """Yield a line for each node that did not describe its host."""
    for node in silent:
        yield f"node {node.node_id} did not describe its host: {node.problem}"


def chosen_hosts(
    names: Sequence[str] | None, python: str, cluster: StateDirectory | None
) -> tuple[list[Host], list[SilentNode]]:
    """Return the hosts of ``cluster``, or those of ``--host``, by default this one; and the nodes
    that did not describe theirs.

    ``python`` is the value of ``--python``. Raises ``UsageError``.
    """
    if cluster is not None:
        hosts, silent = gather_hosts(cluster)
    else:
        from potluck.portability.hosts.installed import describe_host

        hosts, silent = [_named_host(each) for each in names or ()] or [describe_host()], []
    if python:
        chosen = _chosen_python(python)
        hosts = [replace(each, python=chosen) for each in hosts]
    return hosts, silent


def gather_hosts(state: StateDirectory) -> tuple[list[Host], list[SilentNode]]:
    """Return the host of every node of the cluster, sorted by name, and the nodes without one.

    The names of nodes that share one, such as agents on one machine, contain their node ids.
    Blocking. Raises ``UsageError`` if no agent runs here.
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
    """Read the host in an answer. Raise ``HostError`` if it has none or is malformed."""
    from potluck.portability.hosts.document import read_host

    if answer.problem:
        raise HostError(answer.problem)
    try:
        document = json.loads(answer.description)
    except (ValueError, RecursionError) as error:
        raise HostError("its answer is not JSON") from error
    return read_host(document)


def _chosen_python(text: str) -> HostPython:
    """Return the CPython that an option names. Raises ``UsageError`` for what is no version."""
    from potluck.portability.hosts.host import HostPython

    match = _PYTHON.fullmatch(text)
    if match is None:
        raise UsageError(
            f"--python {text} is not a CPython version", hint="for example 3.12 or 3.13t"
        )
    return HostPython(
        implementation="cpython",
        version=(int(match[1]), int(match[2])),
        is_free_threaded=bool(match[3]),
    )


def _named_host(text: str) -> Host:
    """Return the host in a file, or one that comes with Potluck. Raises ``UsageError``."""
    from potluck.portability.hosts.document import read_host_file
    from potluck.portability.hosts.shipped import load_shipped_host

    path = Path(text)
    try:
        return read_host_file(path) if path.is_file() else load_shipped_host(text)
    except HostError as error:
        raise UsageError(f"--host {text}: {error.message}", hint=error.hint) from None
