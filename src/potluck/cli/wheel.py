"""``potluck wheel``: whether wheels load on hosts, told before they are installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.cluster_hosts import SilentNode, gather_hosts
from potluck.cli.options import JsonOption, StateOption, state_directory
from potluck.cli.output import emit_json, note
from potluck.errors import HostError, UsageError

if TYPE_CHECKING:
    from potluck.portability.host import Host
    from potluck.portability.wheel_report import WheelReport

wheel = typer.Typer(
    help="Tell whether builds load on machines, before they are installed.", no_args_is_help=True
)


@wheel.callback()
def _group() -> None:
    """Keeps ``check`` a command of its own while it is the only one."""


@wheel.command()
def check(
    wheels: Annotated[
        list[str],
        typer.Argument(
            metavar="WHEEL",
            help="A wheel, a shared library, a folder of them, or the name of a project "
            "(warp-lang, numpy==2.1.0), whose newest wheels pip downloads.",
            show_default=False,
        ),
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="What potluck probe --json said on a machine, in a file, or a host that is known "
            "by its name (debian-12-x86_64). Can be repeated. Default: this machine.",
            show_default=False,
        ),
    ] = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Check on every node of the running cluster instead."),
    ] = False,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Say whether each WHEEL installs on a host, which files in it load there, and what will lack.

    Nothing of it is installed, unpacked or executed. Exit code 1 if a host does not get to load it,
    and with --cluster if a node does not answer.
    """
    if host and cluster:
        raise UsageError(
            "--host and --cluster exclude each other",
            hint="check on the cluster first, and on other hosts in a second command",
        )
    if cluster:
        hosts, silent = gather_hosts(state_directory(state))
    else:
        hosts, silent = [_named_host(each) for each in host or ()] or [_this_host()], []
    raise typer.Exit(check_on(hosts, wheels, silent=silent, as_json=json))


def check_on(
    hosts: Sequence[Host],
    wheels: Sequence[str],
    *,
    silent: Sequence[SilentNode] = (),
    as_json: bool,
) -> int:
    """Check what ``wheels`` stand for on hosts, and print it; the exit code.

    Of ``silent`` nodes nothing is known but that they are there. Raises ``UsageError``,
    ``WheelFileError``, ``WheelDownloadError``.
    """
    from potluck.cli.wheel_output import is_usable, wheel_document, wheel_lines
    from potluck.portability.check import check_on_hosts
    from potluck.portability.host_check import HostCheck
    from potluck.portability.needs_cache import cached_needs, default_needs_folder
    from potluck.portability.prepared_wheel import PreparedWheel

    checks = [HostCheck(each) for each in hosts]
    folder = default_needs_folder(os.environ)
    reports: list[WheelReport] = []
    is_good = not silent
    for argument in wheels:
        found = [
            check_on_hosts(PreparedWheel(cached_needs(path, folder)), checks)
            for path in _paths(argument, hosts)
        ]
        reports += found
        is_good = is_good and is_usable(found)
    if as_json:
        emit_json(wheel_document(reports, hosts, silent))
    else:
        for report in reports:
            for line in wheel_lines(report):
                print(line)
        for node in silent:
            print(f"node {node.node_id} did not say what it has: {node.problem}")
    return 0 if is_good else 1


def _paths(argument: str, hosts: Sequence[Host]) -> Sequence[Path]:
    """The file or folder of this name, or else the newest wheels of the project."""
    path = Path(argument)
    if path.exists():
        return [path]
    if path.is_symlink():
        raise UsageError(
            f"{argument}: it is a symbolic link to nothing, or one of a circle",
            hint="name a wheel, a library or a folder",
        )
    if "/" in argument or argument.endswith((".whl", ".so")):
        raise UsageError(
            f"{argument}: there is no such file", hint="name a wheel, a library or a folder"
        )
    return _newest(argument, hosts)


def _newest(project: str, hosts: Sequence[Host]) -> Sequence[Path]:
    from potluck.portability.named_wheels import default_wheels_folder, newest_wheels

    folder = default_wheels_folder(os.environ)
    if folder is None:
        raise UsageError(
            f"{project}: there is no home directory to download it to", hint="set XDG_CACHE_HOME"
        )
    known = sorted({each.python.version for each in hosts if each.python is not None})
    pythons = known or [sys.version_info[:2]]
    of_pythons = ", ".join(f"{major}.{minor}" for major, minor in pythons)
    note(f"downloading the newest wheels of {project} for Python {of_pythons} to {folder}")
    return newest_wheels(project, pythons, folder)


def _named_host(text: str) -> Host:
    """A description in a file, or one that comes with Potluck. Raises ``UsageError``."""
    from potluck.portability.host_document import read_host_file
    from potluck.portability.shipped_hosts import load_shipped_host

    path = Path(text)
    try:
        return read_host_file(path) if path.is_file() else load_shipped_host(text)
    except HostError as error:
        raise UsageError(f"--host {text}: {error.message}", hint=error.hint) from None


def _this_host() -> Host:
    from potluck.portability.installed_host import describe_host

    return describe_host()
