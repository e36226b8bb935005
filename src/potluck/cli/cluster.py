"""Commands on the running cluster: deploy, undeploy, ps, down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli.addresses import parse_size
from potluck.cli.options import (
    ArithmeticOption,
    ContextOption,
    DraftOption,
    JsonOption,
    MmapOption,
    ModelArgument,
    NoStoreOption,
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
    TensorParallelOption,
    cluster_state,
    deploy_params,
    draft_param,
    layout_params,
    node_names,
    result_of,
)
from potluck.cli.speed_lines import speed_lines
from potluck.cli.tables import deployment_lines, node_lines, stage_lines, transfer_text
from potluck.cluster.agent.asking import ask
from potluck.errors import ParameterError
from potluck.quantities import format_count
from potluck.types.choices import ArithmeticChoice, Objective, Rebalance
from potluck.types.node_names import names_of
from potluck.types.ranges import (
    DEFAULT_RECOVERY_WAIT_SECONDS,
    DEFAULT_TARGET_STEP_MS,
    require_number,
)

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
RecoveryWaitOption = Annotated[
    float | None,
    typer.Option(
        "--recovery-wait",
        metavar="SECONDS",
        help="How long requests wait for the model to recover after nodes are lost. Default: "
        f"{DEFAULT_RECOVERY_WAIT_SECONDS:g}.",
        show_default=False,
    ),
]
SparesOption = Annotated[
    int | None,
    typer.Option(
        "--spares",
        metavar="N",
        help="Keep the weights of every stage ready on N additional nodes. Default: 0.",
        show_default=False,
    ),
]
RebalanceOption = Annotated[
    Rebalance | None,
    typer.Option(
        "--rebalance",
        help="Whether the model moves to a much faster plan when there is one. auto: "
        "automatically; ask: potluck ps shows the plan and potluck rebalance applies it; "
        "never. Default: auto.",
        show_default=False,
    ),
]
PrefixCacheOption = Annotated[
    bool | None,
    typer.Option(
        "--prefix-cache/--no-prefix-cache",
        help="Reuse cached results for prompts that share a prefix. Default: on.",
        show_default=False,
    ),
]
CacheDiskOption = Annotated[
    str | None,
    typer.Option(
        "--cache-disk",
        metavar="BYTES",
        help="Disk space per stage for cached prompts, for example 20GiB, so that the cache "
        "survives a restart. The data is not encrypted. Default: 0.",
        show_default=False,
    ),
]
ToolFormatOption = Annotated[
    str | None,
    typer.Option(
        "--tool-format",
        metavar="NAME",
        help="Format in which the model writes tool calls. Default: detected from its chat "
        "template.",
        show_default=False,
    ),
]
TargetStepOption = Annotated[
    float | None,
    typer.Option(
        "--target-step-ms",
        metavar="MS",
        help="Target time between tokens while other prompts are being processed; prompts are "
        f"split to meet it. Default: {DEFAULT_TARGET_STEP_MS:g}.",
        show_default=False,
    ),
]


def deploy(
    model: ModelArgument,
    name: NameOption = None,
    replace: ReplaceOption = False,
    objective: ObjectiveOption = None,
    streams: StreamsOption = None,
    tensor_parallel: TensorParallelOption = None,
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
    draft: DraftOption = None,
    recovery_wait: RecoveryWaitOption = None,
    spares: SparesOption = None,
    no_store: NoStoreOption = False,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Deploy MODEL across the cluster and wait until it is ready."""
    directory = state_directory(state)
    request = deploy_request(
        model,
        name=name,
        replace=replace,
        objective=objective,
        streams=streams,
        tensor_parallel=tensor_parallel,
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
        draft=draft,
        recovery_wait=recovery_wait,
        spares=spares,
        no_store=no_store,
    )
    try:
        result = deployed(directory, request, layout)
    except KeyboardInterrupt:
        note("interrupted: removing what was deployed so far")
        raise typer.Exit(130) from None
    if json:
        emit_json({"schema": "potluck.deploy/1", **result})
        return
    note(f"{result['model_id']} is ready on {format_count(len(result['stages']), 'stage')}")
    _print_lines(stage_lines(node_names(directory).in_document(result)))


def deploy_request(
    model: str,
    *,
    name: str | None,
    replace: bool,
    objective: Objective | None,
    streams: int | None,
    tensor_parallel: str | None,
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
    draft: str | None,
    recovery_wait: float | None,
    spares: int | None,
    no_store: bool,
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
        tensor_parallel=tensor_parallel,
    )
    request |= _upkeep(recovery_wait, spares, rebalance)
    request |= _serving(
        prefix_cache=prefix_cache, target_step_ms=target_step_ms, cache_disk=cache_disk
    )
    request |= {"is_named": name is not None, "replaces": replace}
    request["draft"] = draft_param(draft)
    request["keep_weights"] = not no_store
    if tool_format is not None:
        request["tool_format"] = tool_format
    return request


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


def _upkeep(
    wait_seconds: float | None, spares: int | None, rebalance: Rebalance | None
) -> dict[str, object]:
    """What the agent is asked to do when nodes change. Raises ``ParameterError``."""
    chosen = settings()
    if wait_seconds is None:
        wait_seconds = chosen.recovery_wait_seconds
    params: dict[str, object] = {
        "num_spares": chosen.spares if spares is None else spares,
        "rebalance": (rebalance or chosen.rebalance).value,
        "rebalance_threshold": chosen.rebalance_threshold,
    }
    require_number("spares", params["num_spares"])
    if wait_seconds is not None:
        require_number("recovery_wait", wait_seconds)
        params["recovery_wait_seconds"] = wait_seconds
    return params


def _serving(
    *, prefix_cache: bool | None, target_step_ms: float | None, cache_disk: str | None
) -> dict[str, object]:
    """How requests are served. Raises ``ParameterError``."""
    chosen = settings()
    params: dict[str, object] = {
        "prefix_cache": chosen.prefix_cache if prefix_cache is None else prefix_cache,
        "target_step_ms": chosen.target_step_ms if target_step_ms is None else target_step_ms,
    }
    require_number("target_step_ms", params["target_step_ms"])
    disk_bytes = (
        chosen.cache_disk_bytes if cache_disk is None else parse_size(cache_disk, "cache-disk")
    )
    require_number("cache_disk", disk_bytes)
    if cache_disk is not None and disk_bytes and not params["prefix_cache"]:
        raise ParameterError(
            "cache_disk",
            "--cache-disk needs the prefix cache, which is off",
            hint="omit --cache-disk, or turn the prefix cache on with --prefix-cache",
        )
    params["cache_disk_bytes"] = disk_bytes if params["prefix_cache"] else 0
    return params


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
