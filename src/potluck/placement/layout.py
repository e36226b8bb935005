"""Layouts written by a user, such as ``desktop=24,board/cpu/native=8``: how many layers each unit
holds, in this order.

A stage on several units, such as ``desktop*3+board=24``, is held by them as a group, with shares in
proportion to the given numbers (1 by default).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from potluck.errors import ParameterError
from potluck.types.cluster import NodeId, UnitId
from potluck.types.groups import GroupPart, LayoutStage
from potluck.types.node import NodeReport
from potluck.types.node_names import NodeNames
from potluck.types.quantities import format_few
from potluck.types.ranges import MAX_WHOLE
from potluck.types.unit import Role

_FORM = "--layout has the form NODE[/UNIT]=LAYERS,…, for example desktop=24,board/cpu/native=8"
_GROUP_FORM = (
    "units that share layers have the form NODE[/UNIT][*SHARE]+…=LAYERS, for example "
    "desktop*3+board=24"
)
_NUM_SHOWN = 8
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenStage:
    """A stage as written. ``unit_id`` None means the only serving unit of the node.

    Each member of a group is a stage of its own, with a ``part``.
    """

    node: str
    unit_id: UnitId | None
    num_layers: int
    part: GroupPart | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutNode:
    """A node that a layout may name: by its id, by its name if no other node has it, and otherwise
    by the name and digits of the id, as ``NodeNames`` has it.

    ``serving`` are those of its ``units`` that serve.
    """

    node_id: NodeId
    name: str
    units: tuple[UnitId, ...]
    serving: tuple[UnitId, ...]


def layout_nodes(reports: Sequence[NodeReport]) -> list[LayoutNode]:
    """Return the nodes that a layout may name, from their ``reports``."""
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
    """Return the stages that ``text`` lists. Raise ``ParameterError`` if it is malformed."""
    return tuple(stage for part in text.split(",") for stage in _parse_stage(part.strip()))


def _parse_stage(text: str) -> Iterator[WrittenStage]:
    places, equals, number = text.rpartition("=")
    members = [each.strip() for each in places.split("+")]
    if not equals or not _is_number(number):
        raise ParameterError("layout", f"--layout: {text!r} is not a stage", hint=_FORM)
    shares = []
    for index, member in enumerate(members):
        place, asterisk, share = member.rpartition("*")
        if asterisk:
            members[index] = place
        if asterisk and (len(members) == 1 or not _is_number(share) or int(share) == 0):
            raise ParameterError("layout", f"--layout: {text!r} is not a stage", hint=_GROUP_FORM)
        shares.append(int(share) if asterisk else 1)
    for index, member in enumerate(members):
        node, slash, unit = member.partition("/")
        if not node or (slash and not unit):
            hint = _FORM if len(members) == 1 else _GROUP_FORM
            raise ParameterError("layout", f"--layout: {text!r} is not a stage", hint=hint)
        yield WrittenStage(
            node=node,
            unit_id=UnitId(unit) if unit else None,
            num_layers=int(number),
            part=GroupPart(member=index, shares=tuple(shares)) if len(members) > 1 else None,
        )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MAX_WHOLE))


def resolve_layout(
    written: Sequence[WrittenStage], nodes: Sequence[LayoutNode]
) -> tuple[LayoutStage, ...]:
    """Return the stages with the ids of their nodes and units.

    Raise ``ParameterError`` for an unknown or ambiguous node or unit.
    """
    by_id: dict[str, LayoutNode] = {node.node_id: node for node in nodes}
    names = NodeNames({node.node_id: node.name for node in nodes})
    by_id |= {names.of(node.node_id): node for node in nodes}
    by_name: dict[str, list[LayoutNode]] = {}
    for node in nodes:
        by_name.setdefault(node.name, []).append(node)
    stages = []
    for stage in written:
        node = by_id.get(stage.node) or _named(stage.node, by_name)
        stages.append(
            LayoutStage(
                node_id=node.node_id,
                unit_id=_unit_of(stage, node),
                num_layers=stage.num_layers,
                part=stage.part,
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
                f"--layout: unknown node {name}",
                hint=f"known nodes: {format_few(sorted(by_name), _NUM_SHOWN)}",
            )
        case several:
            names = NodeNames({node.node_id: name for node in several})
            known = [names.of(node.node_id) for node in several]
            raise ParameterError(
                "layout",
                f"--layout: {len(known)} nodes are named {name}",
                hint=f"use one of: {format_few(known, _NUM_SHOWN)}",
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
            f"--layout: {stage.node} has {len(node.serving)} usable units, and the layout "
            "does not say which one",
            hint=f"name a unit, for example {stage.node}/UNIT={stage.num_layers}; its units "
            f"are {units}",
        )
    return node.serving[0]


def written_layout(stages: Sequence[LayoutStage], nodes: Sequence[LayoutNode]) -> str:
    """Return a text that ``parse_layout`` and ``resolve_layout`` read as ``stages``.

    Nodes are given by name if it is unique, otherwise by id. A unit is named if it is not the only
    serving unit of its node.
    """
    by_id = {node.node_id: node for node in nodes}
    names = Counter(node.name for node in nodes)
    parts: list[str] = []
    for stage in stages:
        place, node = str(stage.node_id), by_id.get(stage.node_id)
        if node is not None and names[node.name] == 1 and _PLAIN_NAME.fullmatch(node.name):
            place = node.name if NodeId(node.name) not in by_id else place
        if node is None or node.serving != (stage.unit_id,):
            place += f"/{stage.unit_id}"
        if stage.part is not None and any(share != 1 for share in stage.part.shares):
            place += f"*{stage.part.shares[stage.part.member]}"
        if stage.is_led:
            place = f"{parts.pop().rpartition('=')[0]}+{place}"
        parts.append(f"{place}={stage.num_layers}")
    return ",".join(parts)


def _has_whole_groups(layout: Sequence[LayoutStage]) -> bool:
    """Return whether the members of every group follow one another, with the same layers."""
    rest: list[LayoutStage] = list(layout)
    while rest:
        first = rest[0]
        shares = (1,) if first.part is None else first.part.shares
        members, rest = rest[: len(shares)], rest[len(shares) :]
        if first.part is None:
            continue
        wanted = [(GroupPart(member=index, shares=shares)) for index in range(len(shares))]
        if [each.part for each in members] != wanted:
            return False
        if any(each.num_layers != first.num_layers for each in members):
            return False
    return True


def _no_such_cut(layer: int, num_layers: int, no_cuts: Collection[int]) -> ParameterError:
    possible = [each for each in range(1, num_layers) if each not in no_cuts]
    nearest = sorted(sorted(possible, key=lambda each: abs(each - layer))[:2])
    return ParameterError(
        "layout",
        f"--layout has a stage that begins with layer {layer}, which uses keys and values, or "
        "an embedding, of earlier layers",
        hint=f"begin the stage with layer {' or '.join(map(str, nearest))}"
        if nearest
        else "put all layers on one unit",
    )


def check_layout(layout: Sequence[LayoutStage], num_layers: int, no_cuts: Collection[int]) -> None:
    """Raise ``ParameterError`` if these are not valid stages of a model with ``num_layers``.

    Only the first and the last stage, which have the embedding and the head, may have no layers,
    and no stage begins with one of the layers in ``no_cuts`` (``ModelConfig.no_cuts``).
    """
    leading = [stage for stage in layout if not stage.is_led]
    total = sum(stage.num_layers for stage in leading)
    if not _has_whole_groups(layout):
        raise ParameterError("layout", "--layout has an incomplete group", hint=_GROUP_FORM)
    if any(stage.num_layers < 0 for stage in layout):
        raise ParameterError(
            "layout",
            "--layout has a stage with fewer than 0 layers",
            hint="give it at least one layer",
        )
    if total != num_layers:
        raise ParameterError(
            "layout",
            f"--layout has {total} layers, but the model has {num_layers}",
            hint="change the numbers so that they add up to the model's layers",
        )
    seen = set()
    for stage in layout:
        unit = f"{stage.node_id} {stage.unit_id}"
        if unit in seen:
            raise ParameterError(
                "layout",
                f"--layout has two stages on {unit}",
                hint="a unit can only have one stage: give it one range of layers",
            )
        seen.add(unit)
        if stage.num_layers == 0 and stage.part is not None:
            raise ParameterError(
                "layout",
                f"--layout has a group with {unit} and no layers for it",
                hint="give the group layers, or list one of its units alone",
            )
        if stage.num_layers == 0 and stage not in (leading[0], leading[-1]):
            raise ParameterError(
                "layout",
                f"--layout has no layers for {unit}, which is neither first nor last",
                hint="omit the stage",
            )
    for start in accumulate(stage.num_layers for stage in leading[:-1]):
        if start in no_cuts:
            raise _no_such_cut(start, num_layers, no_cuts)
