"""Query the nodes on which a model is to be placed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import msgspec

from potluck.cluster.coordinator.weights import ModelWeights
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import AskSpeeds, CheckModel, NodeSurvey, SurveyNode
from potluck.cluster.wire.methods import CHECK_MODEL, REPORT, SPEEDS, SURVEY
from potluck.engines.backends import BACKENDS
from potluck.errors import CallError, PotluckError
from potluck.placement.costs import Counting, shapes_of
from potluck.placement.plan import make_plan
from potluck.placement.planned import PlannedModel, preferences_of, without_memory_of
from potluck.placement.snapshot import ClusterSnapshot
from potluck.placement.stage_reuse import Holding
from potluck.types.cluster import SAME_VERSION, DeploymentId, NodeId, NodeUnitId
from potluck.types.deployment import DeploymentRecord, ModelFingerprint, StageRecord
from potluck.types.node import CPU_UNIT, NodeReport
from potluck.types.placement import Rejection
from potluck.types.speed import NodeSpeeds
from potluck.types.stage import StageSize
from potluck.types.unit import Role

_T = TypeVar("_T")

_NOBODY: Mapping[NodeUnitId, str] = MappingProxyType({})
_CHECK_SECONDS = 300.0
"""For the check, a node may have to fetch the small files of a model from the hub, or the header of
a GGUF file, if files are not passed on: some ten megabytes. Weights are fetched when a stage is
loaded."""


async def plan_model(
    membership: Membership,
    record: DeploymentRecord,
    counting: Counting,
    fingerprint: ModelFingerprint,
    size: StageSize,
    *,
    may_quantize: bool,
    weights: ModelWeights | None,
    left_out: Mapping[NodeUnitId, str] = _NOBODY,
    leaving: Collection[NodeId] = (),
    from_scratch: bool = False,
    also_planned: Sequence[StageRecord] = (),
) -> PlannedModel:
    """Place the model of ``record`` on the available nodes that can read exactly the same files.

    With ``weights``, nodes that have no files at the model's path get them by content.

    With ``may_quantize`` the model is quantized as little as makes it fit, but at least as much as
    ``size`` says. The arithmetic is that of ``record``, if it is decided (see ``plan_in``). Units
    that are ``left_out`` get nothing, for the given reasons, nor do nodes that are ``leaving``. The
    memory of ``also_planned``, stages that are not deployed yet, is not available. What workers
    already hold of the deployment stays where it is, if that leads to a plan, unless the plan is
    made ``from_scratch``. Raise ``InsufficientMemoryError``, which says what would fit, the error
    that makes the model unreadable here, and ``EngineError`` if this node knows none of the
    backends or no unit has the arithmetic.
    """
    shapes = await asyncio.to_thread(shapes_of, counting, size, [each.name for each in BACKENDS])
    model = record.spec.model
    request = SurveyNode(model=model, model_shapes=shapes)
    surveys, silent = await _ask_all(membership, partial(_ask_survey, membership, request))
    reports = [
        msgspec.structs.replace(each.report, is_draining=True) if node in leaving else each.report
        for node, each in surveys.items()
    ]
    reports = without_memory_of(also_planned, reports)
    held = held_of(record.deployment, reports)
    in_use = {(*stage.unit, stage.start_layer, stage.end_layer) for stage in record.stages}
    reports, absent = _without(reports, left_out)
    able, unable, own_files = await _nodes_with_model(
        membership, model, fingerprint, reports, surveys, gets_files=weights is not None
    )
    speeds = {
        node: dataclasses.replace(each.speeds, node_id=node) for node, each in surveys.items()
    }
    if from_scratch or not held:  # if stages were lost, requests wait for the plan
        speeds |= await _latest_speeds(membership, able, shapes)

    snapshot = ClusterSnapshot(
        reports=reports,
        able=able,
        coordinator=membership.node_id,
        preferences=preferences_of(record),
        speeds=speeds,
        held=held,
        in_use=in_use,
        from_scratch=from_scratch,
    )
    planned = await asyncio.to_thread(
        make_plan,
        counting,
        snapshot,
        size,
        may_quantize=may_quantize,
        arithmetic=record.status.plan.arithmetic,
        rejections=(*silent, *absent, *unable),
    )
    return dataclasses.replace(planned, own_files=own_files)


async def _latest_speeds(
    membership: Membership, able: Sequence[NodeReport], shapes: tuple[str, ...]
) -> dict[NodeId, NodeSpeeds]:
    """Have nodes ask their workers, and measure links to nodes that have just joined."""
    request = AskSpeeds(model_shapes=shapes, may_wait=True)
    requests = dict.fromkeys((report.node_id for report in able), request)
    answers = await SPEEDS.call_all(membership, requests)
    return {node: dataclasses.replace(each, node_id=node) for node, each in answers.items()}


def held_of(deployment: DeploymentId, reports: Sequence[NodeReport]) -> list[Holding]:
    """Return the stages of a deployment that workers hold."""
    return [
        Holding(node_id=report.node_id, stage=stage)
        for report in reports
        for stage in report.held
        if stage.deployment == deployment
    ]


def _without(
    reports: Sequence[NodeReport], left_out: Mapping[NodeUnitId, str]
) -> tuple[list[NodeReport], list[Rejection]]:
    """Return the reports without the units that are left out, and these with the reasons.

    A unit that its node reports as out stays: the node knows the cause, and how long it lasts.
    """
    out = {
        (report.node_id, unit.unit_id)
        for report in reports
        for unit in report.units
        if unit.role is Role.OUT
    }
    left_out = {unit: reason for unit, reason in left_out.items() if unit not in out}
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
        Rejection(node_id=node_id, unit_id=unit_id, reason=f"temporarily excluded: {reason}")
        for (node_id, unit_id), reason in left_out.items()
    ]
    return kept, absent


async def ask_report(membership: Membership, node: NodeId) -> NodeReport:
    """Return the report of a node. Raise ``PotluckError`` if it does not answer or is malformed."""
    return _sound(await REPORT.call(membership, node, None), node)


async def _ask_survey(membership: Membership, request: SurveyNode, node: NodeId) -> NodeSurvey:
    """Return the survey of a node. Raises as ``ask_report``."""
    survey = await SURVEY.call(membership, node, request)
    return msgspec.structs.replace(survey, report=_sound(survey.report, node))


def _sound(report: NodeReport, node: NodeId) -> NodeReport:
    """Return a report that is not malformed, with a name that is safe for a terminal."""
    if report.node_id != node:
        raise CallError(f"it reports a wrong node id: {report.node_id}", hint=SAME_VERSION)
    if len({unit.unit_id for unit in report.units}) < len(report.units):
        raise CallError("it reports one unit twice", hint=SAME_VERSION)
    return msgspec.structs.replace(report, name="".join(filter(str.isprintable, report.name)))


async def gather_reports(membership: Membership) -> tuple[list[NodeReport], list[Rejection]]:
    """Return the reports of all nodes, and rejections of those that do not answer."""
    reports, silent = await _ask_all(membership, partial(ask_report, membership))
    return list(reports.values()), silent


async def _ask_all(
    membership: Membership, ask: Callable[[NodeId], Awaitable[_T]]
) -> tuple[dict[NodeId, _T], list[Rejection]]:
    """Return the answers of all nodes, and rejections of those that do not answer."""
    silent: list[Rejection] = []

    async def answer(node: NodeId) -> _T | None:
        try:
            return await ask(node)
        except PotluckError as error:
            reason = f"it does not answer: {error.message}"
            silent.append(Rejection(node_id=node, unit_id=CPU_UNIT, reason=reason))
            return None

    nodes = sorted(membership.reachable_nodes())
    answers = await asyncio.gather(*map(answer, nodes))
    found = zip(nodes, answers, strict=True)
    return {node: each for node, each in found if each is not None}, silent


async def _nodes_with_model(
    membership: Membership,
    model: str,
    fingerprint: ModelFingerprint,
    reports: Sequence[NodeReport],
    surveys: Mapping[NodeId, NodeSurvey],
    *,
    gets_files: bool,
) -> tuple[list[NodeReport], list[Rejection], tuple[NodeId, ...]]:
    """Return the nodes that can read exactly the same model, rejections, and those with own files.

    With ``gets_files``, nodes without files get them by content. A node with other files at the
    model's path is left out: its user may not expect that they are ignored.
    """
    own_files: set[NodeId] = set()

    async def reason_against(report: NodeReport) -> str | None:
        check = surveys[report.node_id].check
        try:
            if check is None:
                check = await CHECK_MODEL.call(
                    membership,
                    report.node_id,
                    CheckModel(model=model),
                    timeout_seconds=_CHECK_SECONDS,
                )
        except PotluckError as error:
            return f"it cannot read the model: {error.message}"
        if check.fingerprint is not None:
            found = fingerprint.difference(check.fingerprint)
            if found:
                return f"its files of {model} differ from those of the coordinator: {found}"
            own_files.add(report.node_id)
            return None
        if gets_files and not check.cannot_get:
            return None
        problem = check.problem or (
            "the model is on a hub, and the coordinator does not pass its files on"
        )
        but = f", and it cannot get it: {check.cannot_get}" if check.cannot_get else ""
        return f"it cannot read the model: {problem}{but}"

    reasons = await asyncio.gather(*(reason_against(report) for report in reports))
    able = [report for report, reason in zip(reports, reasons, strict=True) if reason is None]
    unable = [
        Rejection(node_id=report.node_id, unit_id=unit.unit_id, reason=reason)
        for report, reason in zip(reports, reasons, strict=True)
        if reason is not None
        for unit in report.units
    ]
    return able, unable, tuple(sorted(own_files))
