"""Which units of a plan are out, by the word of their nodes."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from support.cluster.calls import A, B, C, PlayedMembership, stage_on
from support.cluster.node_reports import node_report
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator.epoch_end import units_out
from potluck.cluster.wire.calls import encode
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node import CPU_UNIT, NodeReport, UnitReport
from potluck.types.unit import Role


def a_report(node_id: NodeId) -> NodeReport:
    def unit(unit_id: UnitId, role: Role, reason: str) -> UnitReport:
        return UnitReport(
            unit_id=unit_id,
            backend="",
            description="",
            usable_bytes=0,
            is_shared=True,
            num_threads=1,
            max_threads=1,
            role=role,
            reason=reason,
        )

    return node_report(
        node_id,
        unit(CPU_UNIT, Role.SERVES, ""),
        unit(UnitId("gpu/played"), Role.OUT, "hung: a step took long"),
    )


def reporting(*others: NodeId) -> PlayedMembership:
    """Every node that is there reports two units, and that the GPU is out; ``C`` makes no sense."""

    def report(node_id: NodeId, _: bytes) -> bytes:
        return b"no report" if node_id == C else encode(a_report(node_id))

    return PlayedMembership(others=set(others), answers={"node.report": report})


def test_units_of_the_plan_that_are_out_by_now() -> None:
    membership = reporting(B, C)
    gpu = msgspec.structs.replace(stage_on(B), unit_id=UnitId("gpu/played"))
    lost = stage_on(NodeId("d" * 16))  # not there any more
    stages = (stage_on(A), gpu, stage_on(C), lost)
    found = run_in_virtual_time(units_out(cast(Any, membership), stages))
    assert found == (f"gpu/played on node {B} is out: hung: a step took long",)
    assert membership.called("node.report") == [A, B, C]


def test_who_has_no_stage_on_it_does_not_mind() -> None:
    membership = reporting(B)
    assert run_in_virtual_time(units_out(cast(Any, membership), (stage_on(B),))) == ()
