"""Units that a deployment temporarily plans without, because its stages failed on them.

The node itself may not know: it reports its CPU as usable although its disk is full, or although it
cannot start another process. Pure: callers have the clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck.errors import EngineError
from potluck.types.cluster import Epoch, NodeId, NodeUnitId, UnitId
from potluck.types.unit import pause_seconds

_MOST_ALIKE = 2
"""If stages failed for the same cause on more units than these, the model is the cause."""

_MOST_FAILURES = 2
"""A stage that cannot be loaded is tried again on the same unit before that is excluded: the cause
may have been the node's state at that moment. Not while a model is first deployed, as the user
waits for any plan that works."""


class StageError(EngineError):
    """A stage could not be loaded on the unit ``unit_id`` of the node ``node_id``, or has failed.

    ``cause`` is the message without the names of the stage and its node.
    """

    def __init__(
        self, index: int, node_id: NodeId, unit_id: UnitId, cause: str, *, hint: str = ""
    ) -> None:
        super().__init__(f"stage {index} on node {node_id}: {cause}", hint=hint)
        self.node_id = node_id
        self.unit_id = unit_id
        self.cause = cause


class StageStalledError(StageError):
    """A stage made no progress while loading or in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failures:
    """The failures of a unit: ``count`` since it last served, the latest in ``epoch``.

    It is excluded until ``until``, for the ``num_exclusions``-th time.
    """

    reason: str = ""
    cause: str = ""
    epoch: Epoch | None = None
    count: int = 0
    until: float = 0.0
    num_exclusions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedUnits:
    """Which units failed, and until when each is excluded. Times are in seconds."""

    failures: Mapping[NodeUnitId, _Failures] = field(default_factory=dict)

    def failed(
        self, error: StageError, epoch: Epoch, now: float, *, is_first: bool
    ) -> ExcludedUnits:
        """Return the state after a failure in ``epoch``; several in one epoch count as one.

        A unit whose stage has stalled is excluded at once, since every try takes long. A unit that
        was used although it is excluded, because there was no plan without it, stays excluded for
        as long as before.
        """
        unit = (error.node_id, error.unit_id)
        before = self.failures.get(unit, _Failures())
        if before.epoch == epoch:
            return self
        after = dataclasses.replace(
            before,
            reason=error.message,
            cause=error.cause,
            epoch=epoch,
            count=before.count + 1,
        )
        is_due = is_first or isinstance(error, StageStalledError) or after.count >= _MOST_FAILURES
        num_alike = sum(
            each.count > 0 and each.cause == error.cause for each in self.failures.values()
        )
        if is_due and before.until <= now and num_alike <= _MOST_ALIKE:
            number = before.num_exclusions + 1
            until = now + pause_seconds(number)
            after = dataclasses.replace(after, until=until, num_exclusions=number)
        return dataclasses.replace(self, failures={**self.failures, unit: after})

    def served(self) -> ExcludedUnits:
        """Return the state when a plan serves: only failures from here on are consecutive."""
        failures = {
            unit: dataclasses.replace(each, count=0)
            for unit, each in self.failures.items()
            if each.num_exclusions
        }
        return dataclasses.replace(self, failures=failures)

    def reasons(self, now: float, *, is_first: bool) -> dict[NodeUnitId, str]:
        """Return the reason for each unit that is excluded.

        While a model is deployed for the first time none is used again, so that every attempt has
        fewer units and the attempts come to an end.
        """
        return {
            unit: each.reason
            for unit, each in self.failures.items()
            if each.num_exclusions and (is_first or now < each.until)
        }
