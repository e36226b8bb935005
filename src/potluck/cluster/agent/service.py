"""The agent: what a node does for the cluster, in one event loop.

It takes part in the membership, hosts stages for coordinators, coordinates the deployments that
were asked of it (or inherited), and is the gateway of its own clients. It does no arithmetic of a
model and loads no driver.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from potluck.catalog import describe_model
from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.diagnosis import be_heard, diagnose, reach_back
from potluck.cluster.agent.hardware import Hardware
from potluck.cluster.agent.hosts import HostAnswer, OwnHost, ask_hosts
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.node import NodeFacts, report
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.agent.token_batches import in_batches
from potluck.cluster.agent.unit_care import UnitCare
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.calls import (
    AbandonStage,
    CheckModel,
    Clock,
    ConnectStage,
    DeploymentRecord,
    Generate,
    GenerateAnswer,
    GenerateFailure,
    ModelFingerprint,
    Multicast,
    Named,
    Reach,
    StageLost,
    StageScope,
    Stalled,
    Tokens,
    Vacate,
    decode,
    encode,
)
from potluck.cluster.membership import (
    Membership,
    MembershipConfig,
    MethodTable,
    Observer,
    PemPaths,
)
from potluck.cluster.trust.authority import cluster_id, derive_authority, issue_credentials
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.messages import StageSpec
from potluck.engines.costs import cost_of
from potluck.errors import (
    CallError,
    EngineError,
    NodeLostError,
    OverloadedError,
    PotluckError,
    StalledError,
)
from potluck.probe.cache import ProbeCache, default_cache_path
from potluck.probe.cores import default_num_threads
from potluck.probe.doctor.case import Cluster
from potluck.probe.probe import Measuring, ProbeOptions
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.gateway import ModelMetrics
from potluck.types.sequence import CommittedToken, SequenceRequest
from potluck.types.unit import backend_of

_log = logging.getLogger(__name__)

_METRICS_SECONDS = 4.0

_MAX_REMOTE_SEQUENCES = 192
"""That other gateways stream from here: the rest of the calls that a node answers at a time
(``membership.server.MAX_RUNNING_CALLS``) is for control."""

_RETRY_AFTER_SECONDS = 5


class Agent:
    """Made by :meth:`open`. For use in the loop that opened it."""

    def __init__(
        self,
        config: AgentConfig,
        state: StateDirectory,
        node_id: NodeId,
        credentials: Credentials,
        hardware: Hardware,
        cache: ProbeCache,
    ) -> None:
        self.node_id = node_id
        self.hardware = hardware
        self.fingerprints = Fingerprints()
        self.http_address: str | None = None
        self.incompatible: dict[NodeId, int] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has an exception when this node can take part no longer, and its agent has to end."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._num_remote_sequences = 0
        self._facts = NodeFacts(
            node_id=node_id,
            address="",
            memory_limit_bytes=config.memory_limit_bytes,
            num_threads=config.num_threads,
        )
        unit_step_seconds = config.stage_step_seconds
        self._care = UnitCare(
            config.backends,
            cache,
            units=lambda: self._units.all(),
            workers_on=lambda unit_id: self._stages.workers_on(unit_id),
            step_seconds=unit_step_seconds,
            idle_seconds=config.idle_test_seconds,
        )
        self._units = NodeUnits(
            lambda: hardware.report, config.unit_choice, lambda: self._care.reasons
        )
        self._stages = StageHost(
            credentials,
            state.workers,
            self._units,
            listen_host=config.listen.host,
            num_threads=config.num_threads or default_num_threads(),
            packed_cache_bytes=config.packed_cache_bytes,
            unit_step_seconds=unit_step_seconds,
            stall_seconds=config.stall_seconds,
            unit_failed=self._care.failed,
            report_lost=self._report_lost,
        )
        self._own_host = OwnHost(lambda: hardware.report)
        self._is_open = asyncio.Event()
        self.membership: Membership
        self.coordination: Coordination

    @classmethod
    @asynccontextmanager
    async def open(cls, config: AgentConfig, state: StateDirectory) -> AsyncGenerator[Agent, None]:
        """Take part until the block ends; then stop all stages and leave."""
        num_ended = state.workers.end_leftovers()
        if num_ended:
            _log.warning("workers that an earlier agent left behind, ended now: %d", num_ended)
        node_id = state.node_id()
        authority = derive_authority(config.secret)
        credentials = issue_credentials(authority, node_id, [config.listen.host])
        paths = state.write_credentials(credentials)
        options = ProbeOptions(
            backends=config.backends,
            num_threads=config.num_threads or default_num_threads(),
            measuring=Measuring.IF_UNKNOWN,
            allow_software=config.allow_software,
            asked_backend=None if config.backend is None else backend_of(config.backend),
        )
        async with AsyncExitStack() as opened:
            cache = ProbeCache(default_cache_path(os.environ))
            hardware = await Hardware.start(options, cache, layers=config.layers)
            opened.callback(hardware.close)
            agent = cls(config, state, node_id, credentials, hardware, cache)
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
                    on_join=agent._joined,
                    on_leave=agent._left,
                    on_incompatible=agent._incompatible_seen,
                    on_conflict=agent._has_to_leave,
                ),
            )
            opened.push_async_callback(membership.close)
            agent.membership = membership
            agent.coordination = Coordination(
                membership,
                credentials,
                agent._stages,
                agent.fingerprints,
                listen_host=config.listen.host,
                step_seconds=config.step_seconds,
                cost_of=partial(cost_of, backends=config.backends),
                spawn=agent._spawn,
            )
            opened.push_async_callback(agent.coordination.close)
            agent._facts = replace(agent._facts, address=str(membership.address))
            agent._is_open.set()
            agent._spawn(agent._care.run())
            for node in membership.nodes():
                agent._joined(node)
            yield agent

    async def generate(
        self, record: DeploymentRecord, request: SequenceRequest
    ) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence with the coordinator, here or elsewhere."""
        deployment = self.coordination.coordinated.get(record.deployment)
        if deployment is not None:
            stream = deployment.generate(request)
        else:
            stream = self._generate_elsewhere(record, request)
        async with aclosing(stream):
            async for token in stream:
                yield token

    async def diagnose(self) -> Cluster:
        """How this node and the others get along."""
        return await diagnose(self.membership)

    def hosts(self) -> AsyncGenerator[HostAnswer, None]:
        """What every node is to who wants to install something there, as the answers come."""
        return ask_hosts(self.membership)

    async def metrics(self) -> tuple[ModelMetrics, ...]:
        """Of every deployment that serves and whose coordinator answers, oldest first."""

        async def ask(record: DeploymentRecord) -> ModelMetrics | None:
            request = encode(Named(deployment=record.deployment))
            try:
                answer = await self.membership.call(
                    record.epoch.coordinator,
                    "deployment.metrics",
                    request,
                    timeout_seconds=_METRICS_SECONDS,
                )
                return decode(answer, ModelMetrics | None)
            except CallError:
                return None

        answers = await asyncio.gather(*map(ask, self.coordination.registry.live()))
        return tuple(each for each in answers if each is not None)

    # What other agents ask. All but reports wait until this agent is open.

    def _methods(self) -> MethodTable:
        methods = MethodTable()
        methods.register("node.report", self._on_report)
        methods.register("node.host", self._on_host)
        methods.register("node.clock", self._on_clock)
        methods.register_for_caller("node.reach", self._on_reach)
        methods.register("node.multicast", self._on_multicast)
        methods.register("model.check", self._on_check)
        methods.register_stream("stage.start", self._on_stage_start)
        methods.register("stage.connect", self._on_stage_connect)
        methods.register("stage.stop", self._on_stage_stop)
        methods.register("stage.stats", self._on_stage_stats)
        methods.register("stage.check", self._on_stage_check)
        methods.register("stage.abandon", self._on_stage_abandon)
        methods.register("stage.lost", self._on_stage_lost)
        methods.register("deployment.put", self._on_put)
        methods.register("deployment.remove", self._on_remove)
        methods.register("deployment.vacate", self._on_vacate)
        methods.register("deployment.metrics", self._on_metrics)
        methods.register_stream("deployment.generate", self._on_generate)
        return methods

    async def _on_report(self, _: bytes) -> bytes:
        await self._is_open.wait()
        refused = await self._refused()
        return encode(
            report(
                self._facts,
                self.hardware.report,
                self._units.all(),
                http_address=self.http_address,
                is_draining=self.coordination.is_draining,
                stages=self._stages.memory,
                refused=refused,
            )
        )

    async def _refused(self) -> dict[DeploymentId, str]:
        """What this node must not answer clients for, and why; nothing if it answers nobody."""
        records = self.coordination.registry.live()
        if self.http_address is None or not records:
            return {}

        def look() -> dict[DeploymentId, str]:
            problems = {each.deployment: self.fingerprints.text_problem(each) for each in records}
            return {deployment: problem for deployment, problem in problems.items() if problem}

        return await asyncio.to_thread(look)

    async def _on_host(self, _: bytes) -> bytes:
        return await self._own_host.description()

    async def _on_clock(self, _: bytes) -> bytes:
        return encode(Clock(seconds=time.time()))

    async def _on_reach(self, caller: NodeId, payload: bytes) -> bytes:
        await self._is_open.wait()
        return encode(await reach_back(self.membership, caller, decode(payload, Reach)))

    async def _on_multicast(self, payload: bytes) -> bytes:
        await self._is_open.wait()
        await be_heard(self.membership, decode(payload, Multicast))
        return b""

    async def _on_check(self, payload: bytes) -> bytes:
        request = decode(payload, CheckModel)

        def check() -> ModelFingerprint:
            return self.fingerprints.of(describe_model(request.model))

        return encode(await asyncio.to_thread(check))

    async def _on_stage_start(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        await self._is_open.wait()
        try:
            async with aclosing(self._stages.start(decode(payload, StageSpec))) as events:
                async for event in events:
                    yield encode(event)
        except StalledError as error:
            yield encode(Stalled(message=error.message))

    async def _on_stage_connect(self, payload: bytes) -> bytes:
        await self._stages.connect(decode(payload, ConnectStage))
        return b""

    async def _on_stage_stop(self, payload: bytes) -> bytes:
        return encode(await self._stages.stop(decode(payload, StageScope)))

    async def _on_stage_stats(self, payload: bytes) -> bytes:
        return encode(await self._stages.stats(decode(payload, StageScope)))

    async def _on_stage_check(self, payload: bytes) -> bytes:
        return encode(await self._stages.check(decode(payload, StageScope)))

    async def _on_stage_abandon(self, payload: bytes) -> bytes:
        await self._stages.abandon(decode(payload, AbandonStage))
        return b""

    async def _on_stage_lost(self, payload: bytes) -> bytes:
        await self._is_open.wait()
        lost = decode(payload, StageLost)
        deployment = self.coordination.coordinated.get(lost.deployment)
        if deployment is not None:
            deployment.stage_lost(lost)
        return b""

    async def _on_put(self, payload: bytes) -> bytes:
        await self._is_open.wait()
        self.coordination.heard(decode(payload, DeploymentRecord))
        return b""

    async def _on_remove(self, payload: bytes) -> bytes:
        await self._is_open.wait()
        await self.coordination.remove(decode(payload, Named).deployment)
        return b""

    async def _on_vacate(self, payload: bytes) -> bytes:
        await self._is_open.wait()
        request = decode(payload, Vacate)
        deployment = self.coordination.coordinated.get(request.deployment)
        if deployment is not None:
            await deployment.vacate(request.node_id)
        return b""

    async def _on_metrics(self, payload: bytes) -> bytes:
        await self._is_open.wait()
        deployment = self.coordination.coordinated.get(decode(payload, Named).deployment)
        return encode(None if deployment is None else await deployment.metrics())

    async def _on_generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        await self._is_open.wait()
        request = decode(payload, Generate)
        self._num_remote_sequences += 1
        try:
            stream = self._generate_for_another(request)
            async with aclosing(in_batches(stream, len(request.request.prompt_tokens))) as batches:
                async for tokens in batches:
                    yield encode(Tokens(tokens=tokens))
        except PotluckError as error:
            yield encode(GenerateFailure.of(error))
        finally:
            self._num_remote_sequences -= 1

    async def _generate_for_another(
        self, request: Generate
    ) -> AsyncGenerator[CommittedToken, None]:
        deployment = self.coordination.coordinated.get(request.deployment)
        if deployment is None or self.coordination.is_draining:
            raise EngineError(
                "the deployment is not coordinated here any more", hint="try again in a moment"
            )
        if self._num_remote_sequences > _MAX_REMOTE_SEQUENCES:
            raise OverloadedError(
                f"node {self.node_id} already answers {_MAX_REMOTE_SEQUENCES} sequences of others",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        async with aclosing(deployment.generate(request.request)) as stream:
            async for token in stream:
                yield token

    async def _generate_elsewhere(
        self, record: DeploymentRecord, request: SequenceRequest
    ) -> AsyncGenerator[CommittedToken, None]:
        payload = encode(Generate(deployment=record.deployment, request=request))
        stream = self.membership.call_stream(
            record.epoch.coordinator, "deployment.generate", payload
        )
        async with aclosing(stream):
            try:
                async for part in stream:
                    answer: GenerateAnswer = decode(part, GenerateAnswer)
                    if isinstance(answer, GenerateFailure):
                        raise answer.error()
                    for token in answer.tokens:
                        yield token
            except NodeLostError as error:
                raise EngineError(
                    f"the node that schedules {record.model_id} was lost",
                    hint="send the request again: another node takes over",
                ) from error

    # Comings and goings. Who comes while this agent opens is looked up afterwards.

    def _joined(self, node: NodeId) -> None:
        self.incompatible.pop(node, None)
        if self._is_open.is_set():
            self._spawn(self.coordination.joined(node))

    def _left(self, node: NodeId) -> None:
        if self._is_open.is_set():
            self.coordination.left(node)

    def _incompatible_seen(self, node: NodeId, version: int) -> None:
        self.incompatible[node] = version

    def _has_to_leave(self, error: PotluckError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # while it opens, nobody looks

    async def _report_lost(self, lost: StageLost) -> None:
        with suppress(CallError):  # the coordinator is lost itself: its successor plans anew
            await self.membership.call(lost.epoch.coordinator, "stage.lost", encode(lost))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the agent failed", exc_info=task.exception())

    async def _stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stages.stop_all()
