"""``potluck plan``: where a model would be placed, its predicted speed, and why."""

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
    TensorParallelOption,
    deploy_params,
    draft_param,
    layout_params,
    result_of,
)
from potluck.cli.plan_output import plan_lines

FleetOption = Annotated[
    Path | None,
    typer.Option(
        "--fleet",
        metavar="FILE",
        help="Plan for the machines described in this file (TOML); needs no running agent.",
        show_default=False,
    ),
]


PlanDraftOption = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="ngram|off|MODEL",
        help="What the deployment would draft with. MODEL: plan this draft model first, and leave "
        "its memory to it; ngram and off need no memory. Default: the setting draft, or ngram.",
        show_default=False,
    ),
]


def plan(
    model: ModelArgument,
    objective: ObjectiveOption = None,
    streams: StreamsOption = None,
    tensor_parallel: TensorParallelOption = None,
    layout: LayoutOption = None,
    fleet: FleetOption = None,
    context: ContextOption = None,
    cache: CacheOption = None,
    states: StatesOption = None,
    quant: QuantOption = Quant.NONE,
    mmap: MmapOption = False,
    arithmetic: ArithmeticOption = None,
    draft: PlanDraftOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show where MODEL would be placed, its predicted speed, and why; nothing is loaded."""
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
        tensor_parallel=tensor_parallel,
    )
    params["draft"] = draft_param(draft)
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
