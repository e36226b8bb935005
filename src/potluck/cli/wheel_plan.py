"""``potluck wheel plan``: find package versions that install and load on hosts."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from potluck.cli.options import JsonOption, StateOption, state_directory
from potluck.cli.output import emit, note
from potluck.cli.wheel_hosts import HostOption, PythonOption, chosen_hosts, silent_lines
from potluck.errors import UsageError
from potluck.types.quantities import format_count


def plan(
    requirements: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="REQUIREMENT",
            help="A package as for pip (warp-lang, numpy>=2,<3, uvicorn[standard]), or the path "
            "of a wheel, which is then the only candidate of its project.",
            show_default=False,
        ),
    ] = None,
    requirements_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--requirement",
            "-r",
            metavar="FILE",
            help="A requirements file. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    host: HostOption = None,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Plan for every node of the running cluster instead."),
    ] = False,
    python: PythonOption = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write a constraints file for pip, with environment markers; if markers cannot "
            "distinguish the hosts, one file per host (FILE with the host's name in it).",
            show_default=False,
        ),
    ] = None,
    per_host: Annotated[
        bool,
        typer.Option("--per-host", help="Write the newest versions per host to --output."),
    ] = False,
    variants: Annotated[
        bool,
        typer.Option(
            "--variants",
            help="Also choose among variants of wheels (PEP 825), for installers that support "
            "them. pip ignores variants.",
        ),
    ] = False,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Find the newest versions of packages and their dependencies that install and load.

    There are two answers: one version of each package for all hosts, and, where that is impossible
    or costs something, the newest versions per host. Nothing is installed. Exit code 1 if no
    versions work on a host, and with --cluster also if a node does not respond.
    """
    from potluck.portability.planning.target import read_requirements_file

    if host and cluster:
        raise UsageError(
            "--host and --cluster cannot be used together",
            hint="plan for the cluster and for other hosts separately",
        )
    texts = list(requirements or ())
    for path in requirements_file or ():
        texts += read_requirements_file(path)
    if not texts:
        raise UsageError("no REQUIREMENT was given", hint="give a package, or a file with -r")
    hosts, silent = chosen_hosts(host, python, state_directory(state) if cluster else None)

    from potluck.cli.wheel_plan_output import plan_document, plan_lines
    from potluck.portability.checks.needs import default_needs_folder
    from potluck.portability.hosts.installed import running_python
    from potluck.portability.planning.index import WithLocalWheels
    from potluck.portability.planning.pip_index import PipIndex
    from potluck.portability.planning.plan import constraints_files, write_constraints
    from potluck.portability.planning.planner import Planner
    from potluck.portability.wheels.named_wheels import default_wheels_folder

    own_python = running_python()
    with PipIndex() as pip:
        index = WithLocalWheels(pip, [Path(each) for each in texts if each.endswith(".whl")])
        planner = Planner(
            index,
            hosts,
            default_python=own_python,
            folder=default_wheels_folder(os.environ),
            needs_folder=default_needs_folder(os.environ),
            with_variants=variants,
        )
        note(f"querying pip's package index for {format_count(len(hosts), 'host')}")
        named = [each for each in texts if not each.endswith(".whl")]
        found = planner.plan([*named, *index.projects])
        looked_up = pip.queried_projects
    if output is not None:
        chosen = found.own if per_host or found.shared is None else found.shared
        if chosen:
            files = constraints_files(chosen, planner.targets, output)
            write_constraints(files)
            note(f"wrote {', '.join(map(str, files))}")
    document = plan_document(found, planner.targets, texts, silent, looked_up)
    lines = chain(plan_lines(found, planner.targets), silent_lines(silent))
    emit(document, lines, as_json=json)
    raise typer.Exit(0 if found.is_possible and not silent else 1)
