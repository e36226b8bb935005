"""``potluck nodes``: list the cluster's nodes, and remove nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from potluck.cli.options import JsonOption, StateOption, state_directory
from potluck.cli.output import emit, note
from potluck.cli.placing import result_of
from potluck.cli.tables import table

nodes = typer.Typer(
    help="List the cluster's nodes, or remove a node permanently.", invoke_without_command=True
)

_HINT_SECRET = (
    "it knew the cluster secret, with which it can rejoin under another node id: change the "
    "secret to keep it out (docs/design/security.md)"
)


@nodes.callback()
def show(
    context: typer.Context,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show current nodes, invited nodes and removed nodes."""
    if context.invoked_subcommand is not None:
        return
    result = result_of(state_directory(state), "nodes", {})
    emit(result, node_lines(result), as_json=json)


@nodes.command()
def remove(
    node: Annotated[
        str,
        typer.Argument(
            metavar="NODE",
            help="A node id, an unambiguous prefix of one, or a host name.",
            show_default=False,
        ),
    ],
    state: StateOption = None,
) -> None:
    """Remove NODE from the cluster permanently. This cannot be undone.

    All other nodes refuse it from now on, and deployments that use it move to other nodes. The
    machine can rejoin as a new node with a new invitation.
    """
    result = result_of(state_directory(state), "remove", {"node": node})
    note(f"node {result['node_id']} was removed from the cluster")
    if result["membership"] != "invitation":
        may = "" if result["membership"] == "secret" else "if "
        note(f"{may}{_HINT_SECRET}")


def node_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of nodes."""
    rows = [
        (
            each["node_id"],
            each["name"] or "-",
            each["state"] if each["removed_at"] is None else _removed(each["removed_at"]),
            {"secret": "secret", "invitation": "invitation", None: "-"}[each["membership"]],
            each["address"] or "-",
        )
        for each in result["nodes"]
    ]
    yield from table([("NODE", "NAME", "STATE", "MEMBER BY", "ADDRESS"), *rows])


def _removed(seconds: float) -> str:
    return f"removed {time.strftime('%Y-%m-%d %H:%M', time.localtime(seconds))}"
