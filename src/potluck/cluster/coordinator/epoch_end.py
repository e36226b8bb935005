"""What the end of an epoch says about its stages and their units."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from potluck.cluster.calls import StageEnds, StageScope
from potluck.cluster.coordinator.excluded_units import ExcludedUnits, NodeUnitId, StageError
from potluck.cluster.coordinator.outages import outage_lines, units_out
from potluck.cluster.membership import Membership
from potluck.cluster.methods import END_STAGES
from potluck.errors import EngineError, InsufficientMemoryError, PotluckError
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord


class EpochEnds:
    """Asks the nodes of an epoch how it ended, and remembers which units have been out since
    then.
    """

    def __init__(self, membership: Membership, clock: Callable[[], float] = time.monotonic) -> None:
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
        """Ask which units are out after an attempt that failed; return as ``outages`` does."""
        there = set(self._nodes_of(record))
        stages = [stage for stage in record.stages if stage.node_id in there]
        return self._outages_of(
            error, record, await units_out(self._membership, stages), is_first=is_first
        )

    def outages(
        self, error: PotluckError, record: DeploymentRecord, ends: Mapping[NodeId, StageEnds]
    ) -> tuple[str, ...]:
        """Return why the next plan has other units than the epoch's stages, one line each.

        Either their nodes say so, or a unit is temporarily excluded from now on because of
        ``error``.
        """
        out = {node: each.out for node, each in ends.items()}
        return self._outages_of(error, record, outage_lines(out, record.stages), is_first=False)

    def _outages_of(
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
        """The deployment serves again: earlier outages are no longer reported."""
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
        there = self._membership.nodes() | {self._membership.node_id}
        return sorted({stage.node_id for stage in record.stages} & there)
