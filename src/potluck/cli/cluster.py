"""Commands on the running cluster: deploy, undeploy, ps, down."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from potluck.cli.options import JsonOption, ModelArgument, StateOption, state_directory
from potluck.cli.output import emit, emit_json, note, print_lines, progress_bar
from potluck.cli.placing import (
    cluster_state,
    deploy_params,
    layout_params,
    node_names,
    result_of,
)
from potluck.cli.spec_options import takes_settings
from potluck.cli.tables import (
    deployment_lines,
    is_led,
    node_lines,
    stage_lines,
    table,
    transfer_text,
)
from potluck.cluster.agent.asking import ask
from potluck.types.node_names import names_of
from potluck.types.quantities import format_count, format_number, format_seconds

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
    print_lines(stage_lines(node_names(directory).in_document(result)))


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
    from rich.progress import DownloadColumn

    names = node_names(directory)
    result: dict[str, Any] = {}
    with progress_bar(DownloadColumn(binary_units=True)) as bar:
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
    emit(result, _cluster_lines(result), as_json=json)


def _cluster_lines(cluster: dict[str, Any]) -> Iterator[str]:
    named = names_of(cluster["nodes"]).in_document(cluster)
    yield from node_lines(named)
    for deployment in named["deployments"]:
        yield ""
        yield from deployment_lines(deployment)
        yield from speed_lines(deployment)
    if not named["deployments"]:
        yield ""
        yield "nothing is deployed; deploy a model with potluck deploy MODEL"


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


def speed_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Yield measured speeds, with predictions in parentheses; nothing if neither is known."""
    prediction = deployment["prediction"]
    measured = deployment["measured"]
    stages = deployment["stages"]
    times = [value for stage in stages for value in stage["measured"].values()]
    if prediction is None and not any(each is not None for each in (*measured.values(), *times)):
        return
    yield "speed, measured (predicted):"
    if stages:
        yield from table([_header(prediction), *(_row(stage, prediction) for stage in stages)])
    yield from _total_lines(prediction or {}, measured)


def _header(prediction: Mapping[str, Any] | None) -> list[str]:
    loaded = _loaded_sequences(prediction)
    return ["STAGE", "STEP OF 1", *([f"STEP OF {loaded}"] if loaded else []), "PROMPT TOKEN", "HOP"]


def _row(stage: Mapping[str, Any], prediction: Mapping[str, Any] | None) -> list[str]:
    names = ["decode_seconds", "loaded_seconds", "prefill_seconds_per_token"]
    if not _loaded_sequences(prediction):
        names.remove("loaded_seconds")
    measured, predicted = stage["measured"], stage["predicted"] or {}
    times = [_beside(measured[name], predicted.get(name), format_seconds) for name in names]
    # Members of a group exchange what they compute during a step; only their leader sends it on.
    hop = None if is_led(stage) else predicted.get("hop_seconds")
    return [str(stage["stage"]), *times, _beside(None, hop, format_seconds)]


def _loaded_sequences(prediction: Mapping[str, Any] | None) -> int | None:
    """Return how many sequences a step has when all streams decode; None if that is one."""
    if prediction is None:
        return None
    count = math.ceil(prediction["num_streams"] / prediction["steps_in_flight"])
    return count if count > 1 else None


def _beside(measured: float | None, predicted: float | None, shown: Callable[[float], str]) -> str:
    """Return a measured value, with the predicted one in parentheses if there is one."""
    text = "-" if measured is None else shown(measured)
    return text if predicted is None else f"{text} ({shown(predicted)})"


def _total_lines(prediction: Mapping[str, Any], measured: Mapping[str, Any]) -> Iterator[str]:
    alone = (measured["tokens_per_second"], prediction.get("tokens_per_second"))
    margin = f", ± {prediction['margin']:.0%}" if prediction else ""
    if alone != (None, None):
        yield f"1 stream: {_beside(*alone, format_number)} tokens/s{margin}"
    num_measured, num_predicted = measured["num_streams"], prediction.get("num_streams")
    total, expected = measured["total_tokens_per_second"], prediction.get("total_tokens_per_second")
    if total is not None and num_measured != num_predicted:
        yield f"{num_measured} streams: {_beside(total, None, format_number)} tokens/s"
        total = None
    if num_predicted is not None and num_predicted > 1:
        yield f"{num_predicted} streams: {_beside(total, expected, format_number)} tokens/s{margin}"
    if prediction:
        seconds = format_seconds(prediction["first_token_seconds"])
        yield f"first token of a prompt of {prediction['prompt_tokens']} tokens: ({seconds})"
    if number := measured["num_first_tokens"]:
        # Not beside the prediction: these prompts had other lengths, and some requests waited.
        seconds = format_seconds(measured["first_token_seconds"])
        requests = format_count(number, "request")
        yield f"first token, mean of {requests} of any length, with queueing: {seconds}"
