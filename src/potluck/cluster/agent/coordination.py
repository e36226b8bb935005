"""Who coordinates which deployment: this agent's part in it.

An agent coordinates what it was asked to deploy. Every agent knows the records of all deployments;
when a coordinator is gone, others take over what it leaves (``takeover``). If two do so at once,
the one with the higher epoch goes on.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import msgspec

from potluck.catalog import ModelDescription, describe_model
from potluck.cluster.agent.background import Spawn
from potluck.cluster.agent.changes import Changes
from potluck.cluster.agent.isolation import Isolation
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.new_deployment import new_record
from potluck.cluster.agent.registry import Registry
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.calls import (
    Deploy,
    DeploymentRecord,
    DeploymentState,
    ModelFingerprint,
    Named,
    StageScope,
    Vacate,
    encode,
)
from potluck.cluster.coordinator.attempt import Surroundings
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.coordinator.planning import placement_fields, size_of
from potluck.cluster.coordinator.survey import plan_model
from potluck.cluster.membership import Membership
from potluck.cluster.trust.credentials import Credentials
from potluck.engines.costs import CostOf
from potluck.errors import CallError, EngineError, NodeLostError, ParameterError, PotluckError
from potluck.types.cluster import DeploymentId, NodeId

_log = logging.getLogger(__name__)

_REMOVE_SECONDS = 60.0
_VACATE_SECONDS = 90.0


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
        self.isolation = Isolation(membership.nodes)
        self._membership = membership
        self._credentials = credentials
        self._stages = stages
        self._fingerprints = fingerprints
        self._listen_host = listen_host
        self._step_seconds = step_seconds
        self._cost_of = cost_of
        self._spawn = spawn

    async def deploy(self, request: Deploy) -> DeploymentRecord:
        """Deploy a model, coordinated here; every node that answers knows of it on return.

        Raises what prevents it; nothing is left then.
        """
        self._require_staying()
        description, print_of = await self._read(request.model)
        self._require_staying()
        record = self._new_record(request, description, print_of)
        deployment = self._make(record, description, print_of)
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

    async def plan(self, request: Deploy) -> DeploymentRecord:
        """What would go where; nothing is loaded."""
        description, print_of = await self._read(request.model)
        record = self._new_record(request, description, print_of)
        size = size_of(description, record)
        planned = await plan_model(
            self._membership,
            record.model,
            description,
            print_of,
            size,
            may_quantize=record.may_quantize,
            arithmetic=record.arithmetic,
            cost_of=self._cost_of,
        )
        return msgspec.structs.replace(record, **placement_fields(planned))

    async def undeploy(self, name: str) -> DeploymentRecord:
        """Remove a deployment, wherever it is coordinated."""
        record = self.registry.find(name)
        if record is None:
            known = ", ".join(each.model_id for each in self.registry.live()) or "none"
            raise ParameterError(
                "name", f"nothing is deployed as {name}", hint=f"deployed now: {known}"
            )
        try:
            await self._membership.call(
                record.epoch.coordinator,
                "deployment.remove",
                encode(Named(deployment=record.deployment)),
                timeout_seconds=_REMOVE_SECONDS,
            )
        except NodeLostError:
            await self.remove(record.deployment)
        return record

    async def remove(self, deployment: DeploymentId) -> None:
        """End a deployment for good; one that nobody coordinates any more, too."""
        mine = self.coordinated.get(deployment)
        if mine is not None:
            await self._remove(mine, "undeployed")
            return
        record = self.registry.records.get(deployment)
        if record is not None and record.state is not DeploymentState.REMOVED:
            self._publish(msgspec.structs.replace(record, state=DeploymentState.REMOVED, stages=()))

    async def drain(self) -> None:
        """Let others go on without this node: take nothing new, finish what is in flight."""
        self.is_draining = True
        vacating = [
            self._membership.call(
                record.epoch.coordinator,
                "deployment.vacate",
                encode(Vacate(deployment=record.deployment, node_id=self._membership.node_id)),
                timeout_seconds=_VACATE_SECONDS,
            )
            for record in self.registry.live()
            if record.epoch.coordinator != self._membership.node_id
        ]
        finishing = [each.finish() for each in self.coordinated.values()]
        await asyncio.gather(*vacating, *finishing, return_exceptions=True)

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
        registry = self.registry.put(record)
        if registry is self.registry:
            was_removed = known is not None and known.state is DeploymentState.REMOVED
            if was_removed and record.state is not DeploymentState.REMOVED:
                self._spawn(self._tell(record.epoch.coordinator, encode(known)))
            return
        self.registry = registry
        mine = self.coordinated.get(record.deployment)
        is_removed = record.state is DeploymentState.REMOVED
        if (
            mine is not None
            and record is not mine.record
            and (is_removed or mine.record.epoch < record.epoch)
        ):
            del self.coordinated[record.deployment]
            self._spawn(mine.close())
        if is_removed:
            scope = StageScope(deployment=record.deployment, epoch=record.epoch)
            self._spawn(self._stop_stages(scope))
        elif known is None or known.epoch != record.epoch:
            self._spawn(self._stages.supersede(record.deployment, record.epoch))
        self.changes.tell()

    def joined(self, node: NodeId) -> None:
        """A node is there: tell it what it cannot know."""
        for deployment in self.coordinated.values():
            deployment.node_joined()
        self.changes.tell()
        self._spawn(self._tell_newcomer(node))

    def left(self, node: NodeId) -> None:
        """A node is gone."""
        self.isolation.left(node)
        for deployment in list(self.coordinated.values()):
            deployment.node_left(node)
        self._spawn(self._stages.coordinator_left(node))
        self.changes.tell()

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
        self, record: DeploymentRecord, description: ModelDescription, print_of: ModelFingerprint
    ) -> Deployment:
        return Deployment(
            record,
            description,
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
            description, print_of = await self._read(record.model)
            deployed = record.fingerprint
            if deployed is not None and (found := deployed.difference(print_of)):
                _log.warning(
                    "cannot take over %s: this node's files of it are not those that were"
                    " deployed: %s",
                    record.model_id,
                    found,
                )
                return False
            latest = self.registry.records.get(record.deployment)
            if latest is not None and not self.is_draining and self._is_orphan(latest):
                deployment = self._make(latest, description, print_of)
                deployment.resume()
                self.coordinated[latest.deployment] = deployment
        except PotluckError as error:
            _log.warning("cannot take over %s: %s", record.model_id, error.message)
            return False
        except Exception:  # noqa: BLE001 - it would stay without a coordinator
            _log.exception("cannot take over %s", record.model_id)
            return False
        return True

    def _is_orphan(self, record: DeploymentRecord) -> bool:
        if record.state is DeploymentState.REMOVED or record.deployment in self.coordinated:
            return False
        return record.epoch.coordinator not in self._membership.nodes()

    async def _read(self, model: str) -> tuple[ModelDescription, ModelFingerprint]:
        def read() -> tuple[ModelDescription, ModelFingerprint]:
            description = describe_model(model)
            return description, self._fingerprints.of(description)

        return await asyncio.to_thread(read)
