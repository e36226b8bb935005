"""Calls that concern this node as a whole, or a model's files on it: ``node.*``, ``model.*``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol

from potluck.catalog import describe_model
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.diagnosis import be_heard, reach_back
from potluck.cluster.agent.hardware import Hardware
from potluck.cluster.agent.hosts import OwnHost
from potluck.cluster.agent.measured_speeds import MeasuredSpeeds
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.node import NodeFacts, report
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.calls import (
    AskSpeeds,
    CheckModel,
    Clock,
    ModelFingerprint,
    Multicast,
    Reach,
    decode,
    encode,
)
from potluck.cluster.membership import Membership, MethodTable
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.speed import LinkSpeed, NodeSpeeds


class AskLinks(Protocol):
    """Tells how fast this node's links are."""

    def __call__(self, *, may_wait: bool) -> Awaitable[tuple[LinkSpeed, ...]]:
        """Return what is known, after measuring what is new if that is worth a wait."""
        ...


class NodeCalls:
    """Answers for the node. For use in the agent's loop."""

    def __init__(
        self,
        facts: NodeFacts,
        membership: Membership,
        hardware: Hardware,
        units: NodeUnits,
        stages: StageHost,
        coordination: Coordination,
        fingerprints: Fingerprints,
        speeds: MeasuredSpeeds,
        links: AskLinks,
    ) -> None:
        self._facts = facts
        self._membership = membership
        self._hardware = hardware
        self._units = units
        self._stages = stages
        self._coordination = coordination
        self._fingerprints = fingerprints
        self._speeds = speeds
        self._links = links
        self._own_host = OwnHost(lambda: hardware.report)
        self._http_address: str | None = None

    @property
    def http_address(self) -> str | None:
        """Where clients reach this node; None if they cannot."""
        return self._http_address

    def announce_http(self, address: str) -> None:
        """Tell those who ask from now on that clients reach this node at ``address``."""
        self._http_address = address

    def register(self, methods: MethodTable) -> None:
        """Have the calls answered."""
        methods.register("node.report", self._on_report)
        methods.register("node.speeds", self._on_speeds)
        methods.register("node.host", self._on_host)
        methods.register("node.clock", self._on_clock)
        methods.register_for_caller("node.reach", self._on_reach)
        methods.register("node.multicast", self._on_multicast)
        methods.register("model.check", self._on_check)

    async def _on_report(self, _: bytes) -> bytes:
        refused = await self._refused()
        return encode(
            report(
                self._facts,
                self._hardware.report,
                self._units.all(),
                http_address=self._http_address,
                is_draining=self._coordination.is_draining,
                stages=self._stages.memory,
                refused=refused,
            )
        )

    async def _refused(self) -> dict[DeploymentId, str]:
        """What this node must not answer clients for, and why; nothing if it answers nobody."""
        records = self._coordination.registry.live()
        if self._http_address is None or not records:
            return {}

        def look() -> dict[DeploymentId, str]:
            problems = {each.deployment: self._fingerprints.text_problem(each) for each in records}
            return {deployment: problem for deployment, problem in problems.items() if problem}

        return await asyncio.to_thread(look)

    async def _on_speeds(self, payload: bytes) -> bytes:
        request = decode(payload, AskSpeeds)
        if request.may_wait:  # a worker that is stuck would have everybody wait
            await self._stages.collect()
        return encode(
            NodeSpeeds(
                node_id=self._facts.node_id,
                step_times={
                    shape: times
                    for shape in request.model_shapes
                    if (times := self._speeds.of(shape))
                },
                links=await self._links(may_wait=request.may_wait),
            )
        )

    async def _on_host(self, _: bytes) -> bytes:
        return await self._own_host.description()

    async def _on_clock(self, _: bytes) -> bytes:
        return encode(Clock(seconds=time.time()))

    async def _on_reach(self, caller: NodeId, payload: bytes) -> bytes:
        return encode(await reach_back(self._membership, caller, decode(payload, Reach)))

    async def _on_multicast(self, payload: bytes) -> bytes:
        await be_heard(self._membership, decode(payload, Multicast))
        return b""

    async def _on_check(self, payload: bytes) -> bytes:
        request = decode(payload, CheckModel)

        def check() -> ModelFingerprint:
            return self._fingerprints.of(describe_model(request.model))

        return encode(await asyncio.to_thread(check))
