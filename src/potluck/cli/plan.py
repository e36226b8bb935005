"""``potluck plan``: what of a model would go where, how fast that would be, and why."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

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
    state_directory,
)
from potluck.cli.output import emit_json
from potluck.cli.placing import (
    CacheOption,
    LayoutOption,
    ObjectiveOption,
    StreamsOption,
    deploy_params,
    layout_params,
    result_of,
)
from potluck.cli.plan_output import plan_lines

FleetOption = Annotated[
    Path | None,
    typer.Option(
        "--fleet",
        metavar="FILE",
        help="Plan for the machines that this file (TOML) describes; no agent has to run.",
        show_default=False,
    ),
]


def plan(
    model: ModelArgument,
    objective: ObjectiveOption = None,
    streams: StreamsOption = None,
    layout: LayoutOption = None,
    fleet: FleetOption = None,
    context: ContextOption = None,
    cache: CacheOption = None,
    states: StatesOption = None,
    quant: QuantOption = Quant.NONE,
    mmap: MmapOption = False,
    arithmetic: ArithmeticOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show what of MODEL would go where, how fast it would be, and why; nothing is loaded."""
    params = deploy_params(
        model,
        context=context,
        cache=cache,
        states=states,
        quant=quant,
        mmap=mmap,
        arithmetic=arithmetic,
        objective=objective,
        streams=streams,
    )
    result: dict[str, Any]
    if fleet is None:
        directory = state_directory(state)
        result = result_of(directory, "plan", params | layout_params(directory, layout))
    else:
        from potluck.fleet.planning import plan_fleet

        result = plan_fleet(fleet, params, layout)
    if json:
        emit_json({"schema": "potluck.plan/1", **result})
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in plan_lines(result, width):
        print(line)
