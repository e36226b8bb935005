"""Layouts that a user writes, as in ``desktop=24,board/cpu/native=8``: which unit takes how many
layers, in this order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from potluck.errors import ParameterError
from potluck.quantities import format_few
from potluck.types.cluster import NodeId, UnitId
from potluck.types.model import ModelConfig
from potluck.types.node import NodeReport
from potluck.types.placement import LayoutStage
from potluck.types.ranges import MAX_WHOLE
from potluck.types.unit import Role

_FORM = "--layout is NODE[/UNIT]=LAYERS,…, as in desktop=24,board/cpu/native=8"
_NUM_SHOWN = 8
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenStage:
    """A stage as it is written. ``unit_id`` None is the one unit of the node that serves."""

    node: str
    unit_id: UnitId | None
    num_layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNode:
    """A node that a layout may name, by its id or by a name that no other node has.

    ``serving`` are those of its ``units`` that serve.
    """

    node_id: NodeId
    name: str
    units: tuple[UnitId, ...]
    serving: tuple[UnitId, ...]


def layout_nodes(reports: Sequence[NodeReport]) -> list[LayoutNode]:
    """Return what a layout may name of the nodes that sent ``reports``."""
    return [
        LayoutNode(
            node_id=report.node_id,
            name=report.name,
            units=tuple(unit.unit_id for unit in report.units),
            serving=tuple(unit.unit_id for unit in report.units if unit.role is Role.SERVES),
        )
        for report in reports
    ]


def parse_layout(text: str) -> tuple[WrittenStage, ...]:
    """Return the stages that ``text`` lists. Raise ``ParameterError`` if it has another form."""
    return tuple(_parse_stage(part.strip()) for part in text.split(","))


def _parse_stage(text: str) -> WrittenStage:
    place, equals, number = text.rpartition("=")
    node, slash, unit = place.partition("/")
    is_number = number.isascii() and number.isdigit() and len(number) <= len(str(MAX_WHOLE))
    if not equals or not node or (slash and not unit) or not is_number:
        raise ParameterError("layout", f"--layout: {text!r} is no stage", hint=_FORM)
    return WrittenStage(node=node, unit_id=UnitId(unit) if unit else None, num_layers=int(number))


def resolve_layout(
    written: Sequence[WrittenStage], nodes: Sequence[LayoutNode]
) -> tuple[LayoutStage, ...]:
    """Return the stages with the ids of their nodes and units.

    Raise ``ParameterError`` for a node or a unit that is not there or is not named exactly.
    """
    by_id = {node.node_id: node for node in nodes}
    by_name: dict[str, list[LayoutNode]] = {}
    for node in nodes:
        by_name.setdefault(node.name, []).append(node)
    stages = []
    for stage in written:
        node = by_id.get(NodeId(stage.node)) or _named(stage.node, by_name)
        stages.append(
            LayoutStage(
                node_id=node.node_id, unit_id=_unit_of(stage, node), num_layers=stage.num_layers
            )
        )
    return tuple(stages)


def _named(name: str, by_name: Mapping[str, Sequence[LayoutNode]]) -> LayoutNode:
    match by_name.get(name, ()):
        case [node]:
            return node
        case []:
            raise ParameterError(
                "layout",
                f"--layout: there is no node {name}",
                hint=f"nodes are {format_few(sorted(by_name), _NUM_SHOWN)}",
            )
        case several:
            ids = [node.node_id for node in several]
            raise ParameterError(
                "layout",
                f"--layout: {len(ids)} nodes have the name {name}",
                hint=f"name one by its id: {format_few(ids, _NUM_SHOWN)}",
            )


def _unit_of(stage: WrittenStage, node: LayoutNode) -> UnitId:
    units = ", ".join(node.units) or "none"
    if stage.unit_id is not None:
        if stage.unit_id not in node.units:
            raise ParameterError(
                "layout",
                f"--layout: {stage.node} has no unit {stage.unit_id}",
                hint=f"its units are {units}",
            )
        return stage.unit_id
    if len(node.serving) != 1:
        raise ParameterError(
            "layout",
            f"--layout: {len(node.serving)} units of {stage.node} serve, and none is named",
            hint=f"name one, as in {stage.node}/UNIT={stage.num_layers}; its units are {units}",
        )
    return node.serving[0]


def written_layout(stages: Sequence[LayoutStage], nodes: Sequence[LayoutNode]) -> str:
    """Return what ``parse_layout`` and ``resolve_layout`` read as ``stages``.

    Nodes have their names where these are clear, otherwise their ids. A unit is named where it is
    not the only one of its node that serves.
    """
    by_id = {node.node_id: node for node in nodes}
    names = Counter(node.name for node in nodes)
    parts = []
    for stage in stages:
        place, node = str(stage.node_id), by_id.get(stage.node_id)
        if node is not None and names[node.name] == 1 and _PLAIN_NAME.fullmatch(node.name):
            place = node.name if NodeId(node.name) not in by_id else place
        if node is None or node.serving != (stage.unit_id,):
            place += f"/{stage.unit_id}"
        parts.append(f"{place}={stage.num_layers}")
    return ",".join(parts)


def no_such_cut(layer: int, num_layers: int, no_cuts: Collection[int]) -> ParameterError:
    """Return the error of a layout in which a stage begins with ``layer``, and none may.

    ``no_cuts`` are all layers before which the model is not cut (``ModelCost.no_cuts``).
    """
    possible = [each for each in range(1, num_layers) if each not in no_cuts]
    nearest = sorted(sorted(possible, key=lambda each: abs(each - layer))[:2])
    return ParameterError(
        "layout",
        f"--layout has a stage that begins with layer {layer}, which uses keys and values, or an "
        "embedding, of layers before it",
        hint=f"let it begin with layer {' or '.join(map(str, nearest))}"
        if nearest
        else "give all layers to one unit",
    )


def check_layout(layout: Sequence[LayoutStage], config: ModelConfig) -> None:
    """Raise ``ParameterError`` if these are no stages of this model.

    Only the first stage and the last one, which have the embedding and the head, may be without a
    layer, and layers that share keys and values are on one stage.
    """
    num_layers = config.num_layers
    total = sum(stage.num_layers for stage in layout)
    if any(stage.num_layers < 0 for stage in layout):
        raise ParameterError(
            "layout", "--layout has a stage with fewer than 0 layers", hint="give it some"
        )
    if total != num_layers:
        raise ParameterError(
            "layout",
            f"--layout has {total} layers, and the model has {num_layers}",
            hint="change a number so that the sum is that of the model",
        )
    seen = set()
    for index, stage in enumerate(layout):
        unit = f"{stage.node_id} {stage.unit_id}"
        if unit in seen:
            raise ParameterError(
                "layout",
                f"--layout has two stages on {unit}",
                hint="a unit holds one stage: give it one range of layers",
            )
        seen.add(unit)
        if stage.num_layers == 0 and 0 < index < len(layout) - 1:
            raise ParameterError(
                "layout",
                f"--layout has no layer for {unit}, which is neither first nor last",
                hint="leave the stage out",
            )
    no_cuts = [layer for layer in range(num_layers) if not config.can_cut_before(layer)]
    for start in accumulate(stage.num_layers for stage in layout[:-1]):
        if start in no_cuts:
            raise no_such_cut(start, num_layers, no_cuts)
