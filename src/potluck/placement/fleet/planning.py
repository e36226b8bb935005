"""Make a plan for the machines of a fleet file in this process, as a coordinator would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from potluck.catalog import ModelDescription, describe_model, read_profile
from potluck.drafting.sources import names_model
from potluck.engines.costs import cost_of
from potluck.placement.fleet.file import read_fleet
from potluck.placement.fleet.links import fleet_links
from potluck.placement.fleet.reports import coordinator_of, node_reports
from potluck.placement.layout import layout_nodes, parse_layout, resolve_layout
from potluck.placement.links import LinkTable
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
