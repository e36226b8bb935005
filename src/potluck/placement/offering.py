"""The units that a model may be placed on, and the memory that each may use. Pure.

Serving units come first. Units in reserve, which are slower than others of their node, are offered
only if the model does not fit without them; all others are never offered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from potluck.types.cluster import NodeId, NodeUnitId
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import Rejection, UnitOffer
from potluck.types.quantities import format_bytes
from potluck.types.unit import Role

_MAX_HEADROOM_BYTES = 64 * 2**20
_HEADROOM_SHARE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A shared memory: all ``members`` (indices of units) may use ``left_bytes`` together."""

    left_bytes: int
    members: frozenset[int]


def fair_shares(most_bytes: Sequence[int], pools: Sequence[Pool]) -> list[int]:
    """Return what each unit may use, at most its ``most_bytes``, without overdrawing any pool.

    Max-min fair (Bertsekas and Gallager, Data Networks, section 6.5.2): all units' shares rise
    together until one reaches its maximum or a pool is used up; the others continue. A unit that
    cannot use an equal part leaves the rest to the others.
    """
    shares = [max(0, most) for most in most_bytes]
    rising = set(range(len(shares)))
    left = [max(0, pool.left_bytes) for pool in pools]
    while rising:
        full = min(rising, key=lambda unit: (shares[unit], unit))
        level, stopping = shares[full], {full}
        for pool, pool_left in zip(pools, left, strict=True):
            drawing = pool.members & rising
            if drawing and pool_left // len(drawing) < level:
                level, stopping = pool_left // len(drawing), set(drawing)
        for unit in stopping:
            shares[unit] = level
        rising -= stopping
        left = [
            pool_left - level * len(pool.members & stopping)
            for pool, pool_left in zip(pools, left, strict=True)
        ]
    return shares


def headroom_bytes(limit_bytes: int) -> int:
    """Return how much shared memory to leave unplanned: 1/32, at most 64 MiB.

    Workers check again when they load, and by then other processes (or, in a control group, the
    agent) may have taken some memory. If they took more, the next epoch is planned with what is
    left.
    """
    return min(_MAX_HEADROOM_BYTES, limit_bytes // _HEADROOM_SHARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Units on which stages may be placed, and those on which they may not, with the reasons.

    ``offers`` have shares of memory that all units may use at the same time. A plan that leaves
    some of them out may use more on others: at most ``most_bytes`` on each, and at most the memory
    of each of the ``pools``, whose members are indices of ``offers``.
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
    """Return what the units of ``candidates`` may use, without draining nodes.

    Units that draw on the same memory, whichever agent they belong to (those of one machine or one
    control group), share fairly what is left of it after the stages of all agents: ``reports`` are
    those of every agent, so that memory promised by one of them is not offered by the others.

    A stage on a unit with memory of its own takes some host memory as well: ``host_bytes`` by
    backend, set aside before the others share. A node that does not have them offers no such unit.
    """
    staying = [report for report in candidates if not report.is_draining]
    offering = sifted(staying, lambda unit: reason_against(unit, with_reserve=with_reserve))
    taking = [(report, unit) for report in offering.reports for unit in report.units]
    rejections = list(offering.rejections)
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
                f"a stage there also needs {format_bytes(needed)} of the machine's memory, of "
                f"which {format_bytes(max(0, room))} are usable"
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
        # A limit of the node applies to everything that its stages take of host memory.
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
    """Return a pool for each node with several units that draw on its memory, such as CPU and
    GPU.
    """
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
    """Return why a unit is not offered, according to its role; None if it is."""
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


def units_by_id(reports: Iterable[NodeReport]) -> dict[NodeUnitId, UnitReport]:
    """Return all units of all nodes."""
    return {(report.node_id, unit.unit_id): unit for report in reports for unit in report.units}


def usable_units(
    reports: Sequence[NodeReport], *, with_reserve: bool
) -> list[tuple[NodeReport, UnitReport]]:
    """Return the units that may be offered, each with its node's report."""
    return [
        (report, unit)
        for report in reports
        if not report.is_draining
        for unit in report.units
        if reason_against(unit, with_reserve=with_reserve) is None
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sifted:
    """Reports without some of their units, and these units with the reasons."""

    reports: tuple[NodeReport, ...]
    rejections: tuple[Rejection, ...]


def sifted(reports: Sequence[NodeReport], reason_of: Callable[[UnitReport], str | None]) -> Sifted:
    """Return ``reports`` without the units that have a reason against them."""
    kept: list[NodeReport] = []
    rejections: list[Rejection] = []
    for report in reports:
        units: list[UnitReport] = []
        for unit in report.units:
            reason = reason_of(unit)
            if reason is None:
                units.append(unit)
            else:
                rejections.append(_rejection(report, unit, reason))
        kept.append(msgspec.structs.replace(report, units=tuple(units)))
    return Sifted(reports=tuple(kept), rejections=tuple(rejections))


def _left_by_pool(reports: Sequence[NodeReport]) -> dict[str, int]:
    """Return the memory that all units together may still use of each pool."""
    left = {}
    for pool in {pool.pool_id: pool for report in reports for pool in report.pools}.values():
        drawing = [report for report in reports if pool.pool_id in report.pool_ids]
        # Reports are from different moments: use the smallest reported value.
        seen = min(p.available_bytes for r in drawing for p in r.pools if p.pool_id == pool.pool_id)
        promised = sum(report.untaken_bytes for report in drawing)
        left[pool.pool_id] = seen - headroom_bytes(pool.limit_bytes) - promised
    return left


def _rejection(report: NodeReport, unit: UnitReport, reason: str) -> Rejection:
    return Rejection(node_id=report.node_id, unit_id=unit.unit_id, reason=reason)
