"""``potluck rebalance``: move deployed models to faster plans, or show the gain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from potluck.cli.options import JsonOption, StateOption, state_directory
from potluck.cli.output import emit_json, note, print_lines
from potluck.cli.placing import node_names
from potluck.cli.tables import table
from potluck.cluster.agent.asking import ask
from potluck.types.quantities import format_bytes, format_number, format_seconds

_OUTCOMES = {
    "stays": "stays as it is",
    "possible": "could move",
    "moved": "has moved",
    "failed": "could not be moved",
}


def rebalance(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name as shown by potluck ps. Default: all deployed models.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show the better plan and its cost without moving anything."
        ),
    ] = False,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Move deployed models to faster plans now, or show the predicted gain.

    Where memory allows, new stages are loaded alongside those in use. Streams continue.
    """
    directory = state_directory(state)
    result: dict[str, Any] = {}
    request = {"name": name, "is_dry_run": dry_run}
    for document in ask(directory.control_socket, "rebalance", request):
        if "event" in document:
            event = document["event"]
            note(f"{event['model_id']}: {event['doing']}")
        result = document.get("result") or result
    if json:
        emit_json(result)
    else:
        if not result["deployments"]:
            note("nothing is deployed")
        names = node_names(directory)
        for index, deployment in enumerate(names.in_document(result["deployments"])):
            if index:
                print()
            print_lines(rebalance_lines(deployment))
    if any(each["outcome"] == "failed" for each in result["deployments"]):
        raise typer.Exit(1)


def rebalance_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of one deployment of a document of schema ``potluck.rebalance/1``."""
    better = deployment["better"]
    reason = f": {deployment['reason']}" if deployment["reason"] else ""
    yield f"{deployment['model_id']} {_OUTCOMES[deployment['outcome']]}{reason}"
    yield from _plan_lines("before" if better else "now", deployment["in_force"])
    if better is None:
        return
    yield from _plan_lines("after", better)
    yield _gain_line(better["gain"], better["net_gain"])
    meanwhile = (
        "the model is unavailable meanwhile" if better["needs_room"] else "while serving continues"
    )
    yield (
        f"cost: {format_bytes(better['load_bytes'])} to load in about "
        f"{format_seconds(better['load_seconds'])}, {meanwhile}; "
        f"a pause of about {format_seconds(better['pause_seconds'])}"
    )


def _gain_line(gain: float, net_gain: float) -> str:
    """Return how much faster the better plan is, or slower: by memory, or a layout, it may be."""
    if gain < 0.0:
        return f"slower: {-gain:.0%}"
    if net_gain <= -1.0:  # the plan would not last
        return f"gain: {gain:+.0%}"
    if net_gain < 0.0:
        return f"gain: {gain:+.0%}, less than the cost of the move"
    return f"gain: {gain:+.0%}, {net_gain:+.0%} after the cost of the move"


def _plan_lines(title: str, plan: Mapping[str, Any]) -> Iterator[str]:
    prediction = plan["prediction"]
    if prediction is None:
        yield f"{title}:"
    else:
        count, rate = prediction["num_streams"], prediction["total_tokens_per_second"]
        total = f", {format_number(rate)} with {count} streams" if count > 1 else ""
        one = format_number(prediction["tokens_per_second"])
        yield (
            f"{title}: {one} tokens/s with 1 stream{total}, "
            f"predicted within {prediction['margin']:.0%}"
        )
    rows = [("STAGE", "NODE", "UNIT", "LAYERS", "STEP")]
    rows += [
        (
            str(stage["stage"]),
            stage["node_id"],
            stage["unit_id"],
            f"[{stage['start_layer']}, {stage['end_layer']})",
            "-" if stage["decode_seconds"] is None else format_seconds(stage["decode_seconds"]),
        )
        for stage in plan["stages"]
    ]
    yield from table(rows)
