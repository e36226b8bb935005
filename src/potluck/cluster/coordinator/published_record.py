"""The record of a deployment, and its voters, as published by the coordinator."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from potluck.cluster.network.membership import Membership
from potluck.errors import EngineError, InsufficientMemoryError, PotluckError
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord, DeploymentState

_log = logging.getLogger(__name__)

_PUBLISH_SECONDS = 0.3
_RETRY_AFTER_SECONDS = 5
"""The default if nothing better is known: answers end within seconds."""

SETTLED_SECONDS = 3.0
"""The time after the lease within which a partitioned node sees all of its links as down."""


Publish = Callable[[DeploymentRecord, bool], None]
"""Publishes a record; True means that only the progress of loading has changed in it."""


class PublishedRecord:
    """Counts the revisions of a record, and publishes it while its epoch is this node's.

    ``placed`` returns a record with the epoch and the stages in force, ``because`` completes a
    reason with the units that are out. ``publish`` tells every agent, but may delay mere progress.
    For use in the agent's loop.
    """

    def __init__(
        self,
        record: DeploymentRecord,
        *,
        node_id: NodeId,
        placed: Callable[[DeploymentRecord], DeploymentRecord],
        because: Callable[[str], str],
        publish: Publish,
        clock: Callable[[], float],
    ) -> None:
        self._record = record
        self._node_id = node_id
        self._placed = placed
        self._because = because
        self._publish = publish
        self._clock = clock
        self._last_published = 0.0
        self._why = ""  # why it does not serve, from the last failure

    @property
    def record(self) -> DeploymentRecord:
        """Return the current record."""
        return self._record

    @property
    def is_own(self) -> bool:
        """Return whether its epoch was claimed by this node."""
        return self._record.epoch.coordinator == self._node_id

    def update(self, **status: object) -> None:
        """Change fields of the status, and publish the record."""
        self._change(lambda record: record.with_status(**status))

    def update_progress(self, **status: object) -> None:
        """Publish the progress of stages; other nodes may learn of it later."""
        self._change(lambda record: record.with_status(**status), is_progress=True)

    def set_removed(self, reason: str) -> None:
        """Publish that the deployment has ended."""
        self._change(lambda record: record.removed(reason))

    def rename(self, model_id: str) -> None:
        """Publish another name for clients."""
        self._change(lambda record: replace(record, model_id=model_id))

    def count_voters(self, voters: Iterable[NodeId]) -> None:
        """Publish who knows of the deployment."""
        self._change(lambda record: replace(record, voters=tuple(voters)))

    def _change(
        self, change: Callable[[DeploymentRecord], DeploymentRecord], *, is_progress: bool = False
    ) -> None:
        record = change(self._placed(self._record))
        self._record = replace(record, revision=record.revision + 1)
        self._last_published = self._clock()
        if self.is_own:
            # Before its first epoch it must not publish: there may be another coordinator that is
            # only unreachable from here, and whose record this one would supersede.
            self._publish(self._record, is_progress)

    def publish_state(self, state: DeploymentState, reason: str) -> None:
        """Publish whether it serves, and why it does not."""
        published_reason = self._because(reason)
        match state:
            case DeploymentState.READY:
                self.update(state=state, reason="", ready_in_seconds=None)
            case DeploymentState.DEGRADED:
                self._why = reason
                self.update(state=state, reason=published_reason)
            case _:
                self.update(
                    state=state,
                    reason=published_reason,
                    done_bytes=0,
                    ready_in_seconds=self._record.status.recovery_seconds,
                )

    def publish_progress(self, doing: str, done_bytes: int, total_bytes: int) -> None:
        """Publish a new activity immediately, and its progress at intervals."""
        published_reason = self._because(doing)
        if published_reason != self._record.status.reason:
            self.update(reason=published_reason, done_bytes=done_bytes, total_bytes=total_bytes)
        elif self._clock() - self._last_published > _PUBLISH_SECONDS:
            self.update_progress(done_bytes=done_bytes, total_bytes=total_bytes)

    def publish_pause(self, seconds: float | None) -> None:
        """Publish when it may be ready: after a pause and as long as it took the last time; None if
        that depends on a node that joins.
        """
        recovery_seconds = self._record.status.recovery_seconds or 0.0
        self.update(ready_in_seconds=None if seconds is None else seconds + recovery_seconds)

    def note_recovery(self, seconds: float) -> None:
        """Count a recovery, to be published with the next change."""
        _log.warning("%s: ready again after %.1f s", self._record.model_id, seconds)
        num_recoveries = self._record.status.num_recoveries + 1
        self._record = self._record.with_status(
            num_recoveries=num_recoveries, recovery_seconds=seconds
        )

    def note_move(self, gain: float) -> None:
        """Count a move to a better plan, to be published with the next change."""
        num_moves = self._record.status.num_moves + 1
        self._record = self._record.with_status(num_moves=num_moves, last_gain=gain)

    def why_not(self) -> PotluckError:
        """Return the error for a request that no stages can compute."""
        why = self._why or self._record.status.reason or self._record.status.state.value
        return EngineError(
            f"the model {self._record.model_id} cannot answer now: {why}",
            hint="try again in a moment; potluck ps shows its state",
        )

    def why_no_plan(self, misfit: InsufficientMemoryError, lost: Sequence[NodeId]) -> PotluckError:
        """Return the error for a request while the model does not fit on the nodes that are there.

        ``lost`` are the nodes of its last stages that are not.
        """
        nodes = " and ".join(f"node {each}" for each in lost)
        without = f"without {nodes}, " if nodes else ""
        return EngineError(
            f"the model {self._record.model_id} cannot answer: {without}{misfit.message}",
            hint=misfit.hint or "add a node with more memory; potluck ps shows what is there",
        )

    def retry_after(self) -> int:
        """Return in how many whole seconds a request that is refused now may be accepted."""
        return max(1, math.ceil(self._record.status.ready_in_seconds or _RETRY_AFTER_SECONDS))


class Voters:
    """Keeps ``DeploymentRecord.voters`` up to date: the nodes whose agreement an epoch needs.

    For use in the agent's loop.
    """

    def __init__(self, membership: Membership, published: PublishedRecord) -> None:
        self._membership = membership
        self._published = published
        self._settling: asyncio.TimerHandle | None = None

    def node_joined(self) -> None:
        """Count a node that has joined as a voter.

        Otherwise the few nodes that first knew of the deployment could outvote all that joined
        later.
        """
        record = self._published.record
        there = self._membership.reachable_nodes() | {*record.voters}
        is_new = bool(record.voters) and there != {*record.voters}
        if self._published.is_own and record.has_quorum and is_new:
            self._published.count_voters(sorted(there))

    def node_left(self, node_id: NodeId) -> None:
        """Stop counting a node that has left, once it is clear that most voters are still
        reachable.

        Otherwise nodes that joined and left again could outvote all that are present. A partitioned
        node sees the others leave one by one, and must not mistake the first for the only one.
        """
        if node_id in self._published.record.voters:
            self.close()
            loop = asyncio.get_running_loop()
            self._settling = loop.call_later(SETTLED_SECONDS, self._forget)

    def close(self) -> None:
        """Stop removing voters. Idempotent."""
        if self._settling is not None:
            self._settling.cancel()

    def _forget(self) -> None:
        record = self._published.record
        there = self._membership.reachable_nodes()
        left = [voter for voter in record.voters if voter in there]
        are_most = len(left) < len(record.voters) < 2 * len(left)
        if self._published.is_own and record.has_quorum and are_most:
            self._published.count_voters(left)
