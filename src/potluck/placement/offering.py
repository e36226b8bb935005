"""What a model may be placed on: units that work, and the memory that each may use. Pure.

Units that serve come first. Those in reserve, which are slower than others of their node, are
offered only where the model does not fit without them; the rest never are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from potluck.placement.sharing import Pool, fair_shares
from potluck.quantities import format_bytes
from potluck.types.cluster import NodeId
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import Rejection, UnitOffer
from potluck.types.unit import Role

_MAX_HEADROOM_BYTES = 64 * 2**20
_HEADROOM_SHARE = 32


def headroom_bytes(limit_bytes: int) -> int:
    """Of memory that is shared, what no plan counts on: a 32nd, at most 64 MiB.

    The workers look again when they load, and by then others may have taken some: the rest of the
    machine, or in a control group its agent. If they took more, the next epoch is planned with
    what is left.
    """
    return min(_MAX_HEADROOM_BYTES, limit_bytes // _HEADROOM_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Units that stages may be placed on, and those that may not be, with the reasons.

    ``offers`` have shares of memory that all of them may use at the same time. A plan that leaves
    some of them out may use more on others: ``most_bytes`` on each, and no more than each of the
    ``pools`` has, whose members are indices of ``offers``.
    """

    offers: tuple[UnitOffer, ...]
    rejections: tuple[Rejection, ...]
    most_bytes: tuple[int, ...] = ()
    pools: tuple[Pool, ...] = ()


def offers(
    reports: Sequence[NodeReport],
    candidates: Sequence[NodeReport],
    *,
    with_reserve: bool = False,
    host_bytes: Mapping[str, int] | None = None,
) -> Offered:
    """What the units of ``candidates`` may use; nodes that drain are out.

    Units that draw on the same memory, of whichever agents (those of one machine, those of one
    control group), share fairly what is left of it after all the agents' stages: ``reports`` are
    of every agent, so that a promise made by one of them binds the others.

    A stage on a unit with memory of its own takes some of its machine's as well: by backend the
    ``host_bytes``, which are set aside before others share. A node that does not have them offers
    no such unit.
    """
    taking: list[tuple[NodeReport, UnitReport]] = []
    rejections: list[Rejection] = []
    for report in candidates:
        if report.is_draining:
            continue
        for unit in report.units:
            reason = reason_against(unit, with_reserve=with_reserve)
            if reason is None:
                taking.append((report, unit))
            else:
                rejections.append(_rejection(report, unit, reason))
    left = _left_by_pool(reports)
    set_aside: Counter[NodeId] = Counter()
    for report, unit in [each for each in taking if not each[1].is_shared]:
        needed = (host_bytes or {}).get(unit.backend, 0)
        room = min(
            [
                report.usable_bytes - set_aside[report.node_id],
                *(left[pool_id] for pool_id in report.pool_ids),
            ]
        )
        if room < needed:
            reason = (
                f"a stage there takes {format_bytes(needed)} of the machine's memory as well, and "
                f"{format_bytes(max(0, room))} of it may be used"
            )
            taking.remove((report, unit))
            rejections.append(_rejection(report, unit, reason))
            continue
        set_aside[report.node_id] += needed
        for pool_id in report.pool_ids:
            left[pool_id] -= needed
    pools = [
        Pool(
            left_bytes=left_bytes,
            members=frozenset(
                index
                for index, (report, unit) in enumerate(taking)
                if unit.is_shared and pool_id in report.pool_ids
            ),
        )
        for pool_id, left_bytes in left.items()
    ]
    most = [
        # A limit of the node is one for all that its stages take of the machine's memory.
        min(unit.usable_bytes, report.usable_bytes - set_aside[report.node_id])
        if unit.is_shared
        else unit.usable_bytes
        for report, unit in taking
    ]
    pools += _node_pools(taking, most)
    return Offered(
        offers=tuple(
            UnitOffer(node_id=report.node_id, unit_id=unit.unit_id, usable_bytes=share)
            for (report, unit), share in zip(taking, fair_shares(most, pools), strict=True)
        ),
        rejections=tuple(rejections),
        most_bytes=tuple(
            max(0, min([each, *(pool.left_bytes for pool in pools if index in pool.members)]))
            for index, each in enumerate(most)
        ),
        pools=tuple(pool for pool in pools if len(pool.members) > 1),
    )


def _node_pools(taking: Sequence[tuple[NodeReport, UnitReport]], most: Sequence[int]) -> list[Pool]:
    """A pool for each node with several units that draw on its memory, such as a CPU and a GPU."""
    members: dict[NodeId, set[int]] = {}
    for index, (report, unit) in enumerate(taking):
        if unit.is_shared:
            members.setdefault(report.node_id, set()).add(index)
    return [
        Pool(left_bytes=max(most[index] for index in indices), members=frozenset(indices))
        for indices in members.values()
        if len(indices) > 1
    ]


def reason_against(unit: UnitReport, *, with_reserve: bool) -> str | None:
    """Why a unit is not offered, by its role; None if it is."""
    match unit.role:
        case Role.SERVES:
            return None
        case Role.RESERVE:
            return None if with_reserve else f"in reserve: {unit.reason}"
        case Role.IDLE:
            return f"idle: {unit.reason}"
        case Role.PENDING:
            return f"not tested yet: {unit.reason}"
        case Role.OUT:
            return unit.reason


def _left_by_pool(reports: Sequence[NodeReport]) -> dict[str, int]:
    """What all units together may still use of each pool."""
    left = {}
    for pool in {pool.pool_id: pool for report in reports for pool in report.pools}.values():
        drawing = [report for report in reports if pool.pool_id in report.pool_ids]
        # Reports are not of one moment: the least that anybody saw counts.
        seen = min(p.available_bytes for r in drawing for p in r.pools if p.pool_id == pool.pool_id)
        promised = sum(report.untaken_bytes for report in drawing)
        left[pool.pool_id] = seen - headroom_bytes(pool.limit_bytes) - promised
    return left


def _rejection(report: NodeReport, unit: UnitReport, reason: str) -> Rejection:
    return Rejection(node_id=report.node_id, unit_id=unit.unit_id, reason=reason)
