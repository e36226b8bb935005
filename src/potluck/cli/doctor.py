"""``potluck doctor``: what limits performance on this machine, and how to fix it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from potluck.cli.addresses import DEFAULT_HTTP_PORT, DEFAULT_LAN_PORT, lan_address
from potluck.cli.options import (
    JsonOption,
    StateOption,
    WaitOption,
    seconds_to_wait,
    settings,
    state_directory,
)
from potluck.cli.output import emit, note
from potluck.errors import PotluckError, UsageError
from potluck.probe.doctor.case import Finding, Severity
from potluck.types.document import Document
from potluck.types.node_names import NodeNames

if TYPE_CHECKING:
    from potluck.cluster.agent.state import StateDirectory
    from potluck.host.system import System
    from potluck.probe.doctor.case import Case, Cluster, Folder, LocalNetwork
    from potluck.types.backend import BackendSpec
    from potluck.types.hardware import ProbeReport

_NO_NAMES = NodeNames({})
_MIB = 1 << 20
_STATE_BYTES = 16 * _MIB
"""Some hundred KiB are written: less free than this means that the disk is full."""

_MODELS_BYTES = 2048 * _MIB
"""About the least that a model worth several machines takes."""


def doctor(json: JsonOption = False, wait: WaitOption = False, state: StateOption = None) -> None:
    """Diagnose what limits performance on this machine, and suggest commands that fix it.

    Exit code 1 if a problem keeps a usable unit from working.
    """
    from potluck.cli.probe import probed
    from potluck.engines.backends import BACKENDS
    from potluck.host.system import THIS_MACHINE
    from potluck.probe.cache import default_cache_path

    cache_path = default_cache_path(os.environ)
    num_threads = settings().threads
    case, names = gather(
        THIS_MACHINE,
        lambda: probed(num_threads=num_threads, wait_seconds=None if wait else seconds_to_wait()),
        BACKENDS,
        cache_root=None if cache_path is None else cache_path.parent,
        state=state,
    )
    raise typer.Exit(report(case, names, as_json=json))


def gather(
    system: System,
    probe: Callable[[], ProbeReport],
    backends: Sequence[BackendSpec],
    *,
    cache_root: Path | None,
    state: Path | None,
) -> tuple[Case, NodeNames]:
    """Collect everything that the checks need, including from the agent of ``state`` if it runs.

    Return the names of nodes, too, as far as that agent knows them.
    """
    from potluck.probe.doctor.case import Case, read_distribution
    from potluck.probe.doctor.look import (
        inspect_opened_libraries,
        inspect_packages,
        inspect_shared_memory,
        inspect_user,
        missing_packages,
    )

    directory, missing_folder = _state(state)
    # Each waits for other processes, or other nodes.
    with ThreadPoolExecutor(thread_name_prefix="doctor") as threads:
        answer = None if directory is None else threads.submit(_ask_agent, directory)
        packages = threads.submit(inspect_packages)
        found = probe()
        cluster, names = (None, _NO_NAMES) if answer is None else answer.result()
        unloadable_packages = packages.result()
    case = Case(
        system=system,
        report=found,
        backends=tuple(backends),
        missing_packages=missing_packages(backends),
        unloadable_packages=unloadable_packages,
        opened_libraries=inspect_opened_libraries(system, found, backends, os.environ),
        distribution=read_distribution(system),
        user=inspect_user(),
        folders=tuple(_folders(system, directory, cache_root)),
        missing_folder=missing_folder,
        shared_memory_bytes=inspect_shared_memory(system),
        network=None if cluster is not None else _network(),
        cluster=cluster,
        library_folders=tuple(
            folder
            for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":")
            if folder.startswith("/")
        ),
    )
    return case, names


def report(case: Case, names: NodeNames = _NO_NAMES, *, as_json: bool) -> int:
    """Print what the checks find, with nodes called by ``names``; return the exit code."""
    from potluck.probe.doctor.examine import examine

    findings = [
        replace(
            finding,
            message=names.in_text(finding.message),
            command=names.in_text(finding.command),
            details=names.in_text(finding.details),
        )
        for finding in examine(case)
    ]
    is_checked = case.cluster is not None
    document = DoctorDocument(is_cluster_checked=is_checked, findings=tuple(findings))
    emit(document, finding_lines(findings), as_json=as_json)
    if not (as_json or is_checked):
        note("no agent runs here: checks that involve other nodes need potluck up")
    return int(any(finding.severity is Severity.PREVENTS for finding in findings))


def finding_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a paragraph for each finding: severity, message, command and details."""
    is_clean = True
    for finding in findings:
        is_clean = False
        yield f"{finding.severity.value}: {finding.message}"
        yield f"  fix: {finding.command}"
        if finding.details:
            yield f"       ({finding.details})"
    if is_clean:
        yield "no problems found"


class DoctorDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck doctor --json``."""

    schema: Literal["potluck.doctor/1"] = "potluck.doctor/1"
    is_cluster_checked: bool
    """An agent runs here, so the other nodes were asked too."""
    findings: tuple[Finding, ...]
    """The most severe finding first."""


def _state(path: Path | None) -> tuple[StateDirectory | None, str]:
    """Return the state directory, or None and why there is none."""
    try:
        return state_directory(path), ""
    except UsageError as error:
        return None, error.message
    except ImportError as error:  # a package that cannot be loaded, of which a check tells
        note(f"an agent cannot run here: {error}")
        return None, ""


def _ask_agent(directory: StateDirectory) -> tuple[Cluster | None, NodeNames]:
    """Return what the agent finds out with other nodes, None without one, and their names."""
    nothing = None, _NO_NAMES
    try:
        if not directory.control_socket.is_socket():
            return nothing  # and nothing of an agent need be imported, which takes half a second
    except OSError:  # this user may not look there
        return nothing
    import msgspec

    from potluck.probe.doctor.case import Cluster

    try:
        from potluck.cluster.agent.asking import ask
    except ImportError as error:  # a package that cannot be loaded, of which a check tells
        note(f"an agent cannot run here: {error}")
        return nothing
    try:
        *_, answer = ask(directory.control_socket, "doctor", {})
        found = answer["result"]
        cluster = msgspec.convert(found.get("cluster"), Cluster)
        return cluster, NodeNames(found.get("host_names", {}))
    except UsageError:  # nobody answers there
        return nothing
    except (PotluckError, msgspec.ValidationError) as error:
        note(f"the agent could not check the connections between nodes: {error}")
        return nothing


def _folders(
    system: System, directory: StateDirectory | None, cache_root: Path | None
) -> Iterator[Folder]:
    from potluck.host.cache_folder import hub_cache_folder
    from potluck.probe.doctor.look import inspect_folder
    from potluck.probe.doctor.settings import CACHE, MODELS, STATE

    wanted = [
        (STATE, None if directory is None else directory.path, _STATE_BYTES),
        (CACHE, cache_root, _STATE_BYTES),
        (MODELS, hub_cache_folder(), _MODELS_BYTES),
    ]
    for purpose, path, needed_bytes in wanted:
        if path is not None:
            folder = inspect_folder(system, path, purpose=purpose, needed_bytes=needed_bytes)
            if folder is not None:
                yield folder


def _network() -> LocalNetwork:
    from potluck.probe.doctor.look import inspect_network

    try:
        address = lan_address()
    except UsageError:  # this machine is on no network
        address = ""
    return inspect_network(
        "" if ":" in address else address, lan_port=DEFAULT_LAN_PORT, http_port=DEFAULT_HTTP_PORT
    )
