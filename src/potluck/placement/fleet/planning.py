"""Make a plan for the machines of a fleet file in this process, as a coordinator would."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from potluck.catalog import ModelDescription, describe_model, read_profile
from potluck.drafting.sources import names_model
from potluck.engines.backends import cost_of
from potluck.placement.fleet.description import Fleet, LinkFigures, LinkPair, Machine
from potluck.placement.fleet.file import read_fleet
from potluck.placement.fleet.reports import coordinator_of, node_id_of, node_reports
from potluck.placement.layout import layout_nodes, parse_layout, resolve_layout
from potluck.placement.links import NETWORK, Link, LinkTable
from potluck.placement.model_counting import counting_of
from potluck.placement.new_deployment import draft_request, facts_of, name_of, new_record
from potluck.placement.plan_view import PlanOutcome, plan_view
from potluck.placement.planned import PlannedModel
from potluck.placement.planning import (
    plan_record,
    preferences_of,
    size_of,
    without_memory_of,
)
from potluck.placement.survey import ClusterSurvey
from potluck.placement.surveyed import explanation_of, plan_surveyed
from potluck.types.cluster import NodeId
from potluck.types.deployment import Deploy, DeploymentRecord, ModelFingerprint
from potluck.types.documents.plan import PlanDocument
from potluck.types.node import NodeReport
from potluck.types.placement import Basis

_LEAST_LATENCY_SECONDS = 1e-6


def plan_fleet(path: Path, params: Mapping[str, Any], layout: str | None) -> PlanDocument:
    """Return the plan on the machines that a file describes.

    ``params`` are the fields of ``Deploy``, and ``layout`` is as ``parse_layout`` reads it. A
    draft model is planned first. Read the file and the models' headers. Raise ``UsageError`` for an
    invalid file, and the same errors as planning on a cluster.
    """
    fleet = read_fleet(path)
    reports: Sequence[NodeReport] = node_reports(fleet)
    coordinator = coordinator_of(fleet)
    request = msgspec.convert(dict(params), Deploy)
    if layout is not None:
        stages = resolve_layout(parse_layout(layout), layout_nodes(reports))
        request = msgspec.structs.replace(request, layout=stages)
    description = describe_model(request.model)
    links = fleet_links(fleet)
    draft: DeploymentRecord | None = None
    if names_model(request.draft):
        small = describe_model(request.draft)
        wanted = draft_request(request, small, description)
        draft, _ = _planned(wanted, small, reports, coordinator, links)
        reports = without_memory_of(draft.stages, reports)
    record, planned = _planned(request, description, reports, coordinator, links)
    outcome = PlanOutcome(
        record=record, reports=reports, explanation=explanation_of(planned), draft=draft
    )
    return plan_view(outcome, coordinator)


def _planned(
    request: Deploy,
    description: ModelDescription,
    reports: Sequence[NodeReport],
    coordinator: NodeId,
    links: LinkTable,
) -> tuple[DeploymentRecord, PlannedModel]:
    """Return a record with the plan of a deployment, and the plan."""
    profile = read_profile(description)
    record = new_record(
        request,
        description,
        facts_of(description, profile, ModelFingerprint(digest=description.files.pinned_name)),
        model_id=name_of(request),
        coordinator=coordinator,
    )
    surveyed = ClusterSurvey(
        reports=reports,
        able=reports,
        coordinator=coordinator,
        preferences=preferences_of(record),
        links=links,
    )
    planned = plan_surveyed(
        counting_of(profile, cost_of),
        surveyed,
        size_of(profile.config, record),
        may_quantize=record.spec.quantization is None,
        arithmetic=record.status.plan.arithmetic,
    )
    return record.with_status(plan=plan_record(planned)), planned


def fleet_links(fleet: Fleet) -> LinkTable:
    """Return the links of a fleet; missing figures are assumed."""
    network = _link(fleet.links, NETWORK)
    machines = {machine.name: machine for machine in fleet.machines}
    links: dict[tuple[NodeId, NodeId], Link] = {}
    for pair in fleet.pairs:
        link = _link(pair.figures, network)
        for source, target in _nodes(pair, machines):
            links[source, target] = link
            if pair.is_one_way:
                # Without a link of its own, the way back would be assumed to be like the way there.
                links.setdefault((target, source), network)
            else:
                links[target, source] = link
    names = [name for machine in fleet.machines for name in machine.names]
    return LinkTable(
        links=links,
        host_ids={node_id_of(name): node_id_of(name) for name in names},
        network=network,
    )


def _link(figures: LinkFigures, otherwise: Link) -> Link:
    latency, bandwidth = figures.latency_seconds, figures.bytes_per_second
    is_whole = latency is not None and bandwidth is not None
    return Link(
        latency_seconds=(
            otherwise.latency_seconds if latency is None else max(_LEAST_LATENCY_SECONDS, latency)
        ),
        bytes_per_second=otherwise.bytes_per_second if bandwidth is None else bandwidth,
        basis=Basis.TABLE if is_whole else otherwise.basis,
    )


def _nodes(pair: LinkPair, machines: dict[str, Machine]) -> Iterator[tuple[NodeId, NodeId]]:
    for source in machines[pair.source].names:
        for target in machines[pair.target].names:
            if source != target:
                yield node_id_of(source), node_id_of(target)
