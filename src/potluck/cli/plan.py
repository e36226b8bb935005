"""``potluck plan``: where a model would be placed, its predicted speed, and why."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from potluck.cli.options import JsonOption, ModelArgument, StateOption, state_directory
from potluck.cli.output import emit_json, print_lines
from potluck.cli.placing import deploy_params, layout_params, result_of
from potluck.cli.plan_output import plan_lines
from potluck.cli.spec_options import takes_settings

FleetOption = Annotated[
    Path | None,
    typer.Option(
        "--fleet",
        metavar="FILE",
        help="Plan for the machines described in this file (TOML); needs no running agent.",
        show_default=False,
    ),
]


PLANNED = (
    "objective",
    "num_streams",
    "tensor_parallel",
    "layout",
    "context_tokens",
    "cache_tokens",
    "num_states",
    "quantization",
    "is_mapped",
    "arithmetic",
    "draft",
)
"""The settings on which a plan depends."""


@takes_settings(only=PLANNED)
def plan(
    model: ModelArgument,
    *,
    settings: Mapping[str, Any],
    fleet: FleetOption = None,
    json: JsonOption = False,
    state: StateOption = None,
) -> None:
    """Show where MODEL would be placed, its predicted speed, and why; nothing is loaded.

    With --draft MODEL, the draft model is planned first, and its memory is left to it.
    """
    params, layout = deploy_params(model, settings), settings["layout"]
    result: dict[str, Any]
    if fleet is None:
        directory = state_directory(state)
        result = result_of(directory, "plan", params | layout_params(directory, layout))
    else:
        from potluck.placement.fleet.planning import plan_fleet

        result = msgspec.to_builtins(plan_fleet(fleet, params, layout))
    if json:
        emit_json(result)
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print_lines(plan_lines(result, width))
