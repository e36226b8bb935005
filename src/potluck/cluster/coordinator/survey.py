"""What the nodes answer when a model is to be placed on them."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import msgspec

from potluck.cluster.calls import (
    SAME_VERSION,
    AskSpeeds,
    CheckModel,
    DeploymentRecord,
    ModelFingerprint,
    decode,
    encode,
)
from potluck.cluster.coordinator.left_out import NodeUnitId
from potluck.cluster.coordinator.planning import DeploymentSize
from potluck.cluster.coordinator.surveyed import plan_surveyed
from potluck.cluster.membership import Membership
from potluck.errors import CallError, PotluckError
from potluck.placement.counting import Counting
from potluck.placement.keeping import Holding
from potluck.placement.planned import PlannedModel
from potluck.placement.shapes import shapes_of
from potluck.placement.surveyed import Surveyed
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.node import CPU_UNIT, NodeReport
from potluck.types.placement import Preferences, Rejection
from potluck.types.speed import NodeSpeeds

_NOBODY: Mapping[NodeUnitId, str] = MappingProxyType({})
_log = logging.getLogger(__name__)

_REPORT_SECONDS = 5.0
_SPEEDS_SECONDS = 5.0
_KNOWN_SPEEDS_SECONDS = 1.0
"""While requests wait for stages to be replaced: a plan by what is known at once comes sooner."""

_CHECK_SECONDS = 300.0
"""The small files of a model from the hub, or a GGUF file's header, may have to be fetched for it:
some ten megabytes. Weights are fetched when a stage is loaded."""


async def plan_model(
    membership: Membership,
    model: str,
    counting: Counting,
    fingerprint: ModelFingerprint,
    size: DeploymentSize,
    *,
    may_quantize: bool,
    arithmetic: Arithmetic | None,
    preferences: Preferences,
    left_out: Mapping[NodeUnitId, str] = _NOBODY,
    record: DeploymentRecord | None = None,
    leaving: Collection[NodeId] = (),
    is_anew: bool = False,
) -> PlannedModel:
    """Place a model on the nodes that are there and can read the very same files.

    With ``may_quantize`` it is quantized as little as makes it fit, but not less than ``size``
    says. ``arithmetic``: see ``plan_in``. Units that are ``left_out`` get nothing, for the reasons
    given, nor do nodes that are ``leaving``. What workers hold of the deployment of ``record``
    already stays where it is, if that leads to a plan, unless the plan ``is_anew``. Raises
    ``InsufficientMemoryError``, which says what would fit, what makes the model unreadable here,
    and ``EngineError`` where this node knows none of the backends or no unit has the arithmetic.
    """
    reports, silent = await gather_reports(membership)
    reports = [_leaving(each) if each.node_id in leaving else each for each in reports]
    held = [] if record is None else held_of(record.deployment, reports)
    in_use = {
        (stage.node_id, stage.unit_id, stage.start_layer, stage.end_layer)
        for stage in (() if record is None else record.stages)
    }
    reports, absent = _without(reports, left_out)
    able, unable = await _nodes_with_model(membership, model, fingerprint, reports)
    # Where stages were lost, requests wait for the plan.
    may_wait = is_anew or not held
    speeds = await _gather_speeds(membership, able, counting, size, may_wait=may_wait)

    surveyed = Surveyed(
        reports=reports,
        able=able,
        coordinator=membership.node_id,
        preferences=preferences,
        speeds=speeds,
        held=held,
        in_use=in_use,
        is_anew=is_anew,
    )
    return await asyncio.to_thread(
        plan_surveyed,
        counting,
        surveyed,
        size,
        may_quantize=may_quantize,
        arithmetic=arithmetic,
        rejections=(*silent, *absent, *unable),
    )


async def _gather_speeds(
    membership: Membership,
    able: Sequence[NodeReport],
    counting: Counting,
    size: DeploymentSize,
    *,
    may_wait: bool,
) -> dict[NodeId, NodeSpeeds]:
    """Ask nodes what they have measured; one that does not answer has measured nothing."""
    seconds = _SPEEDS_SECONDS if may_wait else _KNOWN_SPEEDS_SECONDS
    backends = {unit.backend for report in able for unit in report.units}
    shapes = await asyncio.to_thread(shapes_of, counting, size.of_stage, backends)
    request = encode(AskSpeeds(model_shapes=shapes, may_wait=may_wait))
    speeds: dict[NodeId, NodeSpeeds] = {}

    async def ask(node: NodeId) -> None:
        try:
            answer = await membership.call(node, "node.speeds", request, timeout_seconds=seconds)
            speeds[node] = dataclasses.replace(decode(answer, NodeSpeeds), node_id=node)
        except PotluckError as error:
            _log.debug("node %s does not say how fast it is: %s", node, error.message)

    await asyncio.gather(*(ask(report.node_id) for report in able))
    return speeds


def held_of(deployment: DeploymentId, reports: Sequence[NodeReport]) -> list[Holding]:
    """The stages of a deployment that workers hold."""
    return [
        Holding(node_id=report.node_id, stage=stage)
        for report in reports
        for stage in report.held
        if stage.deployment == deployment
    ]


def _leaving(report: NodeReport) -> NodeReport:
    return msgspec.structs.replace(report, is_draining=True)


def _without(
    reports: Sequence[NodeReport], left_out: Mapping[NodeUnitId, str]
) -> tuple[list[NodeReport], list[Rejection]]:
    """The reports without the units that are left out, and why those are."""
    kept = [
        msgspec.structs.replace(
            report,
            units=tuple(
                unit for unit in report.units if (report.node_id, unit.unit_id) not in left_out
            ),
        )
        for report in reports
    ]
    absent = [
        Rejection(node_id=node_id, unit_id=unit_id, reason=f"left out for now: {reason}")
        for (node_id, unit_id), reason in left_out.items()
    ]
    return kept, absent


async def ask_report(membership: Membership, node: NodeId) -> NodeReport:
    """What a node says of itself. Raises ``PotluckError`` when it does not answer, or nonsense."""
    answer = await membership.call(node, "node.report", b"", timeout_seconds=_REPORT_SECONDS)
    report = decode(answer, NodeReport)
    if report.node_id != node:
        raise CallError(f"it reports as node {report.node_id}", hint=SAME_VERSION)
    if len({unit.unit_id for unit in report.units}) < len(report.units):
        raise CallError("it reports one unit twice", hint=SAME_VERSION)
    return report


async def gather_reports(membership: Membership) -> tuple[list[NodeReport], list[Rejection]]:
    """What every node says of itself, and those that do not answer."""
    nodes = sorted(membership.nodes() | {membership.node_id})
    reports: list[NodeReport] = []
    silent: list[Rejection] = []

    async def ask(node: NodeId) -> None:
        try:
            reports.append(await ask_report(membership, node))
        except PotluckError as error:
            silent.append(
                Rejection(
                    node_id=node,
                    unit_id=CPU_UNIT,
                    reason=f"it does not answer: {error.message}",
                )
            )

    await asyncio.gather(*(ask(node) for node in nodes))
    return sorted(reports, key=lambda each: each.node_id), silent


async def _nodes_with_model(
    membership: Membership,
    model: str,
    fingerprint: ModelFingerprint,
    reports: Sequence[NodeReport],
) -> tuple[list[NodeReport], list[Rejection]]:
    """Nodes that can read the very same model, and why the others cannot."""
    request = encode(CheckModel(model=model))

    async def reason_against(report: NodeReport) -> str | None:
        try:
            answer = await membership.call(
                report.node_id, "model.check", request, timeout_seconds=_CHECK_SECONDS
            )
            found = fingerprint.difference(decode(answer, ModelFingerprint))
            if found:
                return f"its files of {model} are not those of the coordinator: {found}"
        except PotluckError as error:
            return f"it cannot read the model: {error.message}"
        return None

    reasons = await asyncio.gather(*(reason_against(report) for report in reports))
    able = [report for report, reason in zip(reports, reasons, strict=True) if reason is None]
    unable = [
        Rejection(node_id=report.node_id, unit_id=unit.unit_id, reason=reason)
        for report, reason in zip(reports, reasons, strict=True)
        if reason is not None
        for unit in report.units
    ]
    return able, unable
