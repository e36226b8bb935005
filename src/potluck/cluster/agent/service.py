"""The agent: what a node does for the cluster, in one event loop.

It takes part in the membership, hosts stages for coordinators, coordinates the deployments that
were asked of it (or inherited), and is the gateway of its own clients. It does no arithmetic of a
model and loads no driver.

This module only puts the parts together, each of which depends on those made before it, and takes
them apart in the opposite order. What other agents ask is answered by one module for each group of
calls: ``node_calls``, ``stage_calls``, ``deployment_calls``, ``sequence_calls``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.deployment_calls import DeploymentCalls
from potluck.cluster.agent.diagnosis import diagnose
from potluck.cluster.agent.hardware import Hardware
from potluck.cluster.agent.hosted_stage import HostedStage
from potluck.cluster.agent.hosts import HostAnswer, ask_hosts
from potluck.cluster.agent.leaving import Leaving
from potluck.cluster.agent.links import Links
from potluck.cluster.agent.measured_speeds import MeasuredSpeeds
from potluck.cluster.agent.member_events import MemberEvents
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.node import NodeFacts
from potluck.cluster.agent.node_calls import NodeCalls
from potluck.cluster.agent.outlooks import Outlooks
from potluck.cluster.agent.relaying import Relaying
from potluck.cluster.agent.sequence_calls import SequenceCalls
from potluck.cluster.agent.stage_calls import StageCalls, report_lost
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.agent.takeover import Takeovers
from potluck.cluster.agent.unit_care import UnitCare
from potluck.cluster.agent.unit_outages import UnitOutages
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.background import Background
from potluck.cluster.calls import DeploymentRecord, Named, decode, encode
from potluck.cluster.membership import Membership, MembershipConfig, MethodTable, PemPaths
from potluck.cluster.trust import pem_files
from potluck.cluster.trust.authority import cluster_id, derive_authority, issue_credentials
from potluck.cluster.worker.messages import Stats
from potluck.engines.costs import cost_of
from potluck.errors import CallError
from potluck.probe.cache import ProbeCache, default_cache_path
from potluck.probe.cores import default_num_threads
from potluck.probe.doctor.case import Cluster
from potluck.probe.probe import Measuring, ProbeOptions
from potluck.types.cluster import NodeId
from potluck.types.gateway import ModelMetrics
from potluck.types.speed import LinkSpeed
from potluck.types.unit import backend_of

_log = logging.getLogger(__name__)

_METRICS_SECONDS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The parts of a running agent, put together by :meth:`open`.

    For use in the loop that opened it.
    """

    membership: Membership
    hardware: Hardware
    fingerprints: Fingerprints
    coordination: Coordination
    relaying: Relaying
    leaving: Leaving
    links: Links
    node_calls: NodeCalls
    events: MemberEvents

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
        async with AsyncExitStack() as opened:
            cache = ProbeCache(default_cache_path(os.environ))
            hardware = await Hardware.start(_probe_options(config), cache, layers=config.layers)
            opened.callback(hardware.close)
            events = MemberEvents()
            methods = MethodTable(is_complete=False)
            membership = await Membership.open(
                _membership_config(config, node_id, paths),
                methods=methods,
                observer=events.observer(),
            )
            opened.push_async_callback(membership.close)
            background = Background()
            outages = UnitOutages()
            num_threads = config.num_threads or default_num_threads()
            units = NodeUnits(lambda: hardware.report, config.unit_choice, outages.reasons)
            speeds = MeasuredSpeeds(state.step_times, units, num_threads=num_threads)
            opened.callback(speeds.close)
            links = Links(
                membership,
                credentials,
                listen_host=config.listen.host,
                spawn=background.spawn,
                is_busy=lambda: stages.is_serving or bool(coordination.coordinated),
            )

            def measured(stage: HostedStage, stats: Stats) -> None:
                speeds.took(stage, stats)
                if stats.way is not None:
                    links.used(stats.way.node_id, stats.way.path)

            async def link_speeds(*, may_wait: bool) -> tuple[LinkSpeed, ...]:
                for node, path in coordination.paths_in_use():
                    links.used(node, path)
                return await links.settled() if may_wait else links.speeds()

            stages = StageHost(
                credentials,
                state.workers,
                units,
                listen_host=config.listen.host,
                num_threads=num_threads,
                packed_cache_bytes=config.packed_cache_bytes,
                unit_step_seconds=config.stage_step_seconds,
                stall_seconds=config.stall_seconds,
                unit_failed=outages.failed,
                report_lost=partial(report_lost, membership),
                measured=measured,
                orphan_seconds=config.orphan_seconds,
            )
            opened.push_async_callback(stages.stop_all)
            opened.push_async_callback(background.close)
            opened.push_async_callback(links.close)
            # Others see this node leave before its stages end, and so plan without it.
            opened.push_async_callback(membership.close)
            care = UnitCare(
                config.backends,
                cache,
                outages,
                units=units.all,
                workers_on=stages.workers_on,
                step_seconds=config.stage_step_seconds,
                idle_seconds=config.idle_test_seconds,
            )
            fingerprints = Fingerprints()
            coordination = Coordination(
                membership,
                credentials,
                stages,
                fingerprints,
                listen_host=config.listen.host,
                step_seconds=config.step_seconds,
                cost_of=partial(cost_of, backends=config.backends),
                spawn=background.spawn,
            )
            opened.push_async_callback(coordination.close)
            outlooks = Outlooks(membership)
            takeovers = Takeovers(membership, coordination, outlooks, spawn=background.spawn)
            relaying = Relaying(membership, coordination, outlooks)
            facts = NodeFacts(
                node_id=node_id,
                address=str(membership.address),
                memory_limit_bytes=config.memory_limit_bytes,
                num_threads=config.num_threads,
            )
            node_calls = NodeCalls(
                facts,
                membership,
                hardware,
                units,
                stages,
                coordination,
                fingerprints,
                speeds,
                link_speeds,
            )
            node_calls.register(methods)
            StageCalls(stages).register(methods)
            DeploymentCalls(coordination).register(methods)
            SequenceCalls(membership, coordination).register(methods)
            links.register(methods)
            methods.complete()
            background.spawn(care.run())
            background.spawn(speeds.run(stages.collect))
            background.spawn(takeovers.run())
            background.spawn(links.run())

            def joined(node: NodeId) -> None:
                coordination.joined(node)
                links.joined(node)

            def left(node: NodeId) -> None:
                coordination.left(node)
                links.left(node)

            background.spawn(events.run(joined=joined, left=left))
            yield cls(
                membership=membership,
                hardware=hardware,
                fingerprints=fingerprints,
                coordination=coordination,
                relaying=relaying,
                leaving=Leaving(membership, coordination, relaying),
                links=links,
                node_calls=node_calls,
                events=events,
            )

    @property
    def node_id(self) -> NodeId:
        """The node that it runs on."""
        return self.membership.node_id

    @property
    def http_address(self) -> str | None:
        """Where clients reach this node; None if they cannot."""
        return self.node_calls.http_address

    @property
    def incompatible(self) -> Mapping[NodeId, int]:
        """The wire versions of nodes that cannot take part."""
        return self.events.incompatible

    @property
    def failed(self) -> asyncio.Future[None]:
        """Has an exception when this node can take part no longer, and its agent has to end."""
        return self.events.failed

    async def drain(self) -> None:
        """Let others go on without this node; see ``Leaving.drain``."""
        await self.leaving.drain()

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


def _probe_options(config: AgentConfig) -> ProbeOptions:
    return ProbeOptions(
        backends=config.backends,
        num_threads=config.num_threads or default_num_threads(),
        measuring=Measuring.IF_UNKNOWN,
        allow_software=config.allow_software,
        asked_backend=None if config.backend is None else backend_of(config.backend),
    )


def _membership_config(
    config: AgentConfig, node_id: NodeId, paths: pem_files.PemPaths
) -> MembershipConfig:
    return MembershipConfig(
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
    )
