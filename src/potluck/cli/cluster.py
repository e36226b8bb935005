"""Commands on the running cluster: deploy, undeploy, ps, down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from potluck.cli.addresses import parse_size
from potluck.cli.options import (
    ArithmeticOption,
    ContextOption,
    JsonOption,
    MmapOption,
    ModelArgument,
    Quant,
    QuantOption,
    StateOption,
    StatesOption,
    settings,
    state_directory,
)
from potluck.cli.output import emit_json, note
from potluck.cli.placing import (
    CacheOption,
    LayoutOption,
    ObjectiveOption,
    StreamsOption,
    cluster_state,
    deploy_params,
    layout_params,
    result_of,
)
from potluck.cli.speed_lines import speed_lines
from potluck.cli.tables import deployment_lines, node_lines, stage_lines
from potluck.cluster.agent.control import ask
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.calls import DEFAULT_RECOVERY_WAIT_SECONDS
from potluck.errors import ParameterError
from potluck.types.arithmetic import ArithmeticChoice
from potluck.types.placement import Objective, Rebalance
from potluck.types.ranges import DEFAULT_TARGET_STEP_MS, require_number

NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help="What clients call it. Default: MODEL, and the last part of a path.",
        show_default=False,
    ),
]
RecoveryWaitOption = Annotated[
    float | None,
    typer.Option(
        "--recovery-wait",
        metavar="SECONDS",
        help="How long requests wait while machines are lost and the model is not ready. "
        f"Default: {DEFAULT_RECOVERY_WAIT_SECONDS:g}.",
        show_default=False,
    ),
]
SparesOption = Annotated[
    int | None,
    typer.Option(
        "--spares",
        metavar="N",
        help="Keep every stage's weights ready on N further nodes. Default: 0.",
        show_default=False,
    ),
]
RebalanceOption = Annotated[
    Rebalance | None,
    typer.Option(
        "--rebalance",
        help="Whether the model moves when a much faster plan is found. auto: by itself; ask: "
        "potluck ps shows it, and potluck rebalance carries it out; never. Default: auto.",
        show_default=False,
    ),
]
PrefixCacheOption = Annotated[
    bool | None,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        help="Whether prompts that begin alike share what the cache has of it. Default: they do.",
        show_default=False,
    ),
]
CacheDiskOption = Annotated[
    str | None,
    typer.Option(
        "--cache-disk",
        metavar="BYTES",
        help="Every stage keeps that much of its cache on disk, such as 20GiB, for prompts that "
        "come again after a restart. They are not encrypted. Default: 0.",
        show_default=False,
    ),
]
ToolFormatOption = Annotated[
    str | None,
    typer.Option(
        "--tool-format",
        metavar="NAME",
        help="The format in which the model writes calls of tools. Default: as its chat template"
        " shows.",
        show_default=False,
    ),
]
TargetStepOption = Annotated[
    float | None,
    typer.Option(
        "--target-step-ms",
        metavar="MS",
        help="Time between tokens while other prompts are read, which are cut for that. "
        f"Default: {DEFAULT_TARGET_STEP_MS:g}.",
        show_default=False,
    ),
]


def deploy(
    model: ModelArgument,
    name: NameOption = None,
    objective: ObjectiveOption = None,
    streams: StreamsOption = None,
    layout: LayoutOption = None,
    rebalance: RebalanceOption = None,
    context: ContextOption = None,
    cache: CacheOption = None,
    states: StatesOption = None,
    prefix_cache: PrefixCacheOption = None,
    target_step_ms: TargetStepOption = None,
    cache_disk: CacheDiskOption = None,
    tool_format: ToolFormatOption = None,
    quant: QuantOption = Quant.NONE,
    mmap: MmapOption = False,
    arithmetic: ArithmeticOption = None,
    recovery_wait: RecoveryWaitOption = None,
    spares: SparesOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Deploy MODEL over the cluster's nodes and wait until it can answer."""
    directory = state_directory(state)
    request = deploy_request(
        model,
        name=name,
        objective=objective,
        streams=streams,
        rebalance=rebalance,
        context=context,
        cache=cache,
        states=states,
        prefix_cache=prefix_cache,
        target_step_ms=target_step_ms,
        cache_disk=cache_disk,
        tool_format=tool_format,
        quant=quant,
        mmap=mmap,
        arithmetic=arithmetic,
        recovery_wait=recovery_wait,
        spares=spares,
    )
    try:
        result = deployed(directory, request, layout)
    except KeyboardInterrupt:
        note("interrupted: what was deployed so far is being undone")
        raise typer.Exit(130) from None
    if json:
        emit_json({"schema": "potluck.deploy/1", **result})
        return
    note(f"{result['model_id']} is ready on {len(result['stages'])} stages")
    _print_lines(stage_lines(result))


def deploy_request(
    model: str,
    *,
    name: str | None,
    objective: Objective | None,
    streams: int | None,
    rebalance: Rebalance | None,
    context: int | None,
    cache: int | None,
    states: int | None,
    prefix_cache: bool | None,
    target_step_ms: float | None,
    cache_disk: str | None,
    tool_format: str | None,
    quant: Quant,
    mmap: bool,
    arithmetic: ArithmeticChoice | None,
    recovery_wait: float | None,
    spares: int | None,
) -> dict[str, Any]:
    """Return what the agent is asked to deploy, less the layout. Raise ``ParameterError``."""
    request = deploy_params(
        model,
        name=name,
        context=context,
        cache=cache,
        states=states,
        quant=quant,
        mmap=mmap,
        arithmetic=arithmetic,
        objective=objective,
        streams=streams,
    )
    request |= _upkeep(recovery_wait, spares, rebalance)
    request |= _serving(
        prefix_cache=prefix_cache, target_step_ms=target_step_ms, cache_disk=cache_disk
    )
    if tool_format is not None:
        request["tool_format"] = tool_format
    return request


def deployed(
    directory: StateDirectory, request: Mapping[str, Any], layout: str | None
) -> dict[str, Any]:
    """Have the agent of ``directory`` deploy a model, and show its progress; return it ready.

    Blocking. Raises what prevents it.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    result: dict[str, Any] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("placing", total=None)
        asked = {**request, **layout_params(directory, layout)}
        for document in ask(directory.control_socket, "deploy", asked):
            result = document.get("result") or document["event"]
            bar.update(
                task,
                description=str(result["reason"]),
                completed=result["done_bytes"],
                total=result["total_bytes"] or None,
            )
    return result


def undeploy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As potluck ps shows it.")],
    state: StateOption = None,
) -> None:
    """Stop serving a model and free its memory."""
    result = result_of(state_directory(state), "undeploy", {"name": name})
    note(f"{result['model_id']} is no longer deployed")


def ps(json: JsonOption = False, state: StateOption = None) -> None:
    """Show nodes, units, deployments and stages."""
    result = cluster_state(state_directory(state))
    if json:
        emit_json(result)
        return
    _print_lines(node_lines(result))
    for deployment in result["deployments"]:
        print()
        _print_lines(deployment_lines(deployment))
        _print_lines(speed_lines(deployment))
    if not result["deployments"]:
        print("\nnothing is deployed; potluck deploy MODEL")


def down(state: StateOption = None) -> None:
    """Hand this node's requests and stages over to the others, and stop its agent."""
    for document in ask(state_directory(state).control_socket, "down", {}):
        if "event" in document:
            note("draining: requests and stages are handed over to the other nodes")
    note("this node has left the cluster")


def _upkeep(
    wait_seconds: float | None, spares: int | None, rebalance: Rebalance | None
) -> dict[str, object]:
    """What the agent is asked to do when nodes change. Raises ``ParameterError``."""
    chosen = settings()
    if wait_seconds is None:
        wait_seconds = chosen.recovery_wait_seconds
    asked: dict[str, object] = {
        "num_spares": chosen.spares if spares is None else spares,
        "rebalance": (rebalance or chosen.rebalance).value,
        "rebalance_threshold": chosen.rebalance_threshold,
    }
    require_number("spares", asked["num_spares"])
    if wait_seconds is not None:
        require_number("recovery_wait", wait_seconds)
        asked["recovery_wait_seconds"] = wait_seconds
    return asked


def _serving(
    *, prefix_cache: bool | None, target_step_ms: float | None, cache_disk: str | None
) -> dict[str, object]:
    """How requests are served. Raises ``ParameterError``."""
    chosen = settings()
    asked: dict[str, object] = {
        "prefix_cache": chosen.prefix_cache if prefix_cache is None else prefix_cache,
        "target_step_ms": chosen.target_step_ms if target_step_ms is None else target_step_ms,
    }
    require_number("target_step_ms", asked["target_step_ms"])
    disk_bytes = (
        chosen.cache_disk_bytes if cache_disk is None else parse_size(cache_disk, "cache-disk")
    )
    require_number("cache_disk", disk_bytes)
    if cache_disk is not None and disk_bytes and not asked["prefix_cache"]:
        raise ParameterError(
            "cache_disk",
            "--cache-disk keeps what the prefix cache shares, and that is off",
            hint="leave out --cache-disk, or turn it on with --prefix-cache",
        )
    asked["cache_disk_bytes"] = disk_bytes if asked["prefix_cache"] else 0
    return asked


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
