"""Make a plan for the machines of a fleet file in this process, as a coordinator would."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from potluck.catalog import ModelDescription, describe_model, read_profile
from potluck.drafting.sources import names_model
from potluck.engines.backends import abilities_of, cost_of
from potluck.host.memory import reserve_bytes
from potluck.placement.fleet.file import read_fleet
from potluck.placement.fleet.keys import (
    DescribedUnit,
    Fleet,
    LinkFigures,
    LinkPair,
    Machine,
    ManualDescription,
    Probed,
)
from potluck.placement.layout import layout_nodes, parse_layout, resolve_layout
from potluck.placement.links import NETWORK, Link, LinkTable
from potluck.placement.model_counting import counting_of
from potluck.placement.new_deployment import draft_request, facts_of, name_of, new_record
from potluck.placement.offering import headroom_bytes
from potluck.placement.plan import explanation_of, make_plan
from potluck.placement.plan_view import PlanOutcome, plan_view
from potluck.placement.planned import (
    PlannedModel,
    plan_record,
    preferences_of,
    size_of,
    without_memory_of,
)
from potluck.placement.snapshot import ClusterSnapshot
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.cluster import NodeId, UnitId
from potluck.types.deployment import Deploy, DeploymentRecord, ModelFingerprint
from potluck.types.documents.plan import PlanDocument
from potluck.types.hardware import CpuFacts, Figure, Figures, Origin, ProbeReport
from potluck.types.memory import MemoryFacts, MemoryLimit, MemoryPool
from potluck.types.node import CPU_UNIT, NodeReport, UnitReport
from potluck.types.placement import Basis
from potluck.version import __version__


def node_id_of(name: str) -> NodeId:
    """Return the id of the machine of this name; the same in every plan.

    Figures written by a user have the origin TABLE, as they are not measured. Those of a probe
    report keep their origin. Missing figures are unknown.
    """
    return NodeId(hashlib.sha256(f"fleet/{name}".encode()).hexdigest()[:16])


def node_reports(fleet: Fleet) -> tuple[NodeReport, ...]:
    """Return one report for each machine, in the order of the file."""
    return tuple(_report(machine, name) for machine in fleet.machines for name in machine.names)


def coordinator_of(fleet: Fleet) -> NodeId:
    """Return the node that coordinates."""
    machine = next(each for each in fleet.machines if each.name == fleet.coordinator)
    return node_id_of(machine.names[0])


def _report(machine: Machine, name: str) -> NodeReport:
    match machine.description:
        case ManualDescription() as described:
            hardware = _hardware(described, machine, name)
        case Probed() as probed:
            hardware = probed.report
    total_bytes = hardware.memory.total_bytes
    usable, available_bytes = hardware.memory.usable, hardware.memory.usable.bytes
    if machine.usable_bytes is not None:
        usable = MemoryLimit(bytes=machine.usable_bytes, reason="usable_memory of the fleet's file")
        # Meant literally: what plans leave unused of a pool is not subtracted from it.
        available_bytes = usable.bytes + headroom_bytes(total_bytes)
    node_id = node_id_of(name)
    pool = MemoryPool(pool_id=node_id, limit_bytes=total_bytes, available_bytes=available_bytes)
    return NodeReport(
        node_id=node_id,
        name=name,
        host_id=node_id,
        version=__version__,
        address="",
        http_address=None,
        available_bytes=usable.bytes,
        available_reason=usable.reason,
        memory_limit_bytes=None,
        usable_bytes=usable.bytes,
        pools=(pool,),
        untaken_bytes=0,
        is_draining=False,
        units=tuple(_units(machine, usable.bytes)),
        hardware=hardware,
    )


def _units(machine: Machine, host_bytes: int) -> Iterator[UnitReport]:
    match machine.description:
        case ManualDescription() as described:
            num_devices = 0
            for unit in described.units:
                unit_id = CPU_UNIT
                if not abilities_of(unit.backend).is_built_in:
                    num_devices += 1
                    device = "gpu" if num_devices == 1 else f"gpu-{num_devices}"
                    unit_id = UnitId(f"{device}/{unit.backend}")
                yield _described_unit(machine, described, unit, unit_id, host_bytes)
        case Probed() as probed:
            yield from _probed_units(probed, host_bytes)


def _described_unit(
    machine: Machine,
    described: ManualDescription,
    unit: DescribedUnit,
    unit_id: UnitId,
    host_bytes: int,
) -> UnitReport:
    def figure(value: float | None) -> Figure:
        if value is None:
            return Figure(source=f"not in {machine.place}")
        return Figure(value=value, origin=Origin.TABLE, source=machine.place)

    return UnitReport(
        unit_id=unit_id,
        backend=unit.backend,
        description=machine.name,
        usable_bytes=host_bytes if unit.device_bytes is None else unit.device_bytes,
        is_shared=unit.device_bytes is None,
        num_threads=described.num_cores,
        max_threads=described.num_cores,
        arithmetics=(Arithmetic.EXACT,) if abilities_of(unit.backend).has_arithmetics else (),
        figures=Figures(
            read_bytes_per_second=figure(unit.read_bytes_per_second),
            f32_operations_per_second=figure(unit.operations.f32),
            f16_operations_per_second=figure(unit.operations.f16),
            int8_operations_per_second=figure(unit.operations.int8),
        ),
    )


def _probed_units(probed: Probed, host_bytes: int) -> Iterator[UnitReport]:
    devices = {device.device_id: device for device in probed.report.devices}
    trials = {trial.unit_id: trial for trial in probed.report.trials}
    for unit in probed.units:
        device, trial = devices[unit.device_id], trials[unit.unit_id]
        own_bytes = device.own_free_bytes
        yield UnitReport(
            unit_id=UnitId(unit.unit_id),
            backend=unit.backend,
            description=device.name,
            usable_bytes=host_bytes if own_bytes is None else own_bytes,
            is_shared=own_bytes is None,
            num_threads=probed.report.cpu.num_usable_cores,
            max_threads=probed.report.cpu.num_usable_cores,
            role=unit.role,
            reason=unit.reason,
            rates=trial.rates,
            arithmetics=arithmetics_with(trial.variants)
            if abilities_of(unit.backend).has_arithmetics
            else (),
            figures=trial.figures,
        )


def _hardware(described: ManualDescription, machine: Machine, name: str) -> ProbeReport:
    """Return a report of a machine that has not been probed."""
    reserved = reserve_bytes(described.memory_bytes)
    return ProbeReport(
        host_name=name,
        kernel="",
        container="",
        cpu=CpuFacts(
            name="",
            architecture="",
            num_cores=described.num_cores,
            num_usable_cores=described.num_cores,
            usable_reason=f"described in {machine.place}",
        ),
        memory=MemoryFacts(
            total_bytes=described.memory_bytes,
            free_bytes=described.memory_bytes,
            reserve_bytes=reserved,
            usable=MemoryLimit(
                bytes=described.memory_bytes - reserved,
                reason=f"memory in {machine.place}, less the system's reserve",
            ),
        ),
        detectors=(),
        trials=(),
        is_complete=True,
    )


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
    snapshot = ClusterSnapshot(
        reports=reports,
        able=reports,
        coordinator=coordinator,
        preferences=preferences_of(record),
        links=links,
    )
    planned = make_plan(
        counting_of(profile, cost_of),
        snapshot,
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
    return otherwise.with_figures(figures.latency_seconds, figures.bytes_per_second, Basis.TABLE)


def _nodes(pair: LinkPair, machines: dict[str, Machine]) -> Iterator[tuple[NodeId, NodeId]]:
    for source in machines[pair.source].names:
        for target in machines[pair.target].names:
            if source != target:
                yield node_id_of(source), node_id_of(target)
