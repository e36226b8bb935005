"""What units may use, of the memory that agents on one machine share."""

from __future__ import annotations

import msgspec
from support import hardware

from potluck.cluster.calls import CPU_UNIT, NodeReport, UnitReport
from potluck.cluster.coordinator.planning import HEADROOM_BYTES, offers
from potluck.types.cluster import NodeId, UnitId

GIB = 2**30


def report(
    node: str,
    *,
    host: str = "h",
    usable: int = 8 * GIB,
    available: int = 8 * GIB + HEADROOM_BYTES,
    untaken: int = 0,
    is_draining: bool = False,
) -> NodeReport:
    unit = UnitReport(
        unit_id=CPU_UNIT, description="", usable_bytes=usable, is_shared=True, num_threads=1
    )
    return NodeReport(
        node_id=NodeId(node),
        name="",
        host_id=host,
        version="",
        address="",
        http_address=None,
        host_available_bytes=available,
        available_reason="",
        memory_limit_bytes=None,
        untaken_bytes=untaken,
        is_draining=is_draining,
        units=(unit,),
        hardware=hardware.report(),
    )


def usable(*reports: NodeReport, candidates: tuple[NodeReport, ...] | None = None) -> list[int]:
    return [each.usable_bytes for each in offers(reports, candidates or reports)]


def test_agents_on_one_machine_share_its_memory_and_others_do_not() -> None:
    assert usable(report("a"), report("b"), report("c", host="other")) == [
        4 * GIB,
        4 * GIB,
        8 * GIB,
    ]


def test_what_one_agent_has_promised_binds_the_others_of_its_machine() -> None:
    promised = report("a", untaken=2 * GIB)
    assert usable(promised, report("b"), report("c", host="other")) == [3 * GIB, 3 * GIB, 8 * GIB]
    # Also what is promised by one that cannot take part, or is about to leave.
    assert usable(promised, report("b"), candidates=(report("b"),)) == [6 * GIB]
    draining = msgspec.structs.replace(promised, is_draining=True)
    assert usable(draining, report("b")) == [6 * GIB]


def test_a_limit_of_the_agent_stays_a_limit() -> None:
    assert usable(report("a", usable=GIB), report("b")) == [GIB, 4 * GIB]


def test_units_of_one_node_that_share_its_memory_have_one_budget_and_others_their_own() -> None:
    cpu = report("a").units[0]
    mali = msgspec.structs.replace(cpu, unit_id=UnitId("soc/b"))
    card = msgspec.structs.replace(mali, unit_id=UnitId("card/b"), is_shared=False)
    node = msgspec.structs.replace(report("a"), units=(cpu, mali, card))
    assert usable(node) == [4 * GIB, 4 * GIB, 8 * GIB]


def test_units_that_do_not_work_are_offered_nothing() -> None:
    broken = msgspec.structs.replace(report("a").units[0], problem="wrong numbers")
    node = msgspec.structs.replace(report("a"), units=(broken,))
    assert usable(node, report("b")) == [8 * GIB]
