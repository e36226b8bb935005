"""A plan for the machines of a fleet file, made in this process as a coordinator makes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from potluck.catalog import describe_model, read_profile
from potluck.cluster.agent.new_deployment import new_record
from potluck.cluster.agent.plan_view import PlanOutcome, plan_view
from potluck.cluster.calls import Deploy, ModelFingerprint
from potluck.cluster.coordinator.counting import counting_of
from potluck.cluster.coordinator.planning import placement_fields, preferences_of, size_of
from potluck.cluster.coordinator.surveyed import explanation_of, plan_surveyed
from potluck.engines.costs import cost_of
from potluck.fleet.file import read_fleet
from potluck.fleet.links import fleet_links
from potluck.fleet.reports import coordinator_of, node_reports
from potluck.placement.layout import layout_nodes, parse_layout, resolve_layout
from potluck.placement.surveyed import Surveyed


def plan_fleet(path: Path, params: Mapping[str, Any], layout: str | None) -> dict[str, object]:
    """Return the document of schema ``potluck.plan/1``, less its name.

    ``params`` are the fields of ``calls.Deploy``, and ``layout`` is as ``parse_layout`` reads it.
    Read the file and the model's headers. Raise ``UsageError`` for a file that makes no sense, and
    what planning on a cluster raises.
    """
    fleet = read_fleet(path)
    reports = node_reports(fleet)
    coordinator = coordinator_of(fleet)
    request = msgspec.convert(dict(params), Deploy)
    if layout is not None:
        stages = resolve_layout(parse_layout(layout), layout_nodes(reports))
        request = msgspec.structs.replace(request, layout=stages)
    description = describe_model(request.model)
    profile = read_profile(description)
    record = new_record(
        request,
        description,
        ModelFingerprint(digest=description.files.pinned_name),
        model_id=request.model_id or request.model,
        coordinator=coordinator,
    )
    surveyed = Surveyed(
        reports=reports,
        able=reports,
        coordinator=coordinator,
        preferences=preferences_of(record),
        links=fleet_links(fleet),
    )
    planned = plan_surveyed(
        counting_of(profile, cost_of),
        surveyed,
        size_of(profile.config, record),
        may_quantize=record.may_quantize,
        arithmetic=record.arithmetic,
    )
    outcome = PlanOutcome(
        record=msgspec.structs.replace(record, **placement_fields(planned)),
        reports=reports,
        explanation=explanation_of(planned),
    )
    return plan_view(outcome, coordinator)
