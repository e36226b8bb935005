"""Where spares are held: on nodes that have the room, and not in the group of a part."""

from __future__ import annotations

from dataclasses import replace

from support.cluster.calls import A, B, C, a_plan
from support.cluster.node_reports import node_report

from potluck.cluster.coordinator.spares import SpareCandidate, missing_spares
from potluck.placement.stage_reuse import Holding
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.groups import GroupPart
from potluck.types.held_stage import HeldStage
from potluck.types.node import CPU_UNIT, NodeReport, UnitReport
from potluck.types.program import Shard


def held(node: NodeId, part: GroupPart | None) -> SpareCandidate:
    stage = HeldStage(
        deployment=DeploymentId("d"),
        epoch=Epoch(number=1, coordinator=A),
        unit_id=CPU_UNIT,
        shard=replace(Shard.whole(4), part=part),
        context_tokens=64,
        num_blocks=4,
        quantization=Quantization.NONE,
        arithmetic=Arithmetic.EXACT,
        is_mapped=False,
        num_bytes=600,
        device_bytes=0,
    )
    return SpareCandidate(stage=Holding(node_id=node, stage=stage), memory=a_plan(), mapped=None)


def report(node: NodeId, usable_bytes: int = 1000) -> NodeReport:
    unit = UnitReport(
        unit_id=CPU_UNIT,
        backend="native",
        description="",
        usable_bytes=usable_bytes,
        is_shared=True,
        num_threads=1,
        max_threads=1,
    )
    return node_report(node, unit, usable_bytes=usable_bytes)


def test_a_device_without_room_for_a_stage_gets_no_spare_of_it() -> None:
    on_device = replace(a_plan(), cache_bytes=1000, is_on_device=True)
    assert on_device.host_bytes < 1000 < on_device.device_bytes
    spare = replace(held(A, None), memory=on_device)
    assert missing_spares([spare], [report(A), report(B)], 1) == ()
    assert missing_spares([spare], [report(A), report(B, on_device.device_bytes)], 1)


def test_no_member_of_a_group_holds_a_spare_of_another_part() -> None:
    """The two could not be members of one group: both would be lost with the node."""
    members = [held(node, GroupPart(member=m, shares=(1, 1))) for m, node in enumerate((A, B))]
    assert missing_spares(members, [report(A), report(B)], 1) == ()
    (spare,) = missing_spares(members, [report(A), report(B), report(C)], 1)
    assert (spare.index, spare.node_id) == (0, C)
    # Stages that are held alone may have their spares on one another's nodes.
    (spare,) = missing_spares([held(A, None)], [report(A), report(B)], 1)
    assert spare.node_id == B
