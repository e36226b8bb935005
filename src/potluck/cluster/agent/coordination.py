"""The deployments that this agent coordinates: deploying, replacing and removing them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from potluck.catalog import ModelDescription
from potluck.cluster.agent.deployment_history import UNDEPLOYED
from potluck.cluster.agent.planner import Planner
from potluck.cluster.agent.records import Records
from potluck.cluster.agent.remote_sequences import RemoteSequences
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.weights import NodeWeights, ReadModel
from potluck.cluster.background import Spawn
from potluck.cluster.coordinator.attempt import DeploymentDependencies
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.network.edges.path_figures import PathFigures
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import (
    AskRebalance,
    DeploymentReference,
    RetireDeployment,
    StageScope,
)
from potluck.cluster.wire.methods import REBALANCE, REMOVE, RETIRE
from potluck.cluster.wire.sequence_messages import Generate
from potluck.drafting.sources import names_model
from potluck.engines.backends import CostOf
from potluck.errors import EngineError, NodeLostError, PotluckError
from potluck.placement.new_deployment import draft_record, name_of
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.deployment import (
    Deploy,
    DeploymentRecord,
    DraftRecord,
    RebalanceReport,
)
from potluck.types.profile import ModelProfile
from potluck.types.sequence import Cancel, OnUpdate, SequenceRequest

_log = logging.getLogger(__name__)


class Coordination:
    """The deployments that this node coordinates. For use in the agent's event loop.

    ``spawn`` runs background tasks until the agent stops. ``on_record`` is called with every new
    record, and must not raise.
    """

    def __init__(
        self,
        membership: Membership,
        endpoint: EdgeEndpoint,
        stages: StageHost,
        weights: NodeWeights,
        *,
        step_seconds: float,
        cost_of: CostOf,
        spawn: Spawn,
        on_record: Callable[[DeploymentRecord], None] = lambda record: None,
    ) -> None:
        self.coordinated: dict[DeploymentId, Deployment] = {}
        self.is_draining = False
        self.records = Records(
            membership, has_own_epoch=self._has_own_epoch, on_news=self._on_news, spawn=spawn
        )
        self.remote = RemoteSequences(membership)
        self.planner = Planner(membership, self.records, weights, cost_of)
        self._dependencies = DeploymentDependencies(
            membership=membership,
            endpoint=endpoint,
            step_seconds=step_seconds,
            cost_of=cost_of,
            start_draft=self._start_draft,
        )
        self._membership = membership
        self._stages = stages
        self._spawn = spawn
        self._on_record = on_record
        self._removal_reasons: dict[DeploymentId, str] = {}

    def paths_in_use(self) -> list[tuple[NodeId, PathFigures]]:
        """Return the figures of the edges to first stages, and the nodes they lead to."""
        paths = (deployment.path() for deployment in self.coordinated.values())
        return [path for path in paths if path is not None]

    async def deploy(
        self, request: Deploy, *, begun: Callable[[DeploymentId], None] = lambda deployment: None
    ) -> DeploymentRecord:
        """Deploy a model, coordinated here; on return every node that answers knows of it.

        ``begun`` is called with its id as soon as there is one. On failure the error is raised, and
        nothing is left behind.
        """
        self.require_staying()
        read, profile = await self.planner.read(request.model)
        self.require_staying()
        record = self.planner.new_record(request, read, profile)
        small = await self._small_of(request, read.description)
        deployment = self._make(record.with_status(small=small), read, profile)
        self.coordinated[record.deployment] = deployment
        begun(record.deployment)
        try:
            await deployment.start()
        except BaseException as error:
            if self.coordinated.get(record.deployment) is deployment:
                reason = error.message if isinstance(error, PotluckError) else "it was cancelled"
                ending = asyncio.ensure_future(self._remove(deployment, reason))
                await asyncio.shield(ending)
            raise
        if request.replaces:
            await self._take_name(deployment, name_of(request))
        # A client may ask any node once this returns.
        await self.records.tell_everybody(deployment.record)
        return deployment.record

    async def _take_name(self, deployment: Deployment, name: str) -> None:
        """Give a deployment that serves the name of others, which are removed after their requests.

        While two have the name, requests go to the older one, which then gives it up: none is
        refused.
        """
        own = deployment.record.deployment
        others = [
            each for each in self.records.live() if each.model_id == name and each.deployment != own
        ]
        if not others:
            return
        deployment.rename(name)
        await self.records.tell_everybody(deployment.record)
        await asyncio.gather(*(self._retire(each, name) for each in others))

    async def _retire(self, record: DeploymentRecord, name: str) -> None:
        request = RetireDeployment(
            deployment=record.deployment, name=self.records.registry.free_model_id(name)
        )
        try:
            await RETIRE.call(self._membership, record.epoch.coordinator, request)
        except NodeLostError:
            await self.remove(record.deployment)

    async def retire(self, deployment: DeploymentId, name: str) -> None:
        """Rename a deployment, let its requests finish for a while, and remove it."""
        mine = self.coordinated.get(deployment)
        if mine is not None:
            mine.rename(name)
            await self.records.tell_everybody(mine.record)
            await mine.finish()
        await self.remove(deployment)

    async def _small_of(self, request: Deploy, verified: ModelDescription) -> DraftRecord | None:
        """Return the deployment of the draft model, deploying it if necessary; None if there is
        none. It is placed, loaded, recovered and moved like any other.

        Raises as ``deploy``, and ``ParameterError`` for a model with another vocabulary.
        """
        if not names_model(request.draft):
            return None
        wanted, known = await self.planner.draft_deploy(request, verified)
        if known is not None:
            return draft_record(known, is_own=False)
        return draft_record(await self.deploy(wanted), is_own=True)

    async def rebalance(self, record: DeploymentRecord, *, is_dry_run: bool) -> RebalanceReport:
        """Move a deployment to the best plan, wherever it is coordinated, or report what that would
        gain.

        Raises the error if it cannot be planned.
        """
        request = AskRebalance(deployment=record.deployment, is_dry_run=is_dry_run)
        stream = REBALANCE.call(self._membership, record.epoch.coordinator, request)
        async with aclosing(stream):
            async for answer in stream:
                if isinstance(answer, RebalanceReport):
                    return answer
        raise EngineError(f"the search for a better plan of {record.model_id} was not finished")

    async def undeploy(self, name: str) -> DeploymentRecord:
        """Remove all deployments with a name, wherever they are coordinated; return the oldest."""
        records = self.records.find(name)
        await asyncio.gather(*map(self.undeploy_record, records))
        return records[0]

    async def undeploy_record(self, record: DeploymentRecord) -> None:
        """Remove one deployment, wherever it is coordinated."""
        request = DeploymentReference(deployment=record.deployment)
        try:
            await REMOVE.call(self._membership, record.epoch.coordinator, request)
        except NodeLostError:
            await self.remove(record.deployment)

    async def remove(self, deployment: DeploymentId) -> None:
        """Remove a deployment permanently, even if it has no coordinator."""
        mine = self.coordinated.get(deployment)
        if mine is not None:
            await self._remove(mine, UNDEPLOYED)
            return
        record = self.records.get(deployment)
        if record is not None and not record.is_removed:
            self.records.publish(record.removed(UNDEPLOYED))
            await self._remove_small(record)

    def begin_drain(self) -> None:
        """Plan no more stages on this node, and coordinate no new deployments here."""
        self.is_draining = True
        self.records.changes.notify()

    async def close(self) -> None:
        """Stop the deployments coordinated here when the agent stops; their records go to
        successors.
        """
        self.is_draining = True
        closing = [each.close() for each in self.coordinated.values()]
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("could not close a deployment", exc_info=error)

    def joined(self, node: NodeId) -> None:
        """Handle a node that joined: send it the records that it cannot know."""
        for deployment in self.coordinated.values():
            deployment.node_joined(node)
        self.records.changes.notify()
        self._spawn(self.records.tell_newcomer(node))

    def left(self, node: NodeId) -> None:
        """Handle a node that left."""
        for deployment in list(self.coordinated.values()):
            deployment.node_left(node)
        self._spawn(self._stages.coordinator_left(node))
        self.records.changes.notify()

    def require_staying(self) -> None:
        """Raise ``EngineError`` if this node is leaving."""
        if self.is_draining:
            raise EngineError("this node is leaving the cluster", hint="deploy from another node")

    def _has_own_epoch(self, deployment: DeploymentId) -> bool:
        mine = self.coordinated.get(deployment)
        return mine is not None and mine.record.epoch.coordinator == self._membership.node_id

    def _on_news(self, known: DeploymentRecord | None, record: DeploymentRecord) -> None:
        """End what a new record supersedes: a deployment here, and stages on this node."""
        self._on_record(record)
        is_removed = record.is_removed
        mine = self.coordinated.get(record.deployment)
        is_others = record.epoch.coordinator != self._membership.node_id
        if (
            mine is not None
            and record is not mine.record
            and (
                is_removed
                or (is_others and record.epoch != mine.record.epoch)
                or record.epoch > mine.record.epoch
            )
        ):
            # A later revision of the same epoch ends nothing: a successor receives those too until
            # it has an epoch of its own. A higher epoch of this same node is one that it took
            # before its agent was restarted, and that others know of: it continues from there.
            self.let_go(record.deployment, is_removed=is_removed)
        if is_removed:
            epoch = self.records.highest_epoch(record.deployment)
            scope = StageScope(deployment=record.deployment, epoch=epoch)
            self._spawn(self._stages.stop(scope))
        elif record.is_ready and (
            known is None
            or known.epoch != record.epoch
            or known.status.state is not record.status.state
        ):
            # Not earlier: until a new plan is loaded, the stages of the previous one may serve.
            self._spawn(self._stages.supersede(record.deployment, record.epoch))

    def let_go(self, deployment: DeploymentId, *, is_removed: bool = False) -> None:
        """Close a deployment that another node coordinates now, or that was removed."""
        mine = self.coordinated.pop(deployment)
        # Without a reason, its sequences get an error that says that they have moved.
        self._spawn(mine.close(EngineError("the model was undeployed") if is_removed else None))

    def resume(self, record: DeploymentRecord, read: ReadModel, profile: ModelProfile) -> None:
        """Coordinate a deployment of another node, from its record."""
        deployment = self._make(record, read, profile)
        deployment.resume()
        self.coordinated[record.deployment] = deployment

    def _make(self, record: DeploymentRecord, read: ReadModel, profile: ModelProfile) -> Deployment:
        return Deployment(
            record,
            profile,
            read.fingerprint,
            self._dependencies,
            publish=self.records.publish,
            on_record=self.records.learn,
            weights=read.weights,
            discard=self._discard,
        )

    def _start_draft(
        self, deployment: DeploymentId, request: SequenceRequest, on_update: OnUpdate
    ) -> Cancel:
        """Let a draft model continue a sequence, wherever it is coordinated. Raises
        ``PotluckError``.
        """
        mine = self.coordinated.get(deployment)
        if mine is not None:
            return mine.start_sequence(request, on_update)
        record = self.records.get(deployment)
        if record is None or not record.is_ready:
            raise EngineError("the draft model is not deployed")
        generate = Generate(deployment=deployment, request=request)
        return self.remote.start(record.epoch.coordinator, generate, on_update)

    def _discard(self, deployment: DeploymentId, reason: str) -> None:
        mine = self.coordinated.get(deployment)
        if mine is not None:
            self._spawn(self._remove(mine, reason))

    async def _remove(self, deployment: Deployment, reason: str) -> None:
        removed = deployment.record.deployment
        # The first reason takes precedence: a deployment in progress fails when it is removed.
        reason = self._removal_reasons.setdefault(removed, reason)
        try:
            await deployment.remove(reason)
        finally:
            self._removal_reasons.pop(removed, None)
        # Not before: a record without a coordinator would be an orphan.
        self.coordinated.pop(removed, None)
        await self._remove_small(deployment.record)

    async def _remove_small(self, record: DeploymentRecord) -> None:
        """Remove the deployment of the draft model, if it was made for a removed one."""
        small = record.status.small
        if small is not None and small.is_own:
            drafting = self.records.get(small.deployment)
            if drafting is not None and not drafting.is_removed:
                await self.undeploy_record(drafting)
