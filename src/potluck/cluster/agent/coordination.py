"""Who coordinates which deployment: this agent's part in it.

An agent coordinates what it was asked to deploy. Every agent knows the records of all deployments;
when a coordinator is gone, others take over what it leaves (``takeover``). If two do so at once,
the one with the higher epoch goes on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import msgspec

from potluck.catalog import ModelDescription, describe_model, read_profile
from potluck.cluster.agent.changes import Changes
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.new_deployment import new_record
from potluck.cluster.agent.promises import Promises
from potluck.cluster.agent.registry import Registry
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.background import Spawn
from potluck.cluster.calls import (
    AskOutlook,
    AskRebalance,
    Claim,
    ClaimAnswer,
    Deploy,
    DeploymentRecord,
    DeploymentState,
    ModelFingerprint,
    Named,
    Outlook,
    RebalanceAnswer,
    RebalanceReport,
    StageScope,
    Standing,
    decode,
    encode,
)
from potluck.cluster.coordinator.attempt import Surroundings
from potluck.cluster.coordinator.counting import counting_of
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.coordinator.planning import placement_fields, preferences_of, size_of
from potluck.cluster.coordinator.survey import plan_model
from potluck.cluster.coordinator.surveyed import explanation_of
from potluck.cluster.edges.path_figures import PathFigures
from potluck.cluster.membership import Membership
from potluck.cluster.trust.credentials import Credentials
from potluck.engines.costs import CostOf
from potluck.errors import CallError, EngineError, NodeLostError, ParameterError, PotluckError
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.profile import ModelProfile

if TYPE_CHECKING:
    from potluck.cluster.agent.plan_view import PlanOutcome

_log = logging.getLogger(__name__)

_REMOVE_SECONDS = 60.0
_SILENCE_SECONDS = 30.0
_TAKE_OVER_SECONDS = 90.0
"""For a plan and for loading what only a node that leaves had held."""


class Coordination:
    """For use in the agent's loop. ``spawn`` runs what nobody waits for, until the agent ends.

    ``changes`` tells of every change of records or members, once it has been acted upon here.
    """

    def __init__(
        self,
        membership: Membership,
        credentials: Credentials,
        stages: StageHost,
        fingerprints: Fingerprints,
        *,
        listen_host: str,
        step_seconds: float,
        cost_of: CostOf,
        spawn: Spawn,
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
        self._fingerprints = fingerprints
        self._listen_host = listen_host
        self._step_seconds = step_seconds
        self._cost_of = cost_of
        self._spawn = spawn

    def paths_in_use(self) -> list[tuple[NodeId, PathFigures]]:
        """Return what the edges to the first stages show, and the nodes they lead to."""
        paths = (deployment.path() for deployment in self.coordinated.values())
        return [path for path in paths if path is not None]

    async def deploy(self, request: Deploy) -> DeploymentRecord:
        """Deploy a model, coordinated here; every node that answers knows of it on return.

        Raises what prevents it; nothing is left then.
        """
        self._require_staying()
        description, profile, print_of = await self._read(request.model)
        self._require_staying()
        record = self._new_record(request, description, print_of)
        deployment = self._make(record, profile, print_of)
        self.coordinated[record.deployment] = deployment
        try:
            await deployment.start()
        except BaseException:
            if self.coordinated.get(record.deployment) is deployment:
                ending = asyncio.ensure_future(self._remove(deployment, "it was not deployed"))
                await asyncio.shield(ending)
            raise
        # News spreads in the background; who hears that it is deployed may ask any node at once.
        payload = encode(deployment.record)
        await asyncio.gather(*(self._tell(node, payload) for node in self._membership.nodes()))
        return deployment.record

    async def plan(self, request: Deploy) -> PlanOutcome:
        """Return what would go where, and why; nothing is loaded."""
        description, profile, print_of = await self._read(request.model)
        record = self._new_record(request, description, print_of)
        size = size_of(profile.config, record)
        planned = await plan_model(
            self._membership,
            record.model,
            counting_of(profile, self._cost_of),
            print_of,
            size,
            may_quantize=record.may_quantize,
            arithmetic=record.arithmetic,
            preferences=preferences_of(record),
        )
        from potluck.cluster.agent.plan_view import PlanOutcome  # most agents are never asked

        return PlanOutcome(
            record=msgspec.structs.replace(record, **placement_fields(planned)),
            reports=planned.reports,
            explanation=await asyncio.to_thread(explanation_of, planned),
        )

    def find(self, name: str | None) -> tuple[DeploymentRecord, ...]:
        """Return the deployments of a name, or all; raise ``ParameterError`` if there is none."""
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
        """Have a deployment move to the best plan, wherever it is coordinated, or say what for.

        Raises what prevents it from being planned.
        """
        request = AskRebalance(deployment=record.deployment, is_dry_run=is_dry_run)
        stream = self._membership.call_stream(
            record.epoch.coordinator,
            "deployment.rebalance",
            encode(request),
            silence_seconds=_SILENCE_SECONDS,
        )
        async with aclosing(stream):
            async for part in stream:
                answer: RebalanceAnswer = decode(part, RebalanceAnswer)
                if isinstance(answer, RebalanceReport):
                    return answer
        raise EngineError(f"{record.model_id} was not looked at to the end")

    async def undeploy(self, name: str) -> DeploymentRecord:
        """Remove every deployment of a name, wherever it is coordinated; returns the oldest."""
        records = self.find(name)
        await asyncio.gather(*map(self._undeploy, records))
        return records[0]

    async def _undeploy(self, record: DeploymentRecord) -> None:
        try:
            await self._membership.call(
                record.epoch.coordinator,
                "deployment.remove",
                encode(Named(deployment=record.deployment)),
                timeout_seconds=_REMOVE_SECONDS,
            )
        except NodeLostError:
            await self.remove(record.deployment)

    async def remove(self, deployment: DeploymentId) -> None:
        """End a deployment for good; one that nobody coordinates any more, too."""
        mine = self.coordinated.get(deployment)
        if mine is not None:
            await self._remove(mine, "undeployed")
            return
        record = self.registry.records.get(deployment)
        if record is not None and record.state is not DeploymentState.REMOVED:
            self._publish(msgspec.structs.replace(record, state=DeploymentState.REMOVED, stages=()))

    def is_live(self, deployment: DeploymentId) -> bool:
        """Whether this node knows of a deployment, and not of its removal."""
        record = self.registry.records.get(deployment)
        return record is not None and record.state is not DeploymentState.REMOVED

    def begin_drain(self) -> None:
        """From now on no plan has a stage here, and nothing new is coordinated here."""
        self.is_draining = True
        self.changes.tell()

    async def hand_over(self, deployment: Deployment) -> bool:
        """Let another node coordinate a deployment of this one; False if none can.

        It makes a plan, claims an epoch, to which all agree because it is named the successor, and
        serves. Sequences of gateways, this node's too, move there.
        """
        own_id = deployment.record.deployment
        on_stages = {stage.node_id for stage in deployment.record.stages}
        for node in sorted(
            self._membership.nodes(), key=lambda each: (each not in on_stages, each)
        ):
            if self.coordinated.get(own_id) is not deployment:
                return True  # it was removed, or somebody else has taken it over
            deployment.name_successor(node)
            payload = encode(deployment.record)
            await asyncio.gather(*(self._tell(each, payload) for each in self._membership.nodes()))
            try:
                await self._membership.call(
                    node,
                    "deployment.take_over",
                    encode(Named(deployment=own_id)),
                    timeout_seconds=_TAKE_OVER_SECONDS,
                )
            except CallError as error:
                _log.info(
                    "node %s does not take over %s: %s",
                    node,
                    deployment.record.model_id,
                    error.message,
                )
                continue
            return True
        return self.coordinated.get(own_id) is not deployment

    async def succeed(self, deployment: DeploymentId) -> None:
        """Coordinate a deployment whose coordinator asks for it; returns when it serves.

        Raises ``PotluckError`` if that is not possible here.
        """
        self._require_staying()
        record = self.registry.records.get(deployment)
        own = self._membership.node_id
        if record is None or own not in (record.successor, record.epoch.coordinator):
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
            and record.state is DeploymentState.READY
        )

    async def close(self) -> None:
        """The agent ends: stop what it coordinates; the records are left to successors."""
        self.is_draining = True
        closing = [each.close() for each in self.coordinated.values()]
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("a deployment could not be closed", exc_info=error)

    def heard(self, record: DeploymentRecord) -> None:
        """News of a deployment, from its coordinator or who knows of it."""
        known = self.registry.records.get(record.deployment)
        is_lost = known is not None and not self._sees_coordinator(record.deployment, known.epoch)
        registry = self.registry.put(record, is_coordinator_lost=is_lost)
        if registry is self.registry:
            self._correct(record, known)
            return
        self.registry = registry
        self._promises = self._promises.seen(record.deployment, record.epoch)
        self._log_takeover(known, record)
        self._correct(known, record)
        is_removed = record.state is DeploymentState.REMOVED
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
            # A later revision of the same epoch ends nothing: a successor hears those, too, until
            # it has an epoch of its own. A higher epoch of this very node is one that it took
            # before its agent was started anew, and that others know of: it goes on from there.
            del self.coordinated[record.deployment]
            self._spawn(_end(mine, is_removed=is_removed))
        if is_removed:
            self._unable.discard(record.deployment)
            epoch = self._promises.highest[record.deployment]
            self._spawn(self._stop_stages(StageScope(deployment=record.deployment, epoch=epoch)))
        elif record.state is DeploymentState.READY and (
            known is None or known.epoch != record.epoch or known.state is not record.state
        ):
            # Not earlier: until a new plan is loaded, the stages of the one before may serve.
            self._spawn(self._stages.supersede(record.deployment, record.epoch))
        self.changes.tell()

    def _correct(self, wrong: DeploymentRecord | None, right: DeploymentRecord | None) -> None:
        """Tell a coordinator that its record is out of date: it may not see who knows better."""
        if wrong is None or right is None or wrong.epoch.coordinator == self._membership.node_id:
            return
        is_revived = right.state is DeploymentState.REMOVED is not wrong.state
        if is_revived or wrong.epoch.coordinator != right.epoch.coordinator:
            self._spawn(self._tell(wrong.epoch.coordinator, encode(right)))

    def claimed(self, claim: Claim) -> ClaimAnswer:
        """Return whether this node agrees to an epoch; it promises it then."""
        record = self.registry.records.get(claim.deployment)
        sees = record is not None and self._sees_coordinator(record.deployment, record.epoch)
        self._promises, answer = self._promises.answer(claim, record, sees_coordinator=sees)
        return answer

    def outlook(self, question: AskOutlook) -> Outlook:
        """Return what this node makes of a deployment whose coordinator another does not see."""
        record = self.registry.records.get(question.deployment)
        if record is None:
            return Outlook(sees_coordinator=False, standing=Standing.UNABLE)
        return Outlook(
            sees_coordinator=self._sees_coordinator(question.deployment, question.known),
            standing=self._standing(question.deployment),
            record=None if record.epoch == question.known else record,
        )

    def _sees_coordinator(self, deployment: DeploymentId, epoch: Epoch) -> bool:
        """Whether the coordinator of an epoch is a member, or is this node and runs that epoch."""
        if epoch.coordinator != self._membership.node_id:
            return epoch.coordinator in self._membership.nodes()
        mine = self.coordinated.get(deployment)
        return mine is not None and mine.record.epoch.coordinator == epoch.coordinator

    def _standing(self, deployment: DeploymentId) -> Standing:
        if deployment in self.coordinated:
            return Standing.AT_WORK
        if self.is_draining or deployment in self._unable:
            return Standing.UNABLE
        return Standing.CANDIDATE

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
        """A node is there: tell it what it cannot know."""
        for key in list(self.coordinated):
            candidacy = self.candidacy(key)
            if candidacy is not None and candidacy.epoch.coordinator == node:
                self.give_up(key)
        for deployment in self.coordinated.values():
            deployment.node_joined(node)
        self.changes.tell()
        self._spawn(self._tell_newcomer(node))

    def left(self, node: NodeId) -> None:
        """A node is gone."""
        for deployment in list(self.coordinated.values()):
            deployment.node_left(node)
        self._spawn(self._stages.coordinator_left(node))
        self.changes.tell()

    def candidacy(self, deployment: DeploymentId) -> DeploymentRecord | None:
        """Return the record that a deployment is taken over by here; None if it is not, or done."""
        mine = self.coordinated.get(deployment)
        if mine is None or mine.record.epoch.coordinator == self._membership.node_id:
            return None
        return mine.record

    def give_up(self, deployment: DeploymentId) -> None:
        """Give up to take over a deployment whose coordinator is there; no epoch was taken yet.

        So what goes on undisturbed on the other side of a cut stays undisturbed after healing.
        """
        if self.candidacy(deployment) is not None:
            self._spawn(_end(self.coordinated.pop(deployment), is_removed=False))

    def _require_staying(self) -> None:
        if self.is_draining:
            raise EngineError(
                "this node is about to leave the cluster", hint="deploy from another node"
            )

    def _new_record(
        self, request: Deploy, description: ModelDescription, print_of: ModelFingerprint
    ) -> DeploymentRecord:
        return new_record(
            request,
            description,
            print_of,
            model_id=self.registry.free_model_id(request.model_id or request.model),
            coordinator=self._membership.node_id,
        )

    def _make(
        self, record: DeploymentRecord, profile: ModelProfile, print_of: ModelFingerprint
    ) -> Deployment:
        return Deployment(
            record,
            profile,
            print_of,
            Surroundings(
                membership=self._membership,
                credentials=self._credentials,
                listen_host=self._listen_host,
                step_seconds=self._step_seconds,
                cost_of=self._cost_of,
            ),
            publish=self._publish,
            heard=self.heard,
        )

    async def _remove(self, deployment: Deployment, reason: str) -> None:
        await deployment.remove(reason)
        # Only now: a record without a coordinator would be an orphan.
        self.coordinated.pop(deployment.record.deployment, None)

    def _publish(self, record: DeploymentRecord) -> None:
        is_removed = record.state is DeploymentState.REMOVED
        if record.epoch.coordinator != self._membership.node_id and not is_removed:
            return  # it is another's until this node has an epoch of its own
        self.heard(record)
        payload = encode(record)
        for node in self._membership.nodes():
            self._spawn(self._tell(node, payload))

    async def _tell_newcomer(self, node: NodeId) -> None:
        for record in list(self.registry.records.values()):
            if self._speaks_for(record, node):
                await self._tell(node, encode(record))

    async def _tell(self, node: NodeId, payload: bytes) -> None:
        with suppress(CallError):  # a node that is lost now hears it when it joins again
            await self._membership.call(node, "deployment.put", payload)

    async def _stop_stages(self, scope: StageScope) -> None:
        await self._stages.stop(scope)

    def _speaks_for(self, record: DeploymentRecord, to: NodeId) -> bool:
        """Whether it is on this node to tell another of a record.

        That is on its coordinator; when there is none, on the least of those who know. A node that
        has forgotten what it coordinates (it was started anew) is told by everybody.
        """
        own = self._membership.node_id
        coordinator = record.epoch.coordinator
        others = (self._membership.nodes() | {own}) - {to}
        return coordinator in (own, to) or (coordinator not in others and min(others) == own)

    def orphans(self) -> tuple[DeploymentRecord, ...]:
        """Return the records of deployments that nobody who is there coordinates."""
        if self.is_draining:
            return ()
        return tuple(record for record in self.registry.live() if self._is_orphan(record))

    async def take_over(self, record: DeploymentRecord) -> bool:
        """Coordinate an orphan from now on; False if that is not possible now."""
        try:
            await self._adopt(record)
        except PotluckError as error:
            _log.warning("cannot take over %s: %s", record.model_id, error.message)
        except Exception:  # noqa: BLE001 - it would stay without a coordinator
            _log.exception("cannot take over %s", record.model_id)
        else:
            self._unable.discard(record.deployment)
            return True
        self._unable.add(record.deployment)
        return False

    async def _adopt(self, record: DeploymentRecord) -> None:
        """Coordinate a deployment of another node's, unless that was settled otherwise meanwhile.

        Raises what makes it impossible here.
        """
        _, profile, print_of = await self._read(record.model)
        deployed = record.fingerprint
        if deployed is not None and (found := deployed.difference(print_of)):
            raise EngineError(f"this node's files of it are not those that were deployed: {found}")
        latest = self.registry.records.get(record.deployment)
        if latest is None or self.is_draining:
            return
        own = self._membership.node_id
        if self._is_orphan(latest) or (latest.successor == own and self._is_free(latest)):
            mine = msgspec.structs.replace(latest, successor=None)
            deployment = self._make(mine, profile, print_of)
            deployment.resume()
            self.coordinated[latest.deployment] = deployment

    def _is_free(self, record: DeploymentRecord) -> bool:
        """Whether it is live, and not coordinated here."""
        is_removed = record.state is DeploymentState.REMOVED
        return not is_removed and record.deployment not in self.coordinated

    def _is_orphan(self, record: DeploymentRecord) -> bool:
        is_lost = record.epoch.coordinator not in self._membership.nodes()
        return is_lost and self._is_free(record)

    async def _read(self, model: str) -> tuple[ModelDescription, ModelProfile, ModelFingerprint]:
        def read() -> tuple[ModelDescription, ModelProfile, ModelFingerprint]:
            description = describe_model(model)
            return description, read_profile(description), self._fingerprints.of(description)

        return await asyncio.to_thread(read)


async def _end(deployment: Deployment, *, is_removed: bool) -> None:
    """End what another node coordinates now, or what was removed."""
    # Otherwise its sequences are told that they have moved.
    await deployment.close(EngineError("the model was undeployed") if is_removed else None)
