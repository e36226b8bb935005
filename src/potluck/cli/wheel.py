"""``potluck wheel``: check whether wheels will load on a host, without installing them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.options import JsonOption, StateOption, state_directory
from potluck.cli.output import emit_json, note, print_lines
from potluck.cli.wheel_hosts import (
    HostOption,
    PythonOption,
    SilentNode,
    chosen_hosts,
    silent_lines,
)
from potluck.cli.wheel_plan import plan
from potluck.errors import UsageError, WheelDownloadError, WheelFileError

if TYPE_CHECKING:
    from potluck.cli.wheel_document import WorkingRelease
    from potluck.portability.checks.host_check import HostCheck
    from potluck.portability.checks.report import WheelReport
    from potluck.portability.hosts.host import Host

wheel = typer.Typer(
    help="Check whether wheels will load on a host, without installing them.", no_args_is_help=True
)

wheel.command()(plan)


@wheel.command()
def check(
    wheels: Annotated[
        list[str],
        typer.Argument(
            metavar="WHEEL",
            help="A wheel, a shared library, a directory of wheels or libraries, or the name of a "
            "project (warp-lang, numpy==2.1.0), whose newest wheels are downloaded with pip.",
            show_default=False,
        ),
    ],
    host: HostOption = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Check for every node of the running cluster instead."),
    ] = False,
    python: PythonOption = "",
    short: Annotated[
        bool,
        typer.Option("--short", help="Print one line per host, for the wheel that fits best."),
    ] = False,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Check whether each WHEEL installs on a host, which of its files load there, and what is
    missing.

    Nothing is installed, unpacked or executed. Exit code 1 if no wheel loads on some host, and with
    --cluster also if a node does not respond.
    """
    if host and cluster:
        raise UsageError(
            "--host and --cluster cannot be used together",
            hint="run the check for the cluster and for other hosts separately",
        )
    hosts, silent = chosen_hosts(host, python, state_directory(state) if cluster else None)
    raise typer.Exit(check_on(hosts, wheels, silent=silent, as_json=json, is_short=short))


def check_on(
    hosts: Sequence[Host],
    wheels: Sequence[str],
    *,
    silent: Sequence[SilentNode] = (),
    as_json: bool,
    is_short: bool = False,
) -> int:
    """Check what ``wheels`` stand for on hosts, and print it; the exit code.

    Of ``silent`` nodes nothing is known but that they are there. Raises ``UsageError``,
    ``WheelFileError``, ``WheelDownloadError``.
    """
    from potluck.cli.wheel_document import (
        is_usable,
        release_line,
        report_lines,
        short_lines,
        wheel_document,
    )
    from potluck.portability.checks.host_check import HostCheck, check_on_hosts
    from potluck.portability.checks.needs import cached_needs, default_needs_folder
    from potluck.portability.checks.prepared_wheel import PreparedWheel

    checks = [HostCheck(each) for each in hosts]
    folder = default_needs_folder(os.environ)
    groups: list[list[WheelReport]] = []
    releases: list[WorkingRelease] = []
    is_good = not silent
    for argument in wheels:
        for paths in _projects(argument, hosts):
            found = [
                check_on_hosts(PreparedWheel(cached_needs(path, folder)), checks) for path in paths
            ]
            groups.append(found)
            is_good = is_good and is_usable(found)
            if not Path(argument).exists():
                releases += _working_releases(argument, found, checks, folder)
    if as_json:
        emit_json(wheel_document(chain.from_iterable(groups), hosts, silent, releases))
    else:
        lines = short_lines(groups) if is_short else report_lines(groups)
        print_lines([*lines, *map(release_line, releases), *silent_lines(silent)])
    return 0 if is_good else 1


def _projects(argument: str, hosts: Sequence[Host]) -> Sequence[Sequence[Path]]:
    """Return the file or folder with this name, or else the newest wheels of the project.

    For a folder with wheels, return those of each project in it.
    """
    path = Path(argument)
    if path.is_dir() and (wheels := sorted(path.glob("*.whl"))):
        projects: dict[str, list[Path]] = {}
        for each in wheels:
            projects.setdefault(each.name.partition("-")[0].lower(), []).append(each)
        return list(projects.values())
    if path.exists():
        return [[path]]
    if path.is_symlink():
        raise UsageError(
            f"{argument}: dangling or circular symbolic link",
            hint="give a wheel, a library or a directory",
        )
    if "/" in argument or argument.endswith((".whl", ".so")):
        raise UsageError(f"{argument}: no such file", hint="give a wheel, a library or a directory")
    return [_newest(argument, hosts)]


def _working_releases(
    project: str, found: Sequence[WheelReport], checks: Sequence[HostCheck], cache: Path | None
) -> list[WorkingRelease]:
    """Return the newest working release for each host on which no newest wheel works."""
    from potluck.cli.wheel_document import WorkingRelease, is_usable_on
    from potluck.portability.checks.needs import cached_needs
    from potluck.portability.checks.prepared_wheel import PreparedWheel
    from potluck.portability.hosts.installed import running_python
    from potluck.portability.wheels.named_wheels import (
        default_wheels_folder,
        newest_usable_release,
        parse_requirement,
        run_pip,
    )

    folder = default_wheels_folder(os.environ)
    if folder is None:
        return []
    releases = []
    for number, check in enumerate(checks):
        if any(is_usable_on(report.hosts[number]) for report in found):
            continue
        host = check.host
        note(f"searching for the newest release of {project} that works on {host.name}")
        python = host.python or running_python()

        def is_usable(path: Path, check: HostCheck = check) -> bool:
            try:
                needs = cached_needs(path, cache)
            except WheelFileError:
                return False
            return is_usable_on(check.check(PreparedWheel(needs)))

        refused = {
            report.distribution.version
            for report in found
            if report.distribution is not None and report.hosts[number].is_installed
        }
        try:
            version = newest_usable_release(
                project, host, python, folder, is_usable, unusable=refused, run=run_pip
            )
        except WheelDownloadError as error:
            note(f"search stopped: {error.message}")
            continue
        if version:
            name = parse_requirement(project).name
            releases.append(WorkingRelease(project=name, host=host.name, version=version))
    return releases


def _newest(project: str, hosts: Sequence[Host]) -> Sequence[Path]:
    from potluck.portability.hosts.installed import running_python
    from potluck.portability.wheels.named_wheels import (
        MACHINES,
        default_wheels_folder,
        newest_wheels,
    )

    folder = default_wheels_folder(os.environ)
    if folder is None:
        raise UsageError(
            f"{project}: there is no home directory to download to", hint="set XDG_CACHE_HOME"
        )
    known = {each.python for each in hosts if each.python is not None}
    pythons = sorted(
        known or [running_python()], key=lambda each: (each.version, each.is_free_threaded)
    )
    of_pythons = ", ".join(each.name for each in pythons)
    note(f"downloading the newest wheels of {project} for Python {of_pythons} to {folder}")
    machines = [each for each in MACHINES if any(each == host.machine for host in hosts)]
    return newest_wheels(project, pythons, folder, machines=machines or MACHINES)
