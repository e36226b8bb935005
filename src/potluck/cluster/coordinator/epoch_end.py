"""The end of an epoch, and what it implies for its stages and their units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from potluck.cluster.coordinator.excluded_units import ExcludedUnits, StageError
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import StageEnds, StageScope
from potluck.cluster.wire.methods import END_STAGES, REPORT
from potluck.errors import EngineError, InsufficientMemoryError, PotluckError
from potluck.types.cluster import NodeId, NodeUnitId, UnitId
from potluck.types.deployment import DeploymentRecord, StageRecord
from potluck.types.unit import Role

_REPORT_SECONDS = 2.0
"""A node that is slower reports it when the next epoch is planned."""


class EpochEnds:
    """Asks the nodes of an epoch how it ended, and remembers which units have been out since
    then.
    """

    def __init__(self, membership: Membership, clock: Callable[[], float]) -> None:
        self._membership = membership
        self._clock = clock
        self._excluded = ExcludedUnits()
        self._outages: tuple[str, ...] = ()  # since the deployment last served
        self._failure: StageError | None = None  # the latest since then

    async def close(self, record: DeploymentRecord) -> Mapping[NodeId, StageEnds]:
        """Close the epoch's edges; return how its stages ended, by node."""
        scope = StageScope(deployment=record.deployment, epoch=record.epoch)
        scopes = dict.fromkeys(self._nodes_of(record), scope)
        return await END_STAGES.call_all(self._membership, scopes)

    async def failed(
        self, error: PotluckError, record: DeploymentRecord, *, is_first: bool = False
    ) -> tuple[str, ...]:
        """Return why the plan after a failed attempt has other units, one line each.

        Either their nodes say so, or a unit is temporarily excluded from now on because of
        ``error``.
        """
        there = set(self._nodes_of(record))
        stages = [stage for stage in record.stages if stage.node_id in there]
        outages = await units_out(self._membership, stages)
        return self._note_units(error, record, outages, is_first=is_first)

    def ended(
        self, error: PotluckError, record: DeploymentRecord, ends: Mapping[NodeId, StageEnds]
    ) -> None:
        """Note which units are out after an epoch whose stages ended like this."""
        out = {node: each.out for node, each in ends.items()}
        self._note_units(error, record, outage_lines(out, record.stages), is_first=False)

    def _note_units(
        self,
        error: PotluckError,
        record: DeploymentRecord,
        outages: tuple[str, ...],
        *,
        is_first: bool,
    ) -> tuple[str, ...]:
        if isinstance(error, StageError):
            self._failure = error
            before = self.left_out(is_first=False)
            self._excluded = self._excluded.failed(
                error, record.epoch, self._clock(), is_first=is_first
            )
            unit = f"{error.unit_id} on node {error.node_id}"
            is_excluded = self.left_out(is_first=False).keys() > before.keys()
            if is_excluded and not any(line.startswith(unit) for line in outages):
                outages += (f"{unit} is temporarily excluded",)
        self.note(outages)
        return outages

    def note(self, outages: tuple[str, ...]) -> None:
        """Report these lines, too, until the deployment serves again."""
        self._outages += tuple(line for line in outages if line not in self._outages)

    def left_out(self, *, is_first: bool) -> dict[NodeUnitId, str]:
        """Return the units to plan without, with the reasons; see ``ExcludedUnits.reasons``."""
        return self._excluded.reasons(self._clock(), is_first=is_first)

    def served(self) -> None:
        """Note that the deployment serves again, and report earlier outages no longer."""
        self._outages = ()
        self._failure = None
        self._excluded = self._excluded.served()

    def because(self, what: str) -> str:
        """Return what is in progress, and which units are out."""
        return "; ".join((what, *self._outages))

    def with_outages(self, error: PotluckError) -> PotluckError:
        """Return the error of a plan with the failures before it, which are why it was made."""
        if not self._outages:
            return error
        if self._failure is None or self._failure is error:
            return EngineError(self.because(error.message), hint=error.hint)
        if not isinstance(error, InsufficientMemoryError):
            return EngineError(self.because(self._failure.message), hint=self._failure.hint)
        if error.available_bytes <= 0:  # there is nothing but the units that failed
            return EngineError(self._failure.message, hint=self._failure.hint)
        reason = f"{self.because(self._failure.message)}; without it, {error.message}"
        return EngineError(reason, hint=self._failure.hint or error.hint)

    def _nodes_of(self, record: DeploymentRecord) -> list[NodeId]:
        """Return the nodes of its stages that are members."""
        there = self._membership.reachable_nodes()
        return sorted({stage.node_id for stage in record.stages} & there)


async def units_out(membership: Membership, stages: Sequence[StageRecord]) -> tuple[str, ...]:
    """Return why units of these stages are out by now, one line each, in the order of the stages.

    Call it after the stages were stopped: their nodes have then seen how all of their workers
    ended.
    """
    reports = await REPORT.call_all(
        membership,
        dict.fromkeys(stage.node_id for stage in stages),
        timeout_seconds=_REPORT_SECONDS,
    )
    out = {
        node: {unit.unit_id: unit.reason for unit in report.units if unit.role is Role.OUT}
        for node, report in reports.items()
    }
    return outage_lines(out, stages)


def outage_lines(
    out: Mapping[NodeId, Mapping[UnitId, str]], stages: Iterable[StageRecord]
) -> tuple[str, ...]:
    """Return a line for each unit of ``stages`` that is ``out``, with its node's reason."""
    units = dict.fromkeys(stage.unit for stage in stages)
    return tuple(
        f"{unit_id} on node {node_id} is out: {out[node_id][unit_id]}"
        for node_id, unit_id in units
        if unit_id in out.get(node_id, {})
    )
