"""Calls about this node as a whole: ``node.*``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.diagnosis import connect_back, send_multicast
from potluck.cluster.agent.hardware import Hardware
from potluck.cluster.agent.hosted_stage import StageMemory
from potluck.cluster.agent.hosts import OwnHost
from potluck.cluster.agent.links import Links
from potluck.cluster.agent.measured_speeds import MeasuredSpeeds
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.threads import NodeThreads
from potluck.cluster.agent.units import NodeUnit, NodeUnits
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire.calls import (
    AskSpeeds,
    CheckModel,
    Clock,
    ModelCheck,
    NodeSurvey,
    SurveyNode,
)
from potluck.cluster.wire.methods import CLOCK, HOST, MULTICAST, REACH, REPORT, SPEEDS, SURVEY
from potluck.host.memory import memory_facts, memory_pools
from potluck.host.system import THIS_MACHINE
from potluck.host.uname import boot_id, host_name
from potluck.probe.chips.derive import merge_figures
from potluck.types.cluster import DeploymentId, NodeId, UnitId
from potluck.types.deployment import DeploymentRecord
from potluck.types.hardware import ProbeReport
from potluck.types.node import NodeReport, UnitReport
from potluck.types.speed import LinkSpeed, NodeSpeeds
from potluck.version import __version__

_CHECK_SECONDS = 2.0
"""How long a survey waits for the check of the model, so that it is answered in time."""


class NodeCalls:
    """Answers calls about the node. For use in the agent's event loop."""

    def __init__(
        self,
        membership: Membership,
        hardware: Hardware,
        units: NodeUnits,
        threads: NodeThreads,
        stages: StageHost,
        coordination: Coordination,
        text_problem: Callable[[DeploymentRecord], str],
        speeds: MeasuredSpeeds,
        links: Links,
        check: Callable[[CheckModel], Awaitable[ModelCheck]],
        *,
        memory_limit_bytes: int | None,
    ) -> None:
        self._membership = membership
        self._hardware = hardware
        self._units = units
        self._threads = threads
        self._stages = stages
        self._coordination = coordination
        self._text_problem = text_problem
        self._speeds = speeds
        self._links = links
        self._check = check
        self._memory_limit_bytes = memory_limit_bytes
        self._own_host = OwnHost(lambda: hardware.report)
        self.http_address: str | None = None
        """The address of this node's HTTP API, as reported to others; None if it has none."""

    def register(self, methods: MethodTable) -> None:
        """Register the calls."""
        REPORT.serve(methods, self._on_report)
        SPEEDS.serve(methods, self._on_speeds)
        SURVEY.serve(methods, self._on_survey)
        HOST.serve(methods, self._on_host)
        CLOCK.serve(methods, self._on_clock)
        REACH.serve_for_caller(methods, partial(connect_back, self._membership))
        MULTICAST.serve(methods, partial(send_multicast, self._membership))

    async def _on_report(self, _: None) -> NodeReport:
        refused = await self._refused()
        return report(
            self._membership.node_id,
            self._hardware.report,
            self._units.all(),
            self._threads,
            memory_limit_bytes=self._memory_limit_bytes,
            address=str(self._membership.address),
            http_address=self.http_address,
            is_draining=self._coordination.is_draining,
            stages=self._stages.hosted.memory,
            refused=refused,
            links=await self._link_speeds(may_wait=False),
        )

    async def _refused(self) -> dict[DeploymentId, str]:
        """Return the deployments that this node cannot answer for, and why; empty if it has no
        clients.
        """
        records = self._coordination.records.live()
        if self.http_address is None or not records:
            return {}

        def look() -> dict[DeploymentId, str]:
            problems = {each.deployment: self._text_problem(each) for each in records}
            return {deployment: problem for deployment, problem in problems.items() if problem}

        return await asyncio.to_thread(look)

    async def _on_speeds(self, request: AskSpeeds) -> NodeSpeeds:
        if request.may_wait:  # a stuck worker would make every caller wait
            await self._stages.hosted.collect()
        return NodeSpeeds(
            node_id=self._membership.node_id,
            step_times={
                shape: times for shape in request.model_shapes if (times := self._speeds.of(shape))
            },
            links=await self._link_speeds(may_wait=request.may_wait),
            unreachable=self._links.unreachable(),
        )

    async def _link_speeds(self, *, may_wait: bool) -> tuple[LinkSpeed, ...]:
        """Return the known speeds, after measuring new links if the caller ``may_wait``."""
        for node, path in self._coordination.paths_in_use():
            self._links.used(node, path)
        return await self._links.settled() if may_wait else self._links.speeds()

    async def _on_survey(self, request: SurveyNode) -> NodeSurvey:
        checking = asyncio.ensure_future(self._check(CheckModel(model=request.model)))
        try:
            report, speeds, _ = await asyncio.gather(
                self._on_report(None),
                self._on_speeds(AskSpeeds(model_shapes=request.model_shapes)),
                asyncio.wait({checking}, timeout=_CHECK_SECONDS),
            )
            is_known = checking.done() and checking.exception() is None
            check = checking.result() if is_known else None
        finally:
            checking.cancel()
        return NodeSurvey(report=report, check=check, speeds=speeds)

    async def _on_host(self, _: None) -> bytes:
        return await self._own_host.description()

    async def _on_clock(self, _: None) -> Clock:
        return Clock(seconds=time.time())


def report(
    node_id: NodeId,
    hardware: ProbeReport,
    units: Sequence[NodeUnit],
    threads: NodeThreads,
    *,
    memory_limit_bytes: int | None,
    address: str,
    http_address: str | None,
    is_draining: bool,
    stages: StageMemory,
    refused: Mapping[DeploymentId, str],
    links: tuple[LinkSpeed, ...] = (),
) -> NodeReport:
    """Return the node's current report."""
    memory = memory_facts(THIS_MACHINE)
    usable = memory.usable.bytes - stages.untaken_bytes
    if memory_limit_bytes is not None:
        usable = min(usable, memory_limit_bytes - stages.planned_bytes)
    usable = max(0, usable)
    host_id = _host_id()
    return NodeReport(
        node_id=node_id,
        name=host_name(),
        host_id=host_id,
        version=__version__,
        address=address,
        http_address=http_address,
        available_bytes=memory.usable.bytes,
        available_reason=memory.usable.reason,
        memory_limit_bytes=memory_limit_bytes,
        usable_bytes=usable,
        pools=memory_pools(host_id),
        untaken_bytes=stages.untaken_bytes,
        is_draining=is_draining,
        refused=dict(refused),
        held=stages.held,
        units=tuple(_unit(unit, usable, stages.device_bytes, threads) for unit in units),
        hardware=replace(hardware, memory=memory),
        links=links,
    )


def _unit(
    unit: NodeUnit, host_bytes: int, planned: Mapping[UnitId, int], threads: NodeThreads
) -> UnitReport:
    """Return a unit with its usable memory: the host's, or its own as the probe found it."""
    unit_id = UnitId(unit.chosen.unit_id)
    own_bytes = unit.device.own_free_bytes
    share = threads.usable_share if unit.is_on_cpu else 1.0
    return UnitReport(
        unit_id=unit_id,
        backend=unit.chosen.backend,
        description=unit.device.name,
        usable_bytes=(
            host_bytes if own_bytes is None else max(0, own_bytes - planned.get(unit_id, 0))
        ),
        is_shared=own_bytes is None,
        num_threads=threads.num_computing,
        max_threads=threads.most,
        role=unit.chosen.role,
        reason=unit.chosen.reason,
        rates=unit.trial.rates,
        arithmetics=unit.arithmetics,
        figures=merge_figures(unit.trial.figures, unit.device.figures),
        usable_share=share,
        quota_period_seconds=threads.cores.period_seconds if share < 1 else None,
    )


def _host_id() -> str:
    """Return an id shared by all agents on one booted kernel, including those in containers."""
    try:
        return boot_id()
    except OSError:
        return host_name()
