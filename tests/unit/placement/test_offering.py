"""What units may use, of the memory that agents on one machine share."""

from __future__ import annotations

import msgspec
from support.cluster.node_reports import node_report

from potluck.placement.offering import headroom_bytes, offers
from potluck.types.cluster import UnitId
from potluck.types.memory import MemoryPool
from potluck.types.node import CPU_UNIT, NodeReport, UnitReport
from potluck.types.unit import Role

GIB = 2**30
TOTAL = 16 * GIB
HEADROOM_BYTES = headroom_bytes(TOTAL)


def report(
    node: str,
    *,
    host: str = "h",
    usable: int = 8 * GIB,
    available: int = 8 * GIB + HEADROOM_BYTES,
    group: MemoryPool | None = None,
    untaken: int = 0,
    is_draining: bool = False,
) -> NodeReport:
    unit = UnitReport(
        unit_id=CPU_UNIT,
        backend="native",
        description="",
        usable_bytes=usable,
        is_shared=True,
        num_threads=1,
        max_threads=1,
    )
    return node_report(
        node,
        unit,
        usable_bytes=usable,
        host_id=host,
        available_bytes=available,
        pools=(
            MemoryPool(pool_id=host, limit_bytes=TOTAL, available_bytes=available),
            *([] if group is None else [group]),
        ),
        untaken_bytes=untaken,
        is_draining=is_draining,
    )


def usable(*reports: NodeReport, candidates: tuple[NodeReport, ...] | None = None) -> list[int]:
    return [each.usable_bytes for each in offers(reports, candidates or reports).offers]


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
    # What it leaves of an equal part, others may use.
    assert usable(report("a", usable=GIB), report("b")) == [GIB, 7 * GIB]


def a_group(name: str, limit: int, available: int) -> MemoryPool:
    return MemoryPool(pool_id=f"h/{name}", limit_bytes=limit, available_bytes=available)


def test_agents_in_control_groups_of_their_own_have_these_and_not_a_part_of_the_machine() -> None:
    boards = [
        report(str(index), usable=GIB // 2, group=a_group(str(index), GIB, GIB // 2))
        for index in range(14)
    ]
    left = GIB // 2 - headroom_bytes(GIB)
    assert usable(*boards) == [left] * 14
    # Until the machine itself has no more.
    scarce = [
        report(str(index), usable=GIB // 2, available=GIB, group=a_group(str(index), GIB, GIB // 2))
        for index in range(4)
    ]
    assert usable(*scarce) == [(GIB - HEADROOM_BYTES) // 4] * 4


def test_agents_in_one_control_group_share_it_and_what_is_promised_binds_all() -> None:
    group = a_group("both", 4 * GIB, 3 * GIB)
    headroom = headroom_bytes(4 * GIB)
    one, other = report("a", group=group, untaken=GIB), report("b", group=group)
    outside = report("c")
    # The machine's 8 GiB less the promise are more than three times what each of the two gets.
    share = (2 * GIB - headroom) // 2
    assert usable(one, other, outside) == [share, share, 7 * GIB - 2 * share]


def test_headroom_is_less_where_there_is_less() -> None:
    assert headroom_bytes(224 * 2**20) == 7 * 2**20
    assert headroom_bytes(64 * GIB) == 64 * 2**20


def test_units_of_one_node_that_share_its_memory_have_one_budget_and_others_their_own() -> None:
    cpu = report("a").units[0]
    mali = msgspec.structs.replace(cpu, unit_id=UnitId("soc/b"))
    card = msgspec.structs.replace(mali, unit_id=UnitId("card/b"), is_shared=False)
    node = msgspec.structs.replace(report("a"), units=(cpu, mali, card))
    assert usable(node) == [4 * GIB, 4 * GIB, 8 * GIB]


def test_units_that_do_not_work_are_offered_nothing() -> None:
    broken = msgspec.structs.replace(report("a").units[0], role=Role.OUT, reason="wrong numbers")
    node = msgspec.structs.replace(report("a"), units=(broken,))
    assert usable(node, report("b")) == [8 * GIB]


CARD = UnitReport(
    unit_id=UnitId("card/b"),
    backend="b",
    description="",
    usable_bytes=6 * GIB,
    is_shared=False,
    num_threads=1,
    max_threads=1,
)


def with_units(node: NodeReport, *units: UnitReport) -> NodeReport:
    return msgspec.structs.replace(node, units=units)


def test_what_a_cards_stage_takes_of_the_machine_is_not_offered_to_others() -> None:
    (cpu,) = report("a").units
    node = with_units(report("a"), cpu, CARD)
    offered = offers((node, report("b")), (node, report("b")), host_bytes={"b": GIB})
    # A GiB of the machine's 8 is set aside, and the two CPUs share the rest.
    assert [each.usable_bytes for each in offered.offers] == [7 * GIB // 2, 6 * GIB, 7 * GIB // 2]
    assert offered.rejections == ()


def test_a_limit_of_the_node_holds_for_a_card_and_the_cpu_together() -> None:
    limited = report("a", usable=2 * GIB)
    (cpu,) = limited.units
    node = with_units(limited, cpu, CARD)
    offered = offers((node,), (node,), host_bytes={"b": GIB})
    assert [each.usable_bytes for each in offered.offers] == [GIB, 6 * GIB]


def test_a_node_without_memory_for_a_cards_stage_does_not_offer_it() -> None:
    second = msgspec.structs.replace(CARD, unit_id=UnitId("second/b"))
    limited = report("a", usable=3 * GIB // 2)
    (cpu,) = limited.units
    node = with_units(limited, cpu, CARD, second)
    offered = offers((node,), (node,), host_bytes={"b": GIB})
    # One of two equal cards gets what there is, and the CPU what that leaves.
    assert [(each.unit_id, each.usable_bytes) for each in offered.offers] == [
        (cpu.unit_id, GIB // 2),
        (CARD.unit_id, 6 * GIB),
    ]
    assert [(each.unit_id, each.reason) for each in offered.rejections] == [
        (
            second.unit_id,
            "a stage there also needs 1 GiB of the machine's memory, of which 512 MiB are usable",
        )
    ]
    # The machine may have none left although nobody limits the node.
    full = msgspec.structs.replace(
        node,
        usable_bytes=8 * GIB,
        pools=(MemoryPool(pool_id="h", limit_bytes=TOTAL, available_bytes=GIB),),
    )
    assert len(offers((full,), (full,), host_bytes={"b": GIB}).rejections) == 2


def test_units_are_offered_by_their_roles() -> None:
    (cpu,) = report("a").units
    roles = {
        "serves": (Role.SERVES, ""),
        "slow": (Role.RESERVE, "slower than it"),
        "idle": (Role.IDLE, "something else was asked for"),
        "out": (Role.OUT, "it hung"),
    }
    units = [
        msgspec.structs.replace(cpu, unit_id=UnitId(name), role=role, reason=reason)
        for name, (role, reason) in roles.items()
    ]
    node = with_units(report("a"), *units)
    first = offers((node,), (node,))
    assert [(each.unit_id, each.usable_bytes) for each in first.offers] == [("serves", 8 * GIB)]
    assert [(each.unit_id, each.reason) for each in first.rejections] == [
        ("slow", "in reserve: slower than it"),
        ("idle", "idle: something else was asked for"),
        ("out", "it hung"),
    ]
    every = offers((node,), (node,), with_reserve=True)
    assert [each.unit_id for each in every.offers] == ["serves", "slow"]
    assert [each.unit_id for each in every.rejections] == ["idle", "out"]
    draining = msgspec.structs.replace(node, is_draining=True)
    nothing = offers((draining,), (draining,), with_reserve=True)
    assert (nothing.offers, nothing.rejections) == ((), ())
