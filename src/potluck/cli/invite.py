"""``potluck invite``: commands with which a new machine joins without the cluster secret."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from potluck.cli.options import JsonOption, StateOption, state_directory
from potluck.cli.output import emit_json, note, print_lines
from potluck.cli.placing import result_of
from potluck.cli.tables import table
from potluck.errors import UsageError, WheelFileError
from potluck.types.documents.nodes import InviteDocument
from potluck.types.node_names import names_of
from potluck.types.quantities import format_count

_WHERE = {
    "python": "on a machine with Python 3.11 or newer, run",
    "shell": "on a machine with a shell and curl or GNU wget, run",
    "potluck": "on a machine with this version of Potluck, run",
}


def invite(
    uses: Annotated[
        int,
        typer.Option(
            "--uses", metavar="N", help="Number of machines that may join with this invitation."
        ),
    ] = 1,
    expires: Annotated[
        str,
        typer.Option(
            "--expires", metavar="TIME", help="Lifetime of the invitation, for example 30m."
        ),
    ] = "1h",
    wheels: Annotated[
        list[Path] | None,
        typer.Option(
            "--wheels",
            metavar="DIRECTORY",
            help="Directory to search first for wheels for new machines. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List this node's invitations instead.")
    ] = False,
    withdraw: Annotated[
        str | None,
        typer.Option(
            "--withdraw",
            metavar="ID",
            help="Revoke an invitation instead. Machines that have joined with it stay in the "
            "cluster.",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Print the commands that add a new machine, which installs Potluck from this node and joins
    without the cluster secret.

    Anyone who has such a command can join until the invitation expires or is used up, so treat it
    like a password.
    """
    if list_all and withdraw is not None:
        raise UsageError("--list and --withdraw cannot be used together", hint="omit one of them")
    directory = state_directory(state)
    if list_all or withdraw is not None:
        method, params = "invitations", {}
        if withdraw is not None:
            method, params = "withdraw", {"invitation_id": withdraw}
        result = result_of(directory, method, params)
        if json:
            emit_json(result)
            return
        if withdraw is not None:
            note(f"invitation {withdraw} is revoked")
        # Unlike the state of the cluster, this list names invited nodes that are away, too.
        names = names_of(result_of(directory, "nodes", {})["nodes"])
        print_lines(invitation_lines(names.in_document(result), time.time()))
        return
    from potluck.cluster.invitations.ledger import parse_duration

    problem = _software_problem(wheels or ())
    folders = [str(each.absolute()) for each in wheels or ()]
    made = result_of(
        directory,
        "invite",
        {"num_uses": uses, "seconds": parse_duration(expires), "wheel_folders": folders},
    )
    lines = join_lines(made, with_software=problem is None)
    if json:
        emit_json(msgspec.convert({**made, "lines": lines}, InviteDocument))
        return
    machines = format_count(uses, "machine")
    note(f"invitation {made['invitation_id']}: for {machines}, valid for {expires}")
    if all(each.startswith(("127.", "[::1]")) for each in made["addresses"]):
        note(
            "this node listens on loopback only; to let other machines reach it, restart it "
            "with potluck up --lan"
        )
    for heading, line in zip(line_headings(lines), lines.values(), strict=True):
        note(heading)
        print(line)
    if problem is not None:
        note(f"a machine without Potluck cannot be set up from here: {problem.problem}")
        note(f"hint: {problem.hint}")


def join_lines(made: Mapping[str, Any], *, with_software: bool) -> dict[str, str]:
    """Return the commands for a new machine, by what it has installed. ``with_software``: this node
    has wheels of Potluck.
    """
    from potluck.cluster.invitations.software.endpoint import Endpoint, python_line, shell_line
    from potluck.cluster.network.membership import parse_address

    lines = {}
    if with_software:
        address = parse_address(made["addresses"][0])
        endpoint = Endpoint(
            host=address.host,
            port=address.port,
            token=made["token"],
            certificate_sha256=made["certificate_sha256"],
            public_key_sha256=made["key_sha256"],
            invitation=made["invitation"],
        )
        lines = {"python": python_line(endpoint), "shell": shell_line(endpoint)}
    return {**lines, "potluck": f"potluck up --join {made['invitation']}"}


def line_headings(whats: Iterable[str]) -> Iterator[str]:
    """Yield what is shown before each of the commands of ``join_lines``, of which one is needed."""
    for number, what in enumerate(whats):
        yield f"{'or, ' if number else ''}{_WHERE[what]}:"


def _software_problem(folders: Sequence[Path]) -> WheelFileError | None:
    """Return the error because of which this node cannot provide Potluck to others, if there is
    one. Wheels in ``folders`` are stored. Raise ``UsageError`` for folders without wheels.
    """
    from potluck.cluster.invitations.software.installed_wheel import check_own_wheel, keep_wheels
    from potluck.portability.wheels.named_wheels import default_wheels_folder

    store = default_wheels_folder(os.environ)
    try:
        if store is not None:
            keep_wheels(folders, store)
    except (WheelFileError, OSError) as error:
        raise UsageError(
            f"--wheels: {error}", hint="give a directory that contains wheels"
        ) from None
    try:
        check_own_wheel((*folders, store) if store is not None else folders)
    except WheelFileError as error:
        return error
    return None


def invitation_lines(result: Mapping[str, Any], now: float) -> Iterator[str]:
    """Yield a table of invitations."""
    if not result["invitations"]:
        yield "this node has no invitations; create one with potluck invite"
        return
    rows = [
        (
            each["invitation_id"],
            f"{each['num_used']} of {each['num_uses']}",
            each["closed"] or f"valid for {_minutes(each['expires'] - now)}",
            ", ".join(each["nodes"]) or "-",
        )
        for each in result["invitations"]
    ]
    yield from table([("INVITATION", "USED", "STATE", "NODES"), *rows])


def _minutes(seconds: float) -> str:
    minutes = max(0, round(seconds / 60))
    return f"{minutes} min" if minutes < 180 else f"{minutes / 60:.0f} h"
