"""Commands on the running cluster: deploy, undeploy, plan, ps, down."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from potluck.cli.options import (
    ContextOption,
    JsonOption,
    ModelArgument,
    StateOption,
    state_directory,
)
from potluck.cli.output import emit_json, note
from potluck.cluster.agent.control import ask
from potluck.cluster.agent.state import StateDirectory
from potluck.quantities import format_bytes

CacheOption = Annotated[
    int | None,
    typer.Option(
        "--cache",
        help="Tokens that all sequences share in the cache. Default: four full contexts.",
        show_default=False,
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="What clients call it. Default: MODEL.", show_default=False),
]


def deploy(
    model: ModelArgument,
    name: NameOption = None,
    context: ContextOption = None,
    cache: CacheOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Deploy MODEL over the cluster's nodes and wait until it can answer."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("placing", total=None)
        result: dict[str, Any] = {}
        for document in ask(
            state_directory(state).control_socket, "deploy", _request(model, name, context, cache)
        ):
            result = document.get("result") or document["event"]
            bar.update(
                task,
                description=str(result["reason"]),
                completed=result["done_bytes"],
                total=result["total_bytes"] or None,
            )
    if json:
        emit_json({"schema": "potluck.deploy/1", **result})
        return
    note(f"{result['model_id']} is ready on {len(result['stages'])} stages")
    _print_stages(result)


def plan(
    model: ModelArgument,
    context: ContextOption = None,
    cache: CacheOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show what of MODEL would go where, and why; nothing is loaded."""
    result = _result(state_directory(state), "plan", _request(model, None, context, cache))
    if json:
        emit_json({"schema": "potluck.plan/1", **result})
        return
    _print_stages(result)


def undeploy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As potluck ps shows it.")],
    state: StateOption = None,
) -> None:
    """Stop serving a model and free its memory."""
    result = _result(state_directory(state), "undeploy", {"name": name})
    note(f"{result['model_id']} is no longer deployed")


def ps(json: JsonOption = False, state: StateOption = None) -> None:
    """Show nodes, units, deployments and stages."""
    result = _result(state_directory(state), "state", {})
    if json:
        emit_json(result)
        return
    console = Console()
    nodes = Table(box=None, pad_edge=False)
    for title in ("NODE", "STATE", "ADDRESS", "HTTP", "UNIT", "MAY USE", "THREADS", "VERSION"):
        nodes.add_column(title, no_wrap=True)
    for node in result["nodes"]:
        own = " *" if node["node_id"] == result["node_id"] else ""
        for unit in node.get("units", [None]):
            nodes.add_row(
                node["node_id"] + own,
                node["state"],
                node.get("address", ""),
                node.get("http_address") or "",
                unit["unit_id"] if unit else "",
                format_bytes(unit["usable_bytes"]) if unit else "",
                str(unit["num_threads"]) if unit else "",
                node.get("version", ""),
            )
    for node in result["incompatible"]:
        nodes.add_row(node["node_id"], f"refused: wire version {node['wire_version']}")
    console.print(nodes, soft_wrap=True)
    for deployment in result["deployments"]:
        reason = f" ({deployment['reason']})" if deployment["reason"] else ""
        console.print(
            f"\n{deployment['model_id']}: {deployment['state']}{reason}, "
            f"context {deployment['context_tokens']}, "
            f"coordinator {deployment['epoch']['coordinator']}",
            highlight=False,
            soft_wrap=True,
        )
        _print_stages(deployment)
    if not result["deployments"]:
        console.print("\nnothing is deployed; potluck deploy MODEL", highlight=False)


def down(state: StateOption = None) -> None:
    """Let requests finish, hand stages over, and stop this node's agent."""
    note("draining")
    for _ in ask(state_directory(state).control_socket, "down", {}):
        pass


def _request(
    model: str, name: str | None, context: int | None, cache: int | None
) -> dict[str, object]:
    return {
        "model": _absolute(model),
        "model_id": name,
        "context_tokens": context,
        "cache_tokens": cache,
    }


def _absolute(model: str) -> str:
    """A path as other processes can read it; hub ids and ``demo`` as they are."""
    from pathlib import Path

    path = Path(model).expanduser()
    return str(path.resolve()) if model != "demo" and path.exists() else model


def _result(state: StateDirectory, method: str, params: dict[str, object]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for document in ask(state.control_socket, method, params):
        result = document.get("result") or {}
    return result


def _print_stages(deployment: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("STAGE", "NODE", "UNIT", "LAYERS", "BYTES"):
        table.add_column(title, no_wrap=True)
    last = len(deployment["stages"]) - 1
    for stage in deployment["stages"]:
        parts = [f"[{stage['start_layer']}, {stage['end_layer']})"]
        if stage["stage"] == 0:
            parts.insert(0, "embedding +")
        if stage["stage"] == last:
            parts.append("+ head")
        table.add_row(
            str(stage["stage"]),
            stage["node_id"],
            stage["unit_id"],
            " ".join(parts).replace("[", "\\["),
            format_bytes(stage["num_bytes"]),
        )
    console = Console()
    console.print(table, soft_wrap=True)
    for rejection in deployment["rejections"]:
        console.print(
            f"not used: {rejection['node_id']} {rejection['unit_id']}: {rejection['reason']}",
            highlight=False,
            soft_wrap=True,
        )
