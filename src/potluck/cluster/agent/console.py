"""The agent's implementation of ``potluck.types.console.Console``, for the dashboard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from potluck.cluster.agent.asking import absolute
from potluck.cluster.agent.dashboard_tokens import DashboardTokens
from potluck.cluster.agent.gateway import AgentGateway
from potluck.cluster.agent.observation import Observation
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.view import deployment_view
from potluck.cluster.background import Background, cancel_all
from potluck.errors import ModelNotFoundError, OverloadedError, ParameterError
from potluck.host.uname import host_name
from potluck.placement.layout import parse_layout, resolve_layout
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.console import Watch
from potluck.types.deployment import Deploy, DeploymentRecord
from potluck.types.documents.cluster import DeployDocument
from potluck.types.documents.plan import PlanDocument

_log = logging.getLogger(__name__)

_MAX_DEPLOYING = 8
"""The most deployments requested here that may be in progress."""

_POLL_SECONDS = 0.1

_FIELDS = frozenset(Deploy.__struct_fields__)
_KNOWN_FIELDS = f"the fields are {', '.join(Deploy.__struct_fields__)}"


class AgentConsole:
    """For use in the agent's loop, while ``running``."""

    def __init__(self, agent: Agent, gateway: AgentGateway) -> None:
        self.tokens = DashboardTokens()
        self._agent = agent
        self._gateway = gateway
        self._background = Background()
        self._observation = Observation(agent, gateway, spawn=self._background.spawn)
        self._deploying: set[asyncio.Task[DeploymentRecord]] = set()

    @property
    def node_id(self) -> NodeId:
        """See ``Console``."""
        return self._agent.node_id

    @property
    def host_name(self) -> str:
        """See ``Console``."""
        return host_name()

    def admits(self, token: str) -> bool:
        """See ``Console``."""
        return self.tokens.admits(token)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sample the cluster and notify watchers until the block ends."""
        listeners, happened = self._agent.history.log.listeners, self._observation.happened
        listeners.add(happened)
        self._background.spawn(self._observation.run())
        try:
            yield
        finally:
            listeners.discard(happened)
            await cancel_all(self._deploying)
            await self._background.close()

    def watch(self, last_event_id: int | None) -> Watch:
        """See ``Console``."""
        return self._observation.watch(last_event_id)

    async def series(self, seconds: int, step_seconds: int) -> Mapping[str, object]:
        """See ``Console``."""
        return await self._observation.series(seconds, step_seconds)

    async def plan(self, request: bytes) -> PlanDocument:
        """See ``Console``."""
        return await self._agent.coordination.planner.plan(await self._parse_deploy(request))

    async def deploy(self, request: bytes) -> DeployDocument:
        """See ``Console``."""
        deploy = await self._parse_deploy(request)
        if len(self._deploying) >= _MAX_DEPLOYING:
            raise OverloadedError(
                f"{_MAX_DEPLOYING} models are already being deployed", retry_after_seconds=10
            )
        begun: asyncio.Future[DeploymentId] = asyncio.get_running_loop().create_future()
        deploying = asyncio.create_task(
            self._agent.coordination.deploy(deploy, begun=partial(_resolve, begun))
        )
        self._deploying.add(deploying)
        deploying.add_done_callback(self._deployed)
        both: set[asyncio.Future[Any]] = {deploying, begun}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        while not deploying.done():
            record = self._agent.coordination.records.get(begun.result())
            if record is not None and record.stages:
                return deployment_view(record)
            await asyncio.wait({deploying}, timeout=_POLL_SECONDS)
        return deployment_view(await deploying)

    async def _parse_deploy(self, request: bytes) -> Deploy:
        """Read a request, in which a layout may be written as on the command line."""
        fields = _fields(request)
        written = fields.get("layout")
        if isinstance(written, str):
            nodes = await self._gateway.layout_nodes()
            layout = resolve_layout(parse_layout(written), nodes)
            fields["layout"] = msgspec.to_builtins(layout)
        return _converted(fields)

    def _deployed(self, task: asyncio.Task[DeploymentRecord]) -> None:
        self._deploying.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.info("a deployment requested over HTTP failed: %s", error)

    async def undeploy(self, name: str) -> DeployDocument:
        """See ``Console``."""
        try:
            return deployment_view(await self._agent.coordination.undeploy(name))
        except ParameterError as error:
            raise ModelNotFoundError(error.message, hint=error.hint) from error


def _resolve(begun: asyncio.Future[DeploymentId], deployment: DeploymentId) -> None:
    if not begun.done():
        begun.set_result(deployment)


def _fields(request: bytes) -> dict[str, Any]:
    """Return the fields of a request. Raises ``ParameterError`` for unknown ones."""
    try:
        document = msgspec.json.decode(request, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(error) from error
    unknown = sorted(document.keys() - _FIELDS)
    if unknown:
        raise ParameterError(
            unknown[0][:100], f"there is no field {unknown[0][:100]!r}", hint=_KNOWN_FIELDS
        )
    return document


def _converted(fields: dict[str, Any]) -> Deploy:
    """Return what the fields ask for. Raises ``ParameterError`` for values of other types."""
    try:
        deploy = msgspec.convert(fields, Deploy)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _unreadable(error) from error
    if deploy.model_id is not None and not deploy.model_id.strip():
        raise ParameterError("model_id", "model_id is empty", hint="omit it, or give a name")
    if "\0" in deploy.model:
        raise ParameterError("model", "model contains a NUL character")
    return msgspec.structs.replace(deploy, model=absolute(deploy.model))


def _unreadable(error: Exception) -> ParameterError:
    return ParameterError("body", f"the body cannot be read: {error}")
