"""Commands on the running cluster: deploy, undeploy, ps, down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli.options import JsonOption, ModelArgument, StateOption, state_directory
from potluck.cli.output import emit_json, note
from potluck.cli.placing import (
    cluster_state,
    deploy_params,
    layout_params,
    node_names,
    result_of,
)
from potluck.cli.spec_options import takes_settings
from potluck.cli.speed_lines import speed_lines
from potluck.cli.tables import deployment_lines, node_lines, stage_lines, transfer_text
from potluck.cluster.agent.asking import ask
from potluck.quantities import format_count
from potluck.types.node_names import names_of

if TYPE_CHECKING:
    from rich.progress import TaskID

    from potluck.cluster.agent.state import StateDirectory

NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="Model name for clients. Default: MODEL, or the last component of a path.",
        show_default=False,
    ),
]
ReplaceOption = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="If a deployment has the same name, take over the name when the new one is ready, "
        "and undeploy the other when its requests are done. Both need memory meanwhile.",
    ),
]


@takes_settings()
def deploy(
    model: ModelArgument,
    name: NameOption = None,
    replace: ReplaceOption = False,
    *,
    settings: Mapping[str, Any],
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Deploy MODEL across the cluster and wait until it is ready."""
    directory = state_directory(state)
    request = deploy_request(model, settings, name=name, replace=replace)
    try:
        result = deployed(directory, request, settings["layout"])
    except KeyboardInterrupt:
        note("interrupted: removing what was deployed so far")
        raise typer.Exit(130) from None
    if json:
        emit_json(result)
        return
    note(f"{result['model_id']} is ready on {format_count(len(result['stages']), 'stage')}")
    _print_lines(stage_lines(node_names(directory).in_document(result)))


def deploy_request(
    model: str, given: Mapping[str, Any], *, name: str | None, replace: bool
) -> dict[str, Any]:
    """Return what the agent is asked to deploy, less the layout. Raise ``ParameterError``."""
    return {
        **deploy_params(model, given, name=name),
        "is_named": name is not None,
        "replaces": replace,
    }


def deployed(
    directory: StateDirectory, request: Mapping[str, Any], layout: str | None
) -> dict[str, Any]:
    """Have the agent of ``directory`` deploy a model, and show its progress; return it ready.

    Blocking. Raises what prevents it.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    names = node_names(directory)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    result: dict[str, Any] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("placing", total=None)
        params = {**request, **layout_params(directory, layout)}
        nodes: dict[str, TaskID] = {}
        for document in ask(directory.control_socket, "deploy", params):
            result = document.get("result") or document["event"]
            for node in nodes.keys() - {each["node_id"] for each in result["transfers"]}:
                bar.update(nodes[node], visible=False)
            for transfer in result["transfers"]:
                node = transfer["node_id"]
                if node not in nodes:
                    nodes[node] = bar.add_task(names.of(node))
                bar.update(
                    nodes[node],
                    visible=True,
                    description=f"{names.of(node)}: {transfer_text(transfer)}",
                    completed=transfer["done_bytes"],
                    total=transfer["total_bytes"] or None,
                )
            bar.update(
                task,
                description=names.in_text(result["reason"]),
                completed=result["done_bytes"],
                total=result["total_bytes"] or None,
            )
    return result


def undeploy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name as shown by potluck ps.")],
    state: StateOption = None,
) -> None:
    """Stop serving a model and free its memory."""
    result = result_of(state_directory(state), "undeploy", {"name": name})
    note(f"{result['model_id']} is undeployed")


def ps(json: JsonOption = False, state: StateOption = None) -> None:
    """Show nodes, units, deployments and stages."""
    result = cluster_state(state_directory(state))
    if json:
        emit_json(result)
        return
    result = names_of(result["nodes"]).in_document(result)
    _print_lines(node_lines(result))
    for deployment in result["deployments"]:
        print()
        _print_lines(deployment_lines(deployment))
        _print_lines(speed_lines(deployment))
    if not result["deployments"]:
        print("\nnothing is deployed; deploy a model with potluck deploy MODEL")


def down(state: StateOption = None) -> None:
    """Hand this node's requests and stages over to other nodes, then stop its agent."""
    for document in ask(state_directory(state).control_socket, "down", {}):
        if "event" not in document:
            continue
        if document["event"]["is_alone"]:
            note("draining: finishing requests; there is no other node to hand them over to")
        else:
            note("draining: handing requests and stages over to other nodes")
    note("this node has left the cluster")


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
