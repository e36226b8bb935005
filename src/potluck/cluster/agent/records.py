"""The records of the cluster's deployments, as every agent keeps them and sends them to others.

A record is written by the coordinator of its deployment alone. Every agent keeps the latest one of
each deployment, agrees to epochs by it, and corrects nodes that have an older one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from potluck.cluster.background import SharedCalls, Spawn, is_set_within
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import (
    AskCoordinatorView,
    Claim,
    ClaimAnswer,
    CoordinatorView,
    pack_record,
)
from potluck.cluster.wire.methods import COORDINATOR_VIEW, PUT
from potluck.errors import CallError, ParameterError
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import DeploymentRecord

_log = logging.getLogger(__name__)

_PROGRESS_BYTES_PER_SECOND = 32 * 1024
"""How much of a node's link the progress of loading a model may take, for all other nodes together:
3 % of 10 Mbit/s. With 14 nodes, the others learn of it about every second."""

_MOST_RETRIES = 10
_AGAIN_SECONDS = 5.0
"""The most times that records are sent again to a node that does not answer, and the delay before
each. A slow board may take a minute to start its agent."""

MAX_REMOVED = 256
"""The number of removed deployments remembered; records of older ones no longer arrive."""


MAX_PROMISES = 1024
"""The number of deployments remembered: more than a cluster has in months, in some hundred KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """The highest epoch by deployment, seen or promised, in order of their last change.

    Promises are not stored on disk. They only settle which of several candidates continues; what
    keeps two coordinators from extending one sequence is that workers obey the highest epoch that
    they have seen. ``taken`` are the deployments whose highest epoch was seen in a record.
    """

    highest: Mapping[DeploymentId, Epoch] = field(default_factory=dict)
    taken: frozenset[DeploymentId] = frozenset()

    def seen(self, deployment: DeploymentId, epoch: Epoch) -> Promises:
        """Return the promises after a record of ``epoch`` was seen: no lower one is agreed to."""
        known = self.highest.get(deployment)
        if known is not None and known > epoch:
            return self
        raised = self._raised(deployment, epoch)
        return replace(raised, taken=raised.taken | {deployment})

    def _raised(self, deployment: DeploymentId, epoch: Epoch) -> Promises:
        others = {key: each for key, each in self.highest.items() if key != deployment}
        kept = dict(list(others.items())[-(MAX_PROMISES - 1) :])
        return Promises(highest={**kept, deployment: epoch}, taken=self.taken & kept.keys())

    def answer(
        self, claim: Claim, record: DeploymentRecord | None, *, sees_coordinator: bool
    ) -> tuple[Promises, ClaimAnswer]:
        """Return the answer to ``claim``, and the promises after it.

        ``record`` is this node's record of the deployment, and ``sees_coordinator`` says whether
        the coordinator that it names is a member and, if it is this node itself, is active.
        """
        highest = self.highest.get(claim.deployment)
        if record is not None and (highest is None or highest < record.epoch):
            highest = record.epoch
        later = None
        if record is not None and (record.epoch > claim.known or record.is_removed):
            later = record
        reason = self._objection(claim, record, highest, sees_coordinator=sees_coordinator)
        if reason:
            return self, ClaimAnswer(is_granted=False, reason=reason, highest=highest, record=later)
        promises = self._raised(claim.deployment, claim.epoch)
        return promises, ClaimAnswer(is_granted=True, highest=claim.epoch)

    def _objection(
        self,
        claim: Claim,
        record: DeploymentRecord | None,
        highest: Epoch | None,
        *,
        sees_coordinator: bool,
    ) -> str:
        """Return why it does not agree; empty if it does.

        A claimant that was promised an epoch but did not take it, because too few others agreed,
        may ask for it again.
        """
        claimant = claim.epoch.coordinator
        if record is not None:
            coordinator = record.epoch.coordinator
            if record.is_removed:
                return "the deployment was removed"
            if record.epoch > claim.known:
                return f"it is already at epoch {record.epoch.number} of node {coordinator}"
            may_follow = claimant in (coordinator, record.status.successor)
            if sees_coordinator and not may_follow:
                return f"node {coordinator} coordinates it"
        is_repeated = highest == claim.epoch and claim.deployment not in self.taken
        if highest is not None and highest >= claim.epoch and not is_repeated:
            return f"epoch {highest.number} of node {highest.coordinator} was seen or promised"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Records by deployment, in order of their last change.

    A removal is final, whatever its epoch: ids are used only once, and a late record, or a
    coordinator that was partitioned, must not revive what the user has removed.
    """

    records: dict[DeploymentId, DeploymentRecord] = field(default_factory=dict)

    def put(self, record: DeploymentRecord, *, is_coordinator_lost: bool = False) -> Registry:
        """Return the registry with ``record``; the same one if the record is outdated.

        A record without a quorum replaces one that has it only if the coordinator of the latter
        ``is_coordinator_lost``, on the side of a partition that continues alone, or if the
        coordinator is the same, since then the others have not continued.
        """
        known = self.records.get(record.deployment)
        if known is not None:
            if known.is_removed:
                return self
            is_same = record.epoch.coordinator == known.epoch.coordinator
            goes_on_alone = (is_coordinator_lost or is_same) and record.epoch > known.epoch
            is_news = record.supersedes(known) or goes_on_alone
            if not record.is_removed and not is_news:
                return self
        records = {**self.records, record.deployment: record}
        removed = [key for key, each in records.items() if each.is_removed]
        for key in removed[:-MAX_REMOVED]:
            del records[key]
        return replace(self, records=records)

    def live(self) -> tuple[DeploymentRecord, ...]:
        """Return the deployments that are not removed, oldest first."""
        live = [record for record in self.records.values() if not record.is_removed]
        return tuple(sorted(live, key=lambda record: (record.created, record.deployment)))

    def find(self, name: str) -> DeploymentRecord | None:
        """Return the live deployment with the given model id or deployment id."""
        return next(iter(self.find_all(name)), None)

    def find_all(self, name: str) -> tuple[DeploymentRecord, ...]:
        """Return the live deployments with that name or id, oldest first.

        There may be several: both sides of a partition can deploy under one name.
        """
        return tuple(
            record for record in self.live() if name in (record.model_id, record.deployment)
        )

    def free_model_id(self, wanted: str) -> str:
        """Return ``wanted``, or the first of ``wanted-2``, ``wanted-3`` … that no live deployment
        has.
        """
        taken = {record.model_id for record in self.live()}
        number, model_id = 1, wanted
        while model_id in taken:
            number += 1
            model_id = f"{wanted}-{number}"
        return model_id


class Changes:
    """For use in one event loop.

    A change between the return of ``wait`` and its next call is missed, unless the caller checks
    the changed state in between without awaiting anything.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake everyone who waits."""
        now, self._next = self._next, asyncio.Event()
        now.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Return at the next change, or after ``seconds``."""
        await is_set_within(self._next, seconds)


class Records:
    """Keeps this agent's records, and sends them to others. For use in the agent's event loop.

    ``has_own_epoch`` says whether this node coordinates a deployment in an epoch of its own.
    ``on_news`` is called with the previous record of a deployment, if any, and the one that
    replaced it; it must not raise. ``changes`` signals every change of records or members, after it
    has been handled here. ``spawn`` runs background tasks until the agent stops.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        has_own_epoch: Callable[[DeploymentId], bool],
        on_news: Callable[[DeploymentRecord | None, DeploymentRecord], None],
        spawn: Spawn,
    ) -> None:
        self.registry = Registry()
        self.changes = Changes()
        self._membership = membership
        self._has_own_epoch = has_own_epoch
        self._on_news = on_news
        self._spawn = spawn
        self._promises = Promises()
        self._progress_due: dict[DeploymentId, float] = {}
        self._views = SharedCalls[Mapping[NodeId, CoordinatorView]]()

    def get(self, deployment: DeploymentId) -> DeploymentRecord | None:
        """Return the latest record of a deployment, which may say that it was removed."""
        return self.registry.records.get(deployment)

    def live(self) -> tuple[DeploymentRecord, ...]:
        """Return the deployments that are not removed, oldest first."""
        return self.registry.live()

    def learn(self, record: DeploymentRecord) -> None:
        """Handle a record received from a deployment's coordinator or another node."""
        known = self.get(record.deployment)
        is_lost = known is not None and not self.sees_coordinator(record.deployment, known.epoch)
        registry = self.registry.put(record, is_coordinator_lost=is_lost)
        if registry is self.registry:
            self._correct(record, known)
            return
        self.registry = registry
        self._promises = self._promises.seen(record.deployment, record.epoch)
        self._log_takeover(known, record)
        self._correct(known, record)
        self._on_news(known, record)
        self.changes.notify()

    def highest_epoch(self, deployment: DeploymentId) -> Epoch:
        """Return the highest epoch that was seen or promised; there must be one."""
        return self._promises.highest[deployment]

    def _correct(self, wrong: DeploymentRecord | None, right: DeploymentRecord | None) -> None:
        """Tell a coordinator that its record is outdated; it may not see the node that knows
        better.
        """
        if wrong is None or right is None or wrong.epoch.coordinator == self._membership.node_id:
            return
        is_revived = right.is_removed and not wrong.is_removed
        if is_revived or wrong.epoch.coordinator != right.epoch.coordinator:
            self._spawn(self._tell(wrong.epoch.coordinator, pack_record(right)))

    def claimed(self, claim: Claim) -> ClaimAnswer:
        """Return whether this node agrees to an epoch; if it does, it promises it."""
        record = self.get(claim.deployment)
        sees = record is not None and self.sees_coordinator(record.deployment, record.epoch)
        self._promises, answer = self._promises.answer(claim, record, sees_coordinator=sees)
        return answer

    def sees_coordinator(self, deployment: DeploymentId, epoch: Epoch) -> bool:
        """Return whether an epoch's coordinator is a member, or is this node, which runs it."""
        if epoch.coordinator != self._membership.node_id:
            return epoch.coordinator in self._membership.nodes()
        return self._has_own_epoch(deployment)

    def _log_takeover(self, known: DeploymentRecord | None, record: DeploymentRecord) -> None:
        if known is None or known.epoch.coordinator == record.epoch.coordinator:
            return
        before, after = known.epoch.coordinator, record.epoch.coordinator
        if after == self._membership.node_id:
            _log.warning(
                "took over %s from node %s, at epoch %d",
                record.model_id,
                before,
                record.epoch.number,
            )
        else:
            _log.info("node %s took over %s from node %s", after, record.model_id, before)

    def publish(self, record: DeploymentRecord, is_progress: bool = False) -> None:
        """Send a record to all other nodes; progress only as often as leaves room for the rest."""
        is_removed = record.is_removed
        if record.epoch.coordinator != self._membership.node_id and not is_removed:
            return  # it belongs to another node until this one has an epoch of its own
        self.learn(record)
        now = asyncio.get_running_loop().time()
        due = {key: at for key, at in self._progress_due.items() if at > now}
        self._progress_due = due
        if is_progress and record.deployment in due:
            return
        payload, nodes = pack_record(record), self._membership.nodes()
        seconds = len(payload) * len(nodes) / _PROGRESS_BYTES_PER_SECOND
        due[record.deployment] = now + seconds
        for node in nodes:
            self._spawn(self._tell_with_retries(node, record, payload))

    async def _tell_with_retries(
        self, node: NodeId, record: DeploymentRecord, payload: bytes
    ) -> None:
        """Send a record to a member, and again while it does not answer, as when it is overloaded.

        Stop when the member leaves, or there is a newer record.
        """
        for _ in range(1 + _MOST_RETRIES):
            try:
                await PUT.call(self._membership, node, payload)
                return
            except CallError:
                await asyncio.sleep(_AGAIN_SECONDS)
            if node not in self._membership.nodes() or self.get(record.deployment) is not record:
                return  # a node that was lost receives it when it rejoins

    async def tell_newcomer(self, node: NodeId) -> None:
        """Send a node that has joined the records that this node is responsible for.

        Send them again while it does not answer: its agent may still be starting.
        """
        num_left = _MOST_RETRIES
        for deployment in list(self.registry.records):
            while (record := self.get(deployment)) and self._is_responsible_for(record, node):
                try:
                    await PUT.call(self._membership, node, pack_record(record))
                    break
                except CallError:
                    if num_left == 0 or node not in self._membership.nodes():
                        break
                num_left -= 1
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _tell(self, node: NodeId, payload: bytes) -> None:
        with suppress(CallError):  # a node that is lost now receives it when it rejoins
            await PUT.call(self._membership, node, payload)

    async def tell_everybody(self, record: DeploymentRecord) -> None:
        """Send the record to all nodes and wait: otherwise it spreads in the background."""
        payload = pack_record(record)
        await asyncio.gather(*(self._tell(node, payload) for node in self._membership.nodes()))

    def _is_responsible_for(self, record: DeploymentRecord, to: NodeId) -> bool:
        """Return whether this node is responsible for sending a record to another.

        That is its coordinator or, without one, the node with the lowest id of those that know it.
        A node that has forgotten what it coordinates (it was restarted) gets it from every node.
        """
        own = self._membership.node_id
        coordinator = record.epoch.coordinator
        others = self._membership.reachable_nodes() - {to}
        return coordinator in (own, to) or (coordinator not in others and min(others) == own)

    def is_live(self, deployment: DeploymentId) -> bool:
        """Return whether this node knows of a deployment that was not removed."""
        record = self.get(deployment)
        return record is not None and not record.is_removed

    def find(self, name: str | None) -> tuple[DeploymentRecord, ...]:
        """Return the deployments with a name, or all. Raise ``ParameterError`` if there is none."""
        if name is None:
            return tuple(self.live())
        records = self.registry.find_all(name)
        if not records:
            known = ", ".join(each.model_id for each in self.live()) or "none"
            raise ParameterError(
                "name", f"nothing is deployed as {name}", hint=f"deployed now: {known}"
            )
        return records

    async def ask_views(self, record: DeploymentRecord) -> Mapping[NodeId, CoordinatorView]:
        """Ask the members about a deployment whose coordinator this node does not see; return the
        answers given within a second, by node.

        Concurrent identical questions share the answers: every sequence of a gateway asks when a
        coordinator is lost.
        """
        request = AskCoordinatorView(deployment=record.deployment, known=record.epoch)
        return await self._views.call(
            lambda: COORDINATOR_VIEW.call_all(
                self._membership, dict.fromkeys(sorted(self._membership.nodes()), request)
            ),
            (record.deployment, record.epoch),
        )
