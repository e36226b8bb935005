"""The agent: what a node does for the cluster, in one event loop.

It is a member of the cluster, hosts stages for coordinators, coordinates the deployments that it
was asked for (or took over), and is the gateway of its own clients. It does no model arithmetic and
loads no driver.

This module only wires the parts together, each depending on those created before it, and closes
them in the reverse order. Calls of other agents are handled by one module per group:
``node_calls``, ``deployment_calls``, ``sequence_calls``, ``weight_calls``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from potluck.cluster.agent.config import AgentConfig
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.deployment_calls import DeploymentCalls, report_lost, serve_stages
from potluck.cluster.agent.edge_routes import edge_routes
from potluck.cluster.agent.hardware import Hardware
from potluck.cluster.agent.history import History
from potluck.cluster.agent.hosted_stage import HostedStage
from potluck.cluster.agent.identities import keep_addresses, own_identity
from potluck.cluster.agent.inviting import Inviting
from potluck.cluster.agent.known_nodes import KnownNodes
from potluck.cluster.agent.leaving import Leaving
from potluck.cluster.agent.link_share import serves, share_links
from potluck.cluster.agent.links import Links
from potluck.cluster.agent.measured_speeds import MeasuredSpeeds
from potluck.cluster.agent.member_events import MemberEvents
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.node_calls import NodeCalls
from potluck.cluster.agent.own_address import OwnAddress
from potluck.cluster.agent.relaying import Relaying
from potluck.cluster.agent.removals import Removals
from potluck.cluster.agent.sequence_calls import SequenceCalls
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.agent.takeover import Takeovers
from potluck.cluster.agent.threads import NodeThreads
from potluck.cluster.agent.unit_health import UnitOutages
from potluck.cluster.agent.unit_monitor import UnitMonitor
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.agent.weight_calls import WeightCalls
from potluck.cluster.agent.weights import NodeWeights
from potluck.cluster.background import Background
from potluck.cluster.invitations.identity import Identity
from potluck.cluster.invitations.ledger import LedgerFile
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.network.membership import (
    Address,
    Membership,
    MembershipConfig,
    MethodTable,
    PemPaths,
)
from potluck.cluster.transfer.messages import TransferSettings
from potluck.cluster.transfer.peer_frames import SERVER_NAME
from potluck.cluster.transfer.supervisor import TransferEvents, TransferProcess
from potluck.cluster.wire.calls import AskMetrics
from potluck.cluster.wire.methods import METRICS
from potluck.cluster.wire.worker_messages import Stats
from potluck.engines.backends import cost_of
from potluck.errors import CallError, PotluckError
from potluck.host.cache_folder import hub_cache_folder
from potluck.host.cores import threads_problem
from potluck.probe.cache import ProbeCache, default_cache_path
from potluck.probe.probe import Measuring, ProbeOptions
from potluck.store.content_store import default_limit_bytes, default_store_folder
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.content import Transfer
from potluck.types.deployment import DeploymentRecord
from potluck.types.gateway import ModelMetrics
from potluck.types.unit import backend_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The parts of a running agent, created by :meth:`open`.

    For use in the event loop that opened it.
    """

    membership: Membership
    hardware: Hardware
    fingerprints: Fingerprints
    weights: NodeWeights
    coordination: Coordination
    relaying: Relaying
    leaving: Leaving
    links: Links
    identity: Identity
    removals: Removals
    inviting: Inviting
    node_calls: NodeCalls
    known_nodes: KnownNodes
    events: MemberEvents
    history: History

    @classmethod
    @asynccontextmanager
    async def open(cls, config: AgentConfig, state: StateDirectory) -> AsyncGenerator[Agent, None]:
        """Be a member until the block ends; then stop all stages and leave."""
        num_ended = state.workers.end_leftovers()
        if num_ended:
            _log.warning("ended workers left behind by an earlier agent: %d", num_ended)
        identity, paths = own_identity(config, state)
        async with AsyncExitStack() as opened:
            cache = ProbeCache(default_cache_path(os.environ))
            threads = NodeThreads(config.num_threads)
            if problem := threads_problem(config.num_threads, threads.cores):
                _log.warning("%s", problem)
            hardware = await Hardware.start(
                _probe_options(config, threads), cache, detectors=config.detectors
            )
            opened.callback(hardware.close)
            events = MemberEvents()
            methods = MethodTable(is_complete=False)
            membership = await Membership.open(
                _membership_config(config, identity, paths),
                methods=methods,
                observer=events.observer(),
            )
            opened.push_async_callback(membership.close)
            background = Background()
            known_nodes = KnownNodes(membership, spawn=background.spawn)
            history = History(membership, spawn=background.spawn)
            outages = UnitOutages(history.unit_changed)
            units = NodeUnits(
                lambda: hardware.report,
                backends=config.backends,
                requested=config.backend,
                allow_software=config.allow_software,
                isa=config.isa,
                out=outages.reasons,
            )
            speeds = MeasuredSpeeds(state.step_times, units, threads)
            opened.callback(speeds.close)
            endpoint = EdgeEndpoint(
                credentials=identity.credentials,
                listen_host=config.listen.host,
                open_route=edge_routes(membership),
            )
            links = Links(
                membership,
                endpoint,
                spawn=background.spawn,
                is_busy=lambda: stages.hosted.is_serving or bool(coordination.coordinated),
            )

            def measured(stage: HostedStage, stats: Stats) -> None:
                speeds.record(stage, stats)
                if stats.way is not None:
                    links.used(stats.way.node_id, stats.way.path)

            def transferred(job: str, transfer: Transfer) -> None:
                stages.hosted.note_transfer(job, transfer)
                weights.transfers[job] = transfer

            def dial_wanted(node: NodeId) -> None:
                background.spawn(weights.ask_to_dial(node))

            files, cannot = await _start_transfer(
                config,
                membership,
                paths,
                TransferEvents(on_progress=transferred, on_dial_wanted=dial_wanted),
            )
            if files is not None:
                opened.push_async_callback(files.close)
            stages = StageHost(
                config,
                endpoint,
                state.workers,
                units,
                num_threads=threads.most,
                unit_failed=outages.failed,
                report_lost=partial(report_lost, membership),
                measured=measured,
                worker_socket=None if files is None else files.worker_socket,
            )
            opened.push_async_callback(stages.stop_all)
            opened.push_async_callback(background.close)
            opened.push_async_callback(links.close)
            # Others see this node leave before its stages stop, and so plan without it.
            opened.push_async_callback(membership.close)
            care = UnitMonitor(
                config.backends,
                cache,
                outages,
                units=units.all,
                workers_on=stages.hosted.workers_on,
                step_seconds=config.stage_step_seconds,
                idle_seconds=config.idle_test_seconds,
            )
            removals = Removals(
                membership,
                identity,
                paths.removed,
                spawn=background.spawn,
                events=events,
                removed=history.removed,
                refuse=(lambda nodes: None) if files is None else files.set_refused,
            )
            fingerprints = Fingerprints()
            weights = NodeWeights(
                membership, fingerprints, files, link_speeds=links.speeds, cannot=cannot
            )
            coordination = Coordination(
                membership,
                endpoint,
                stages,
                weights,
                step_seconds=config.step_seconds,
                cost_of=partial(cost_of, backends=config.backends),
                spawn=background.spawn,
                on_record=history.record_changed,
            )
            opened.push_async_callback(coordination.close)
            opened.push_async_callback(history.announce_leaving)
            takeovers = Takeovers(membership, coordination, spawn=background.spawn)
            relaying = Relaying(membership, coordination)
            node_calls = NodeCalls(
                membership,
                hardware,
                units,
                threads,
                stages,
                coordination,
                partial(fingerprints.text_problem, can_get=not weights.cannot),
                speeds,
                links,
                weights.check,
                memory_limit_bytes=config.memory_limit_bytes,
            )
            inviting = Inviting(
                membership, identity, LedgerFile(state.invitations), multicast=config.multicast
            )
            opened.push_async_callback(inviting.close)
            agent = cls(
                membership=membership,
                hardware=hardware,
                fingerprints=fingerprints,
                weights=weights,
                coordination=coordination,
                relaying=relaying,
                leaving=Leaving(membership, coordination, takeovers, relaying),
                links=links,
                identity=identity,
                removals=removals,
                inviting=inviting,
                node_calls=node_calls,
                events=events,
                history=history,
                known_nodes=known_nodes,
            )
            agent._register_calls(methods, stages, takeovers)
            background.spawn(care.run())
            background.spawn(speeds.run(stages.hosted.collect))
            background.spawn(takeovers.run())
            background.spawn(links.run())
            if files is not None:
                is_serving = partial(agent._is_serving, stages)
                background.spawn(share_links(files, is_serving, links.speeds))
            own_address = OwnAddress(
                membership,
                lambda: tuple(dict.fromkeys((*config.connect, *known_nodes.addresses()))),
                config.find_host,
                partial(agent._moved, files),
            )
            background.spawn(
                events.run(
                    joined=[
                        history.joined,
                        takeovers.joined,
                        coordination.joined,
                        links.joined,
                        removals.joined,
                        known_nodes.joined,
                    ],
                    left=[history.left, coordination.left, links.left],
                )
            )
            await inviting.resume()
            background.spawn(own_address.run())
            if identity.authority is None:
                background.spawn(keep_addresses(membership, state))
            yield agent

    def _register_calls(
        self, methods: MethodTable, stages: StageHost, takeovers: Takeovers
    ) -> None:
        """Answer the calls of other agents from now on."""
        self.node_calls.register(methods)
        serve_stages(stages, methods)
        WeightCalls(self.membership, self.fingerprints, self.weights).register(methods)
        DeploymentCalls(self.coordination, takeovers).register(methods)
        SequenceCalls(self.membership, self.coordination).register(methods)
        self.links.register(methods)
        self.removals.register(methods)
        self.history.register(methods)
        methods.complete()

    def _is_serving(self, stages: StageHost) -> bool:
        """Return whether a deployment needs this node's link more than transfers do."""
        live = self.coordination.records.live()
        return stages.hosted.is_serving or serves(self.node_id, live, self.relaying.deployments)

    async def _moved(self, files: TransferProcess | None, before: Address) -> None:
        """Use the new address for transfers and invitations, and warn if HTTP used ``before``."""
        if files is not None:
            files.set_address(self.membership.address.host, self.membership.address.port)
        await self.inviting.moved()
        url = self.http_address
        if url is not None and urlsplit(url).hostname == before.host:
            _log.warning(
                "clients can no longer connect to %s, as that address is gone too: start this "
                "node again with another --http",
                url,
            )

    @property
    def node_id(self) -> NodeId:
        """Return the id of this node."""
        return self.membership.node_id

    @property
    def http_address(self) -> str | None:
        """Return the address of this node's HTTP API; None if it has none."""
        return self.node_calls.http_address

    @property
    def failed(self) -> asyncio.Future[None]:
        """Return a future that gets an exception if this node can no longer be a member."""
        return self.events.failed

    async def metrics_by_deployment(
        self, *, max_age_seconds: float = 0.0
    ) -> dict[DeploymentId, ModelMetrics]:
        """Return the metrics of all serving deployments whose coordinators answer, oldest first.

        Their figures may be up to ``max_age_seconds`` old.
        """

        async def ask(record: DeploymentRecord) -> ModelMetrics | None:
            request = AskMetrics(deployment=record.deployment, max_age_seconds=max_age_seconds)
            try:
                return await METRICS.call(self.membership, record.epoch.coordinator, request)
            except CallError:
                return None

        live = self.coordination.records.live()
        answers = await asyncio.gather(*map(ask, live))
        return {
            record.deployment: each
            for record, each in zip(live, answers, strict=True)
            if each is not None
        }


async def _start_transfer(
    config: AgentConfig, membership: Membership, paths: PemPaths, events: TransferEvents
) -> tuple[TransferProcess | None, str]:
    """Start the transfer process; without it the node reads only files at their own paths."""
    folder = default_store_folder(os.environ)
    if folder is None:
        return None, "it has no cache folder (no home directory)"
    limit_bytes = config.weights_store_bytes
    settings = TransferSettings(
        host=membership.address.host,
        port=membership.address.port,
        node_id=membership.node_id,
        **paths.texts(),
        store_folder=str(folder),
        limit_bytes=default_limit_bytes(folder) if limit_bytes is None else limit_bytes,
        hub_folder=str(hub_cache_folder()),
    )
    connections = membership.add_route(SERVER_NAME)
    try:
        return (
            await TransferProcess.start(settings, events=events, connections=connections),
            "",
        )
    except (PotluckError, OSError) as error:
        membership.remove_route(SERVER_NAME)
        if connections is not None:
            connections.close()
        _log.warning("model files cannot be fetched from or sent to other nodes: %s", error)
        return None, f"its transfer process did not start: {error}"


def _probe_options(config: AgentConfig, threads: NodeThreads) -> ProbeOptions:
    return ProbeOptions(
        backends=config.backends,
        num_threads=threads.at_start,
        measuring=Measuring.IF_UNKNOWN,
        allow_software=config.allow_software,
        requested_backend=None if config.backend is None else backend_of(config.backend),
    )


def _membership_config(
    config: AgentConfig, identity: Identity, paths: PemPaths
) -> MembershipConfig:
    return MembershipConfig(
        node_id=identity.node_id,
        cluster_id=identity.cluster_id,
        listen=config.listen,
        connect=config.connect,
        multicast=config.multicast,
        pem=paths,
        has_to_join=config.secret is not None,
        lease_milliseconds=config.lease_milliseconds,
    )
