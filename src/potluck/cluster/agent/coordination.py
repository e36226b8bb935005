"""The part of this agent in coordinating deployments."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import msgspec

from potluck.catalog import ModelDescription, read_profile
from potluck.cluster.agent.changes import Changes
from potluck.cluster.agent.deployment_history import UNDEPLOYED
from potluck.cluster.agent.promises import Promises
from potluck.cluster.agent.registry import Registry
from potluck.cluster.agent.small_models import SmallModels
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.weights import NodeWeights, ReadModel
from potluck.cluster.background import Spawn
from potluck.cluster.calls import (
    AskCoordinatorView,
    AskRebalance,
    Claim,
    ClaimAnswer,
    CoordinatorView,
    DeploymentReference,
    RetireDeployment,
    StageScope,
    TakeoverReadiness,
    pack_record,
)
from potluck.cluster.coordinator.attempt import DeploymentDependencies
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.coordinator.survey import plan_model
from potluck.cluster.edges.path_figures import PathFigures
from potluck.cluster.edges.routed import OpenRoute
from potluck.cluster.membership import Membership
from potluck.cluster.methods import PUT, REBALANCE, REMOVE, RETIRE, TAKE_OVER
from potluck.cluster.trust.credentials import Credentials
from potluck.drafting.sources import names_model
from potluck.engines.backends import CostOf
from potluck.errors import CallError, EngineError, NodeLostError, ParameterError, PotluckError
from potluck.placement.model_counting import counting_of
from potluck.placement.new_deployment import (
    draft_record,
    draft_request,
    facts_of,
    name_of,
    new_record,
)
from potluck.placement.planned import PlannedModel
from potluck.placement.planning import plan_record, preferences_of, size_of
from potluck.placement.surveyed import explanation_of
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import (
    Deploy,
    DeploymentRecord,
    DraftRecord,
    RebalanceReport,
    StageRecord,
)
from potluck.types.profile import ModelProfile

if TYPE_CHECKING:
    from potluck.placement.plan_view import PlanOutcome

_log = logging.getLogger(__name__)

_PROGRESS_BYTES_PER_SECOND = 32 * 1024
"""How much of a node's link the progress of loading a model may take, for all other nodes together:
3 % of 10 Mbit/s. With 14 nodes, the others learn of it about every second."""


def _ignore(_: object) -> None:
    """Do nothing."""


class Coordination:
    """The deployments of the cluster. For use in the agent's event loop.

    ``spawn`` runs background tasks until the agent stops. ``changes`` signals every change of
    records or members, after it has been handled here. ``on_record`` is called with every new
    record, and must not raise.
    """

    def __init__(
        self,
        membership: Membership,
        credentials: Credentials,
        stages: StageHost,
        weights: NodeWeights,
        *,
        listen_host: str,
        step_seconds: float,
        cost_of: CostOf,
        spawn: Spawn,
        open_route: OpenRoute | None = None,
        on_record: Callable[[DeploymentRecord], None] = _ignore,
    ) -> None:
        self.registry = Registry()
        self.coordinated: dict[DeploymentId, Deployment] = {}
        self.is_draining = False
        self.changes = Changes()
        self._promises = Promises()
        self._unable: set[DeploymentId] = set()
        self._membership = membership
        self._credentials = credentials
        self._stages = stages
        self._weights = weights
        self._listen_host = listen_host
        self._open_route = open_route
        self._step_seconds = step_seconds
        self._cost_of = cost_of
        self._spawn = spawn
        self._on_record = on_record
        self._progress_due: dict[DeploymentId, float] = {}
        self._removal_reasons: dict[DeploymentId, str] = {}
        self._small_models = SmallModels(
            membership, self.coordinated, lambda each: self.registry.records.get(each)
        )

    def paths_in_use(self) -> list[tuple[NodeId, PathFigures]]:
        """Return the figures of the edges to first stages, and the nodes they lead to."""
        paths = (deployment.path() for deployment in self.coordinated.values())
        return [path for path in paths if path is not None]

    async def deploy(
        self, request: Deploy, *, begun: Callable[[DeploymentId], None] = _ignore
    ) -> DeploymentRecord:
        """Deploy a model, coordinated here; on return every node that answers knows of it.

        ``begun`` is called with its id as soon as there is one. On failure the error is raised, and
        nothing is left behind.
        """
        self._require_staying()
        read, profile = await self._read(request.model)
        self._require_staying()
        record = self._new_record(request, read, profile)
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
        await self._tell_everybody(deployment)  # a client may ask any node once this returns
        return deployment.record

    async def _tell_everybody(self, deployment: Deployment) -> None:
        """Send the record to all nodes and wait: otherwise it spreads in the background."""
        payload = pack_record(deployment.record)
        await asyncio.gather(*(self._tell(node, payload) for node in self._membership.nodes()))

    async def _take_name(self, deployment: Deployment, name: str) -> None:
        """Give a deployment that serves the name of others, which are removed after their requests.

        While two have the name, requests go to the older one, which then gives it up: none is
        refused.
        """
        own = deployment.record.deployment
        others = [
            each
            for each in self.registry.live()
            if each.model_id == name and each.deployment != own
        ]
        if not others:
            return
        deployment.rename(name)
        await self._tell_everybody(deployment)
        await asyncio.gather(*(self._retire(each, name) for each in others))

    async def _retire(self, record: DeploymentRecord, name: str) -> None:
        request = RetireDeployment(
            deployment=record.deployment, name=self.registry.free_model_id(name)
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
            await self._tell_everybody(mine)
            await mine.finish()
        await self.remove(deployment)

    async def _small_of(self, request: Deploy, verified: ModelDescription) -> DraftRecord | None:
        """Return the deployment of the draft model, deploying it if necessary; None if there is
        none.

        Raises as ``deploy``, and ``ParameterError`` for a model with another vocabulary.
        """
        if not names_model(request.draft):
            return None
        wanted, known = await self._draft_deploy(request, verified)
        if known is not None:
            return draft_record(known, is_own=False)
        return draft_record(await self.deploy(wanted), is_own=True)

    async def _draft_deploy(
        self, request: Deploy, verified: ModelDescription
    ) -> tuple[Deploy, DeploymentRecord | None]:
        """Return the request that deploys the draft model that ``request`` names, and its
        deployment if it is deployed already.

        Raises ``ParameterError`` for a model with another vocabulary.
        """
        known = self.registry.find(request.draft)
        named = (
            request if known is None else msgspec.structs.replace(request, draft=known.spec.model)
        )
        small = await self._weights.read(named.draft, known)
        return await asyncio.to_thread(draft_request, named, small.description, verified), known

    async def plan(self, request: Deploy) -> PlanOutcome:
        """Plan a deployment, and before it that of its draft model, without loading anything."""
        from potluck.placement.plan_view import PlanOutcome  # imported late: rarely used

        read, profile = await self._read(request.model)
        draft: DeploymentRecord | None = None
        is_draft_deployed = False
        if names_model(request.draft):
            wanted, draft = await self._draft_deploy(request, read.description)
            is_draft_deployed = draft is not None
            if draft is None:
                small, small_profile = await self._read(wanted.model)
                draft, _ = await self._planned(wanted, small, small_profile)
        record, planned = await self._planned(
            request,
            read,
            profile,
            also_planned=() if draft is None or is_draft_deployed else draft.stages,
        )
        return PlanOutcome(
            record=record,
            reports=planned.reports,
            explanation=await asyncio.to_thread(explanation_of, planned),
            draft=draft,
            is_draft_deployed=is_draft_deployed,
        )

    async def _planned(
        self,
        request: Deploy,
        read: ReadModel,
        profile: ModelProfile,
        *,
        also_planned: Sequence[StageRecord] = (),
    ) -> tuple[DeploymentRecord, PlannedModel]:
        """Return a record with the plan of a deployment, and the plan. Raises as ``plan_model``."""
        record = self._new_record(request, read, profile)
        size = size_of(profile.config, record)
        planned = await plan_model(
            self._membership,
            record.spec.model,
            counting_of(profile, self._cost_of),
            read.fingerprint,
            size,
            may_quantize=record.spec.quantization is None,
            arithmetic=record.status.plan.arithmetic,
            preferences=preferences_of(record),
            weights=read.weights,
            also_planned=also_planned,
        )
        return record.with_status(plan=plan_record(planned)), planned

    def find(self, name: str | None) -> tuple[DeploymentRecord, ...]:
        """Return the deployments with a name, or all. Raise ``ParameterError`` if there is none."""
        if name is None:
            return tuple(self.registry.live())
        records = self.registry.find_all(name)
        if not records:
            known = ", ".join(each.model_id for each in self.registry.live()) or "none"
            raise ParameterError(
                "name", f"nothing is deployed as {name}", hint=f"deployed now: {known}"
            )
        return records

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
        records = self.find(name)
        await asyncio.gather(*map(self._undeploy, records))
        return records[0]

    async def _undeploy(self, record: DeploymentRecord) -> None:
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
        record = self.registry.records.get(deployment)
        if record is not None and not record.is_removed:
            self._publish(record.removed(UNDEPLOYED))

    def is_live(self, deployment: DeploymentId) -> bool:
        """Whether this node knows of a deployment that was not removed."""
        record = self.registry.records.get(deployment)
        return record is not None and not record.is_removed

    def begin_drain(self) -> None:
        """From now on, plan no stages on this node, and coordinate no new deployments here."""
        self.is_draining = True
        self.changes.notify()

    async def hand_over(self, deployment: Deployment) -> bool:
        """Let another node coordinate a deployment of this one; return False if none can.

        The successor makes a plan, claims an epoch, to which all nodes agree because it was named
        the successor, and serves. Sequences of all gateways, this node's included, move there.
        """
        own_id = deployment.record.deployment
        on_stages = {stage.node_id for stage in deployment.record.stages}
        for node in sorted(
            self._membership.nodes(), key=lambda each: (each not in on_stages, each)
        ):
            if self.coordinated.get(own_id) is not deployment:
                return True  # it was removed, or another node has taken it over
            deployment.name_successor(node)
            await self._tell_everybody(deployment)
            try:
                await TAKE_OVER.call(self._membership, node, DeploymentReference(deployment=own_id))
            except CallError as error:
                _log.info(
                    "node %s cannot take over %s: %s",
                    node,
                    deployment.record.model_id,
                    error.message,
                )
                continue
            return True
        return self.coordinated.get(own_id) is not deployment

    async def succeed(self, deployment: DeploymentId) -> None:
        """Coordinate a deployment at its coordinator's request; return once it serves."""
        self._require_staying()
        record = self.registry.records.get(deployment)
        own = self._membership.node_id
        if record is None or own not in (record.status.successor, record.epoch.coordinator):
            raise EngineError(f"this node is not the successor of deployment {deployment}")
        if deployment not in self.coordinated:
            await self._adopt(record)
        while not self._serves_here(deployment):
            if deployment not in self.coordinated:
                raise EngineError(f"{record.model_id} was removed, or taken over by another node")
            await self.changes.wait()

    def _serves_here(self, deployment: DeploymentId) -> bool:
        record = self.registry.records.get(deployment)
        return (
            record is not None
            and record.epoch.coordinator == self._membership.node_id
            and record.is_ready
        )

    async def close(self) -> None:
        """Stop the deployments coordinated here when the agent stops; their records go to
        successors.
        """
        self.is_draining = True
        closing = [each.close() for each in self.coordinated.values()]
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("could not close a deployment", exc_info=error)

    def learn(self, record: DeploymentRecord) -> None:
        """Handle a record received from a deployment's coordinator or another node."""
        known = self.registry.records.get(record.deployment)
        is_lost = known is not None and not self._sees_coordinator(record.deployment, known.epoch)
        registry = self.registry.put(record, is_coordinator_lost=is_lost)
        if registry is self.registry:
            self._correct(record, known)
            return
        self.registry = registry
        self._on_record(record)
        self._promises = self._promises.seen(record.deployment, record.epoch)
        self._log_takeover(known, record)
        self._correct(known, record)
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
            del self.coordinated[record.deployment]
            self._spawn(_end(mine, is_removed=is_removed))
        if is_removed:
            self._unable.discard(record.deployment)
            epoch = self._promises.highest[record.deployment]
            self._spawn(self._stop_stages(StageScope(deployment=record.deployment, epoch=epoch)))
        elif record.is_ready and (
            known is None
            or known.epoch != record.epoch
            or known.status.state is not record.status.state
        ):
            # Not earlier: until a new plan is loaded, the stages of the previous one may serve.
            self._spawn(self._stages.supersede(record.deployment, record.epoch))
        self.changes.notify()

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
        record = self.registry.records.get(claim.deployment)
        sees = record is not None and self._sees_coordinator(record.deployment, record.epoch)
        self._promises, answer = self._promises.answer(claim, record, sees_coordinator=sees)
        return answer

    def coordinator_view(self, question: AskCoordinatorView) -> CoordinatorView:
        """Return this node's view of a deployment whose coordinator another node does not see."""
        record = self.registry.records.get(question.deployment)
        if record is None:
            return CoordinatorView(sees_coordinator=False, readiness=TakeoverReadiness.UNABLE)
        return CoordinatorView(
            sees_coordinator=self._sees_coordinator(question.deployment, question.known),
            readiness=self._readiness(question.deployment),
            record=None if record.epoch == question.known else record,
        )

    def _sees_coordinator(self, deployment: DeploymentId, epoch: Epoch) -> bool:
        """Whether the coordinator of an epoch is a member, or is this node, running that epoch."""
        if epoch.coordinator != self._membership.node_id:
            return epoch.coordinator in self._membership.nodes()
        mine = self.coordinated.get(deployment)
        return mine is not None and mine.record.epoch.coordinator == epoch.coordinator

    def _readiness(self, deployment: DeploymentId) -> TakeoverReadiness:
        if deployment in self.coordinated:
            return TakeoverReadiness.AT_WORK
        if self.is_draining or deployment in self._unable:
            return TakeoverReadiness.UNABLE
        return TakeoverReadiness.CANDIDATE

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

    def joined(self, node: NodeId) -> None:
        """Handle a node that joined: send it the records that it cannot know."""
        for key in list(self.coordinated):
            candidacy = self.candidacy(key)
            if candidacy is not None and candidacy.epoch.coordinator == node:
                self.give_up(key)
        for deployment in self.coordinated.values():
            deployment.node_joined(node)
        self.changes.notify()
        self._spawn(self._tell_newcomer(node))

    def left(self, node: NodeId) -> None:
        """Handle a node that left."""
        for deployment in list(self.coordinated.values()):
            deployment.node_left(node)
        self._spawn(self._stages.coordinator_left(node))
        self.changes.notify()

    def candidacy(self, deployment: DeploymentId) -> DeploymentRecord | None:
        """Return the record with which a deployment is being taken over here; None if it is not."""
        mine = self.coordinated.get(deployment)
        if mine is None or mine.record.epoch.coordinator == self._membership.node_id:
            return None
        return mine.record

    def give_up(self, deployment: DeploymentId) -> None:
        """Stop taking over a deployment whose coordinator is back, if no epoch was taken yet.

        So a deployment that continued on the other side of a partition is not disturbed after it
        heals.
        """
        if self.candidacy(deployment) is not None:
            self._spawn(_end(self.coordinated.pop(deployment), is_removed=False))

    def _require_staying(self) -> None:
        if self.is_draining:
            raise EngineError("this node is leaving the cluster", hint="deploy from another node")

    def _new_record(
        self, request: Deploy, read: ReadModel, profile: ModelProfile
    ) -> DeploymentRecord:
        name = name_of(request)
        model_id = self.registry.free_model_id(name)
        if model_id != name and request.is_named and not request.replaces:
            raise ParameterError(
                "name",
                f"a model is already deployed as {name}",
                hint="choose another --name, or add --replace: the new model takes over the name "
                "when it is ready",
            )
        return new_record(
            request,
            read.description,
            facts_of(read.description, profile, read.fingerprint),
            model_id=model_id,
            coordinator=self._membership.node_id,
        )

    def _make(self, record: DeploymentRecord, read: ReadModel, profile: ModelProfile) -> Deployment:
        return Deployment(
            record,
            profile,
            read.fingerprint,
            DeploymentDependencies(
                membership=self._membership,
                credentials=self._credentials,
                listen_host=self._listen_host,
                open_route=self._open_route,
                step_seconds=self._step_seconds,
                cost_of=self._cost_of,
                start_draft=self._small_models.start,
            ),
            publish=self._publish,
            on_record=self.learn,
            weights=read.weights,
            discard=self._discard,
        )

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
        small = deployment.record.status.small
        if small is not None and small.is_own:
            record = self.registry.records.get(small.deployment)
            if record is not None and self.is_live(small.deployment):
                await self._undeploy(record)

    def _publish(self, record: DeploymentRecord, is_progress: bool = False) -> None:
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
            self._spawn(self._tell(node, payload))

    async def _tell_newcomer(self, node: NodeId) -> None:
        for record in list(self.registry.records.values()):
            if self._is_responsible_for(record, node):
                await self._tell(node, pack_record(record))

    async def _tell(self, node: NodeId, payload: bytes) -> None:
        with suppress(CallError):  # a node that is lost now receives it when it rejoins
            await PUT.call(self._membership, node, payload)

    async def _stop_stages(self, scope: StageScope) -> None:
        await self._stages.stop(scope)

    def _is_responsible_for(self, record: DeploymentRecord, to: NodeId) -> bool:
        """Whether this node is responsible for sending a record to another.

        That is its coordinator or, without one, the node with the lowest id of those that know it.
        A node that has forgotten what it coordinates (it was restarted) is told by every node.
        """
        own = self._membership.node_id
        coordinator = record.epoch.coordinator
        others = (self._membership.nodes() | {own}) - {to}
        return coordinator in (own, to) or (coordinator not in others and min(others) == own)

    def orphans(self) -> tuple[DeploymentRecord, ...]:
        """Return the records of deployments that no member coordinates."""
        if self.is_draining:
            return ()
        return tuple(record for record in self.registry.live() if self._is_orphan(record))

    async def take_over(self, record: DeploymentRecord) -> bool:
        """Take over an orphaned deployment; return False if that is not possible now."""
        try:
            await self._adopt(record)
        except PotluckError as error:
            _log.warning("cannot take over %s: %s", record.model_id, error.message)
        except Exception:  # noqa: BLE001 - it would be left without a coordinator
            _log.exception("cannot take over %s", record.model_id)
        else:
            self._unable.discard(record.deployment)
            return True
        self._unable.add(record.deployment)
        return False

    async def _adopt(self, record: DeploymentRecord) -> None:
        """Take over another node's deployment, unless it has a coordinator by then.

        Raises an error if that is impossible here.
        """
        read, profile = await self._read(record.spec.model, record)
        deployed = record.facts.fingerprint
        if deployed is not None and (found := deployed.difference(read.fingerprint)):
            raise EngineError(
                f"this node's files of the model differ from those that were deployed: {found}"
            )
        latest = self.registry.records.get(record.deployment)
        if latest is None or self.is_draining:
            return
        own = self._membership.node_id
        if self._is_orphan(latest) or (latest.status.successor == own and self._is_free(latest)):
            deployment = self._make(latest.with_status(successor=None), read, profile)
            deployment.resume()
            self.coordinated[latest.deployment] = deployment

    def _is_free(self, record: DeploymentRecord) -> bool:
        """Whether it is live and not coordinated here."""
        return not record.is_removed and record.deployment not in self.coordinated

    def _is_orphan(self, record: DeploymentRecord) -> bool:
        is_lost = record.epoch.coordinator not in self._membership.nodes()
        return is_lost and self._is_free(record)

    async def _read(
        self, model: str, record: DeploymentRecord | None = None
    ) -> tuple[ReadModel, ModelProfile]:
        read = await self._weights.read(model, record)
        return read, await asyncio.to_thread(read_profile, read.description)


async def _end(deployment: Deployment, *, is_removed: bool) -> None:
    """Close a deployment that another node coordinates now, or that was removed."""
    # Otherwise its sequences get an error that says that they have moved.
    await deployment.close(EngineError("the model was undeployed") if is_removed else None)
