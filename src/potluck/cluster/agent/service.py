"""The agent: what a node does for the cluster, in one event loop.

It takes part in the membership, hosts stages for coordinators, coordinates the deployments that
were asked of it (or inherited), and is the gateway of its own clients. It does no arithmetic of a
model and loads no driver.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from potluck.catalog import ModelDescription, describe_model
from potluck.cluster.agent.isolation import Isolation
from potluck.cluster.agent.model_files import fingerprint
from potluck.cluster.agent.node import NodeFacts, report
from potluck.cluster.agent.registry import Registry, successor
from potluck.cluster.agent.stages import StageHost, encode_event
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.calls import (
    CheckModel,
    ConnectStage,
    Deploy,
    DeploymentRecord,
    DeploymentState,
    Generate,
    GenerateAnswer,
    GenerateFailure,
    ModelFingerprint,
    Named,
    StageLost,
    StageScope,
    Token,
    Vacate,
    decode,
    decode_answer,
    encode,
)
from potluck.cluster.coordinator.deployment import Deployment, gather_reports
from potluck.cluster.coordinator.planning import model_cost, offers, size_of
from potluck.cluster.membership import (
    Address,
    Membership,
    MembershipConfig,
    MethodTable,
    Observer,
    PemPaths,
)
from potluck.cluster.trust.authority import cluster_id, derive_authority, issue_credentials
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.trust.pem_files import write_pem_files
from potluck.cluster.trust.secret import Secret
from potluck.cluster.worker.messages import StageSpec
from potluck.engines.threads import default_num_threads
from potluck.errors import CallError, EngineError, NodeLostError, ParameterError, PotluckError
from potluck.placement import place
from potluck.types.cluster import DeploymentId, Epoch, NodeId, Plan
from potluck.types.sequence import CommittedToken, SequenceRequest

_log = logging.getLogger(__name__)

DEFAULT_CONTEXT_TOKENS = 4096
"""As for a model in one process."""

_STATS_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """How one node takes part.

    ``listen`` is for control (port 0: any free one); edges listen on the same host.
    ``memory_limit_bytes`` bounds what stages may use here.
    """

    secret: Secret
    listen: Address
    connect: tuple[Address, ...] = ()
    multicast: bool = False
    memory_limit_bytes: int | None = None
    num_threads: int | None = None
    isa: str | None = None
    lease_milliseconds: int = 1000


class Agent:
    """Made by :meth:`open`. For use in the loop that opened it."""

    def __init__(
        self,
        config: AgentConfig,
        state: StateDirectory,
        node_id: NodeId,
        credentials: Credentials,
    ) -> None:
        self.node_id = node_id
        self.http_address: str | None = None
        self.registry = Registry()
        self.incompatible: dict[NodeId, int] = {}
        self.is_draining = False
        self._config = config
        self._credentials = credentials
        self._deployments: dict[DeploymentId, Deployment] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._facts = NodeFacts(
            node_id=node_id,
            address="",
            memory_limit_bytes=config.memory_limit_bytes,
            num_threads=config.num_threads,
        )
        self._stages = StageHost(
            credentials,
            state,
            listen_host=config.listen.host,
            num_threads=config.num_threads or default_num_threads(),
            isa=config.isa,
            report_lost=self._report_lost,
        )
        self._isolation = Isolation(lambda: self.membership.nodes())
        self.membership: Membership

    @classmethod
    @asynccontextmanager
    async def open(cls, config: AgentConfig, state: StateDirectory) -> AsyncGenerator[Agent, None]:
        """Take part until the block ends; then stop all stages and leave."""
        num_ended = state.end_leftover_workers()
        if num_ended:
            _log.warning("workers that an earlier agent left behind, ended now: %d", num_ended)
        node_id = state.node_id()
        authority = derive_authority(config.secret)
        credentials = issue_credentials(authority, node_id, [config.listen.host])
        paths = write_pem_files(credentials, state.tls)
        agent = cls(config, state, node_id, credentials)
        async with AsyncExitStack() as opened:
            opened.push_async_callback(agent._stop)
            membership = await Membership.open(
                MembershipConfig(
                    node_id=node_id,
                    cluster_id=cluster_id(config.secret),
                    listen=config.listen,
                    connect=config.connect,
                    multicast=config.multicast,
                    pem=PemPaths(
                        authority=paths.authority,
                        certificate=paths.certificate,
                        key=paths.private_key,
                    ),
                    lease_milliseconds=config.lease_milliseconds,
                ),
                methods=agent._methods(),
                observer=Observer(
                    on_join=lambda node: agent._spawn(agent._joined(node)),
                    on_leave=agent._left,
                    on_incompatible=agent._incompatible_seen,
                ),
            )
            opened.push_async_callback(membership.close)
            agent.membership = membership
            agent._facts = replace(agent._facts, address=str(membership.address))
            for node in membership.nodes():
                agent._spawn(agent._joined(node))
            agent._spawn(agent._refresh_stats())
            opened.push_async_callback(agent._end_deployments)
            yield agent

    # What clients of this agent ask.

    async def deploy(self, request: Deploy) -> DeploymentRecord:
        """Deploy a model, coordinated here. Raises what prevents it."""
        description = await asyncio.to_thread(describe_model, request.model)
        print_of = await asyncio.to_thread(fingerprint, description)
        record = self._new_record(request, description)
        deployment = self._make_deployment(record, description, print_of)
        self._deployments[record.deployment] = deployment
        try:
            await deployment.start()
        except BaseException:
            del self._deployments[record.deployment]
            await asyncio.shield(deployment.remove())
            raise
        return deployment.record

    async def plan(self, request: Deploy) -> tuple[DeploymentRecord, Plan]:
        """What would go where; nothing is loaded."""
        description = await asyncio.to_thread(describe_model, request.model)
        record = self._new_record(request, description)
        nodes = sorted(self.membership.nodes() | {self.node_id})
        reports, silent = await gather_reports(self.membership, nodes)
        threads = max(unit.num_threads for each in reports for unit in each.units)
        cost = await asyncio.to_thread(
            model_cost, description, size_of(description, record), num_threads=threads
        )
        plan = place(offers(reports), cost)
        return record, replace(plan, rejections=(*plan.rejections, *silent))

    async def undeploy(self, name: str) -> DeploymentRecord:
        """Remove a deployment, wherever it is coordinated."""
        record = self.registry.find(name)
        if record is None:
            known = ", ".join(each.model_id for each in self.registry.live()) or "none"
            raise ParameterError(
                "name", f"nothing is deployed as {name}", hint=f"deployed now: {known}"
            )
        await self.membership.call(
            record.epoch.coordinator,
            "deployment.remove",
            encode(Named(deployment=record.deployment)),
            timeout_seconds=60.0,
        )
        return record

    async def generate(
        self, record: DeploymentRecord, request: SequenceRequest
    ) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence with the coordinator, here or elsewhere."""
        deployment = self._deployments.get(record.deployment)
        if deployment is not None:
            stream = deployment.generate(request)
        else:
            stream = self._generate_elsewhere(record, request)
        try:
            async for token in stream:
                yield token
        finally:
            await stream.aclose()

    async def drain(self) -> None:
        """Let others go on without this node: take nothing new, finish what is in flight."""
        self.is_draining = True
        vacating = [
            self.membership.call(
                record.epoch.coordinator,
                "deployment.vacate",
                encode(Vacate(deployment=record.deployment, node_id=self.node_id)),
                timeout_seconds=90.0,
            )
            for record in self.registry.live()
            if record.epoch.coordinator != self.node_id
        ]
        finishing = [each.finish() for each in self._deployments.values()]
        await asyncio.gather(*vacating, *finishing, return_exceptions=True)

    def coordinated(self) -> tuple[Deployment, ...]:
        """Deployments that this agent coordinates."""
        return tuple(self._deployments.values())

    # What other agents ask.

    def _methods(self) -> MethodTable:
        methods = MethodTable()
        methods.register("node.report", self._on_report)
        methods.register("model.check", self._on_check)
        methods.register_stream("stage.start", self._on_stage_start)
        methods.register("stage.connect", self._on_stage_connect)
        methods.register("stage.stop", self._on_stage_stop)
        methods.register("stage.stats", self._on_stage_stats)
        methods.register("stage.lost", self._on_stage_lost)
        methods.register("deployment.put", self._on_put)
        methods.register("deployment.remove", self._on_remove)
        methods.register("deployment.vacate", self._on_vacate)
        methods.register_stream("deployment.generate", self._on_generate)
        return methods

    async def _on_report(self, _: bytes) -> bytes:
        return encode(
            report(self._facts, http_address=self.http_address, is_draining=self.is_draining)
        )

    async def _on_check(self, payload: bytes) -> bytes:
        request = decode(payload, CheckModel)

        def check() -> ModelFingerprint:
            return fingerprint(describe_model(request.model))

        return encode(await asyncio.to_thread(check))

    async def _on_stage_start(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        events = self._stages.start(decode(payload, StageSpec))
        try:
            async for event in events:
                yield encode_event(event)
        finally:
            await events.aclose()

    async def _on_stage_connect(self, payload: bytes) -> bytes:
        await self._stages.connect(decode(payload, ConnectStage))
        return b""

    async def _on_stage_stop(self, payload: bytes) -> bytes:
        await self._stages.stop(decode(payload, StageScope))
        return b""

    async def _on_stage_stats(self, payload: bytes) -> bytes:
        return encode(self._stages.stats(decode(payload, StageScope)))

    async def _on_stage_lost(self, payload: bytes) -> bytes:
        lost = decode(payload, StageLost)
        deployment = self._deployments.get(lost.deployment)
        if deployment is not None:
            deployment.stage_lost(lost)
        return b""

    async def _on_put(self, payload: bytes) -> bytes:
        self._heard(decode(payload, DeploymentRecord))
        return b""

    async def _on_remove(self, payload: bytes) -> bytes:
        deployment = self._deployments.pop(decode(payload, Named).deployment, None)
        if deployment is not None:
            await deployment.remove()
        return b""

    async def _on_vacate(self, payload: bytes) -> bytes:
        request = decode(payload, Vacate)
        deployment = self._deployments.get(request.deployment)
        if deployment is not None:
            await deployment.vacate(request.node_id)
        return b""

    async def _on_generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        request = decode(payload, Generate)
        deployment = self._deployments.get(request.deployment)
        if deployment is None:
            raise CallError(
                "the deployment is not coordinated here any more", hint="try again in a moment"
            )
        stream = deployment.generate(request.request)
        try:
            async for token in stream:
                yield encode(Token(token=token))
        except PotluckError as error:
            yield encode(GenerateFailure.of(error))
        finally:
            await stream.aclose()

    async def _generate_elsewhere(
        self, record: DeploymentRecord, request: SequenceRequest
    ) -> AsyncGenerator[CommittedToken, None]:
        payload = encode(Generate(deployment=record.deployment, request=request))
        stream = self.membership.call_stream(
            record.epoch.coordinator, "deployment.generate", payload
        )
        try:
            async for part in stream:
                answer: GenerateAnswer = decode_answer(part)
                if isinstance(answer, GenerateFailure):
                    raise answer.error()
                yield answer.token
        except NodeLostError as error:
            raise EngineError(
                f"the node that schedules {record.model_id} was lost",
                hint="send the request again: another node takes over",
            ) from error
        finally:
            await stream.aclose()

    # Deployments.

    def _new_record(self, request: Deploy, description: ModelDescription) -> DeploymentRecord:
        most = description.config.max_context_tokens
        context = request.context_tokens
        if context is None:
            context = min(most, DEFAULT_CONTEXT_TOKENS)
        if not 2 <= context <= most:
            raise ParameterError(
                "context",
                f"a context of {context} tokens is not possible",
                hint=f"this model allows 2 to {most}",
            )
        cache = 4 * context if request.cache_tokens is None else request.cache_tokens
        if cache < context:
            raise ParameterError(
                "cache",
                f"a cache of {cache} tokens does not hold one context of {context}",
                hint="give a larger --cache, or a smaller --context",
            )
        return DeploymentRecord(
            deployment=DeploymentId(secrets.token_hex(4)),
            epoch=Epoch(number=1, coordinator=self.node_id),
            revision=0,
            model=request.model,
            model_id=self.registry.free_model_id(request.model_id or request.model),
            created=int(time.time()),
            context_tokens=context,
            cache_tokens=cache,
            num_layers=description.config.num_layers,
            state=DeploymentState.LOADING,
        )

    def _make_deployment(
        self,
        record: DeploymentRecord,
        description: ModelDescription,
        model_fingerprint: ModelFingerprint,
    ) -> Deployment:
        return Deployment(
            record,
            description,
            model_fingerprint,
            membership=self.membership,
            credentials=self._credentials,
            listen_host=self._config.listen.host,
            publish=self._publish,
            before_next_epoch=self._isolation.over,
        )

    def _publish(self, record: DeploymentRecord) -> None:
        self._heard(record)
        payload = encode(record)
        for node in self.membership.nodes():
            self._spawn(self._tell(node, payload))

    async def _tell(self, node: NodeId, payload: bytes) -> None:
        with suppress(CallError):  # a node that is lost now hears it when it joins again
            await self.membership.call(node, "deployment.put", payload)

    def _heard(self, record: DeploymentRecord) -> None:
        self.registry = self.registry.put(record)
        mine = self._deployments.get(record.deployment)
        if mine is not None and record.epoch > mine.record.epoch:
            del self._deployments[record.deployment]
            self._spawn(mine.close())

    async def _succeed(self, lost: NodeId) -> None:
        """Take over the deployments of a node that is lost, if it falls to this one."""
        await self._isolation.over()
        alive = self.membership.nodes() | {self.node_id}
        if lost not in alive and successor(alive) == self.node_id:
            for record in self.registry.orphans(lost):
                await self._take_over(record)

    async def _take_over(self, record: DeploymentRecord) -> None:
        """Coordinate a deployment whose coordinator is lost."""
        try:
            description = await asyncio.to_thread(describe_model, record.model)
            print_of = await asyncio.to_thread(fingerprint, description)
        except PotluckError as error:
            _log.warning("cannot take over %s: %s", record.model_id, error.message)
            return
        if record.deployment in self._deployments:
            return
        deployment = self._make_deployment(record, description, print_of)
        self._deployments[record.deployment] = deployment
        deployment.resume()

    # Comings and goings.

    async def _joined(self, node: NodeId) -> None:
        self.incompatible.pop(node, None)
        for deployment in self._deployments.values():
            deployment.node_joined()
        for record in self.registry.records.values():
            if record.epoch.coordinator in (self.node_id, node):
                await self._tell(node, encode(record))

    def _left(self, node: NodeId) -> None:
        self._isolation.left(node)
        for deployment in list(self._deployments.values()):
            deployment.node_left(node)
        if not self.is_draining and self.registry.orphans(node):
            self._spawn(self._succeed(node))

    def _incompatible_seen(self, node: NodeId, version: int) -> None:
        self.incompatible[node] = version

    async def _report_lost(self, lost: StageLost) -> None:
        with suppress(CallError):  # the coordinator is lost itself: its successor plans anew
            await self.membership.call(
                lost.epoch.coordinator, "stage.lost", encode(lost), timeout_seconds=5.0
            )

    async def _refresh_stats(self) -> None:
        """Keep what /metrics shows of stages near the truth, while there is something to see."""
        while True:
            await asyncio.sleep(_STATS_SECONDS)
            for deployment in list(self._deployments.values()):
                await deployment.refresh_stats()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the agent failed", exc_info=task.exception())

    async def _end_deployments(self) -> None:
        self.is_draining = True
        await asyncio.gather(*(each.close() for each in self._deployments.values()))

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stages.stop_all()
