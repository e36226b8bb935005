"""``potluck plan``: where a model would be placed, its predicted speed, and why.

The text is the same for a cluster and for a fleet file. Tables take at most 80 columns where names
allow it. Other lines are as long as they are, or wrapped where there is a terminal.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from potluck.cli.options import JsonOption, ModelArgument, StateOption, state_directory
from potluck.cli.output import emit
from potluck.cli.placing import deploy_params, layout_params, result_of
from potluck.cli.spec_options import takes_settings
from potluck.cli.tables import (
    is_led,
    mapped_text,
    memory_lines,
    remark_lines,
    stage_memory,
    state_lines,
    table,
)
from potluck.types.node_names import NodeNames, names_of
from potluck.types.quantities import (
    format_bytes,
    format_few,
    format_number,
    format_percent,
    format_seconds,
)

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

_NUM_NAMES = 4
"""The number of names shown of units that are unused for one reason; the others are counted."""

_NUM_STAGES = 8
"""The number of stages, over all pipelines, whose layouts are shown."""

_OBJECTIVES = {
    "latency": "least time per token of one stream",
    "throughput": "most tokens per second",
    "memory": "each unit filled in proportion to its memory",
}
_BASES = {
    "served": "measured while serving",
    "measured": "measured",
    "table": "configured, not measured",
    "assumed": "partly assumed",
}


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
    is_on_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_on_terminal else None
    emit(result, plan_lines(result, width), as_json=json)


def plan_lines(plan: Mapping[str, Any], width: int | None = None) -> Iterator[str]:
    """Return the lines of a document of schema ``potluck.plan/1``.

    All lines but those of the table of stages are wrapped to ``width`` columns; None wraps nothing.
    """
    names = names_of(plan["nodes"])
    yield from table(list(_stage_rows(plan, names)))
    yield ""
    rows = list(_prediction_rows(plan, names))
    indent = max(len(title) for title, _ in rows) + 2
    for title, text in rows:
        yield from _wrapped(f"{title.ljust(indent)}{text}", width, indent)
    yield ""
    for line in chain(
        _facts(plan),
        _draft_lines(plan, names),
        state_lines(plan),
        memory_lines(plan),
        remark_lines(plan),
        _unused_lines(plan["rejections"], names),
    ):
        yield from _wrapped(line, width)


def _wrapped(line: str, width: int | None, indent: int = 2) -> Iterator[str]:
    if width is None or len(line) <= width:
        yield line
        return
    yield from textwrap.wrap(
        line,
        max(width, 2 * indent),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def _stage_rows(plan: Mapping[str, Any], names: NodeNames) -> Iterator[tuple[str, ...]]:
    """Yield rows for the stages; with predictions, also the coordinator and every hop."""
    stages, prediction = plan["stages"], plan["prediction"]
    header = ("STAGE", "NODE", "UNIT", "LAYERS", "MEMORY", "STEP ms", "HOP ms")
    width = len(header) if prediction else len(header) - 2
    yield header[:width]
    if prediction:
        coordinator = names.of(plan["coordinator"])
        entry = _milliseconds(prediction["entry_seconds"])
        yield ("", coordinator, "coordinator", "", "", "", entry)
    last = max(stage["stage"] for stage in stages if not is_led(stage))
    for index, stage in enumerate(stages):
        layers = f"[{stage['start_layer']}, {stage['end_layer']})"
        layers = f"{'embed ' if index == 0 else ''}{layers}{' head' if index == last else ''}"
        if is_led(stage):
            layers = _share(stage)
        elif stage["part"]:
            layers = f"{_share(stage)} of {layers}"
        times: tuple[str, ...] = ()
        # Members take as long as their leader, whose times they are.
        if (predicted := stage["predicted"]) and not is_led(stage):
            times = (
                _milliseconds(predicted["decode_seconds"]),
                _milliseconds(predicted["hop_seconds"]),
            )
        yield (
            str(stage["stage"]),
            names.of(stage["node_id"]),
            stage["unit_id"],
            layers,
            _memory_text(stage),
            *times,
            *[""] * (width - 5 - len(times)),
        )


def _share(stage: Mapping[str, Any]) -> str:
    """Return the part of the matrices that a member of a group has, such as ``2/4``."""
    part = stage["part"]
    return f"{part['shares'][part['member']]}/{sum(part['shares'])}"


def _milliseconds(seconds: float) -> str:
    return format_number(seconds * 1000)


def _memory_text(stage: Mapping[str, Any]) -> str:
    """Return how much of its unit's memory a stage takes: ``2.1/15 GiB``."""
    memory = stage_memory(stage)
    used = format_bytes(memory.device_bytes if memory.is_on_device else memory.total_bytes)
    if stage["usable_bytes"] is None:
        return used
    usable = format_bytes(stage["usable_bytes"])
    number, _, unit = used.partition(" ")
    return f"{number if usable.endswith(f' {unit}') else used}/{usable}"


def _prediction_rows(plan: Mapping[str, Any], names: NodeNames) -> Iterator[tuple[str, str]]:
    prediction = plan["prediction"]
    if prediction is None:
        yield "speed", "no prediction"
        return
    yield (
        "1 stream",
        f"{format_number(prediction['tokens_per_second'])} tokens/s, "
        f"{format_seconds(prediction['token_seconds'])} per token",
    )
    if (count := prediction["num_streams"]) > 1:
        in_flight = prediction["steps_in_flight"]
        steps = "one step at a time" if in_flight == 1 else f"{in_flight} steps in flight"
        yield (
            f"{count} streams",
            f"{format_number(prediction['total_tokens_per_second'])} tokens/s together, {steps}; "
            f"{_bottleneck(prediction)}",
        )
    yield (
        "first token",
        f"after {format_seconds(prediction['first_token_seconds'])} "
        f"for a prompt of {prediction['prompt_tokens']} tokens",
    )
    yield from _exchange_rows(plan)
    links = f"; links are {_BASES[plan['link_basis']]}" if plan["link_basis"] else ""
    yield "accuracy", f"within {format_percent(prediction['margin'])}: {_basis(plan)}{links}"
    # For a plan of one unit, the alternative is another unit.
    if (fewer := plan["one_unit_fewer"]) and len(plan["stages"]) > 1:
        yield "one unit fewer", _fewer(plan, fewer, names)
    if more := plan["one_unit_more"]:
        yield "one unit more", _more(plan, more, names)
    if other := plan["without_groups"]:
        yield "no groups", _other(plan, other, names)
    if other := plan["in_groups"]:
        exchanging = format_seconds(other["exchange_seconds"])
        yield (
            "in groups",
            f"{_other(plan, other, names)}, {exchanging} of a token in exchanges",
        )
    if several := plan["side_by_side"]:
        yield from _side_by_side_rows(prediction, several)


def _exchange_rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the share of a token's time that groups spend exchanging results."""
    leaders = [stage for stage in plan["stages"] if stage["part"] and not is_led(stage)]
    seconds = sum(stage["predicted"]["exchange_seconds"] for stage in leaders)
    if not leaders:
        return
    units = [len(stage["part"]["shares"]) for stage in leaders]
    share = format_percent(seconds / plan["prediction"]["token_seconds"])
    groups = f"a group of {units[0]} units divides"
    if len(units) > 1:
        groups = f"{len(units)} groups of {format_few(sorted({*map(str, units)}), 4)} units divide"
    yield "exchanges", f"{format_seconds(seconds)} per token ({share}): {groups} the matrices"


def _other(plan: Mapping[str, Any], other: Mapping[str, Any], names: NodeNames) -> str:
    """Describe how much better or worse a plan with, or without, groups is."""
    stages = [{**stage, "is_added": False} for stage in other["stages"]]
    return _change(plan, {**other, "stages": stages}, names)


def _side_by_side_rows(
    prediction: Mapping[str, Any], several: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield the rate of several pipelines, and the layouts of the first ones."""
    pipelines, rate = several["pipelines"], several["total_tokens_per_second"]
    gain = rate / prediction["total_tokens_per_second"] - 1
    yield (
        "side by side",
        f"{len(pipelines)} pipelines: {format_number(rate)} tokens/s together "
        f"(+{format_percent(gain)}), deployed as {len(pipelines)} models",
    )
    shown: list[str] = []
    num_stages = 0
    for each in pipelines:
        parts = each["layout"].split(",")
        num_stages += len(parts)
        if shown and num_stages > _NUM_STAGES:
            break
        others = len(parts) - _NUM_STAGES
        cut_short = f",… ({others} more)" if others > 0 else ""
        shown.append(f"--layout {','.join(parts[:_NUM_STAGES])}{cut_short}")
    others = len(pipelines) - len(shown)
    yield "", "; ".join([*shown, *([f"{others} more with --json"] if others else [])])


def _bottleneck(prediction: Mapping[str, Any]) -> str:
    if prediction["bottleneck"] is not None:
        return f"stage {prediction['bottleneck']} is the bottleneck"
    return "the round trip through all stages is the bottleneck"


def _basis(plan: Mapping[str, Any]) -> str:
    """Return the basis of the predicted times: ``stage 0 measured; stages 1, 2 assumed, …``."""
    stages_of: dict[str, list[str]] = {}
    for stage in plan["stages"]:
        stages_of.setdefault(stage["predicted"]["basis"], []).append(str(stage["stage"]))
    if len(stages_of) == 1:
        return f"speeds are {_BASES[next(iter(stages_of))]}"
    return "speeds are " + "; ".join(
        f"{_BASES[basis]} for {'stage' if len(stages) == 1 else 'stages'} "
        f"{format_few(stages, 2 * _NUM_NAMES)}"
        for basis, stages in stages_of.items()
    )


def _fewer(plan: Mapping[str, Any], fewer: Mapping[str, Any], names: NodeNames) -> str:
    text = f"without {names.unit(fewer)}: {_change(plan, fewer, names)}"
    is_fewer = len(fewer["stages"]) < len(plan["stages"])
    if is_fewer or any(stage["part"] for stage in plan["stages"]):
        return text  # groups may have been requested with as many units
    return f"the model does not fit on fewer units; {text}"


def _more(plan: Mapping[str, Any], more: Mapping[str, Any], names: NodeNames) -> str:
    like = f"another {names.unit(more)}"
    if not any(stage["is_added"] for stage in more["stages"]):
        return f"{like} would make no difference"
    return f"{like}: {_change(plan, more, names)}"


def _change(plan: Mapping[str, Any], other: Mapping[str, Any], names: NodeNames) -> str:
    """Describe how much better or worse another plan is, and its units."""
    key = "token_seconds"
    text = f"{format_seconds(other[key])} per token"
    if plan["objective"] == "throughput":
        key = "total_tokens_per_second"
        text = f"{format_number(other[key])} tokens/s together"
    change = other[key] / plan["prediction"][key] - 1
    sign = "+" if change >= 0 else "-"
    stages = other["stages"]
    place = f"{len(stages)} units"
    if len(stages) == 1:
        place = "it alone" if stages[0]["is_added"] else names.unit(stages[0])
    return f"{text} ({sign}{format_percent(abs(change))}), on {place}"


def _facts(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield the objective of the plan, its layers, and the size of its cache."""
    aim = "stages as requested with --layout"
    if not plan["has_layout"]:
        aim = f"best for {plan['objective']}: {_OBJECTIVES[plan['objective']]}"
        if (prediction := plan["prediction"]) and prediction["gap"] >= 0.0005:
            aim += f"; no plan is more than {format_percent(prediction['gap'])} better"
    yield aim
    cache = f"{plan['num_layers']} layers; the cache is for {plan['cache_tokens']} tokens"
    yield "; ".join(filter(None, (cache, mapped_text(plan))))


def _draft_lines(plan: Mapping[str, Any], names: NodeNames) -> Iterator[str]:
    """Yield the placement of the draft model, with its memory requirement."""
    draft = plan["draft"]
    if draft is None:
        return
    taken = [f"{format_bytes(each['num_bytes'])} on {names.unit(each)}" for each in draft["stages"]]
    when = "deployed already" if draft["is_deployed"] else "planned first"
    yield f"draft model {draft['model']}, {when}: {format_few(taken, _NUM_NAMES)}"


def _unused_lines(rejections: Sequence[Mapping[str, Any]], names: NodeNames) -> Iterator[str]:
    """Yield the unused units, grouped by unit id and reason."""
    alike: dict[tuple[str, str], list[str]] = {}
    for each in rejections:
        alike.setdefault((each["unit_id"], each["reason"]), []).append(names.of(each["node_id"]))
    for (unit_id, reason), nodes in alike.items():
        yield f"not used: {format_few(nodes, _NUM_NAMES)} {unit_id}: {reason}"
