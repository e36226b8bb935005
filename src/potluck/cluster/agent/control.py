"""The socket in the state directory where the command line reaches its node's agent.

One JSON document per line: a request ``{"method": …, "params": {…}}``, then events
``{"event": …}``, and at the end ``{"result": …}`` or ``{"error": {message, hint, exit_code}}``.
Who may open the socket is a matter of file permissions (0600, in a directory of 0700).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from potluck.cluster.agent.gateway import AgentGateway
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.view import deployment_view, plan_view
from potluck.cluster.calls import Deploy, DeploymentRecord, RejectionRecord, StageRecord
from potluck.errors import PotluckError, UsageError
from potluck.types.cluster import Plan

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.2


@asynccontextmanager
async def serve_control(
    agent: Agent, gateway: AgentGateway, path: Path, stop: Callable[[], None]
) -> AsyncIterator[None]:
    """Answer on the socket ``path`` until the block ends. ``stop`` ends the agent."""
    path.unlink(missing_ok=True)
    control = _Control(agent, gateway, stop)
    previous = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(control.serve, path)
    finally:
        os.umask(previous)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


class _Control:
    def __init__(self, agent: Agent, gateway: AgentGateway, stop: Callable[[], None]) -> None:
        self._agent = agent
        self._gateway = gateway
        self._stop = stop

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request on one connection; it is given up when the asker goes away."""

        async def send(document: dict[str, Any]) -> None:
            writer.write(json.dumps(document).encode() + b"\n")
            await writer.drain()

        try:
            request = json.loads(await reader.readline())
            working = asyncio.ensure_future(self._answer(request, send))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            is_gone = gone.done()
            gone.cancel()
            if not working.done():
                working.cancel()
            failure = (await asyncio.gather(working, return_exceptions=True))[0]
            if isinstance(failure, Exception) and not is_gone:
                _log.error("control: a request failed", exc_info=failure)
                await send(_error("the agent made a mistake", "its own output has the details", 1))
        except (ValueError, OSError) as error:
            _log.debug("control: %s", error)
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any], send: Any) -> None:
        method, params = request["method"], request.get("params", {})
        handlers = {
            "state": self._state,
            "plan": self._plan,
            "deploy": self._deploy,
            "undeploy": self._undeploy,
            "down": self._down,
        }
        try:
            await send({"result": await handlers[method](params, send)})
        except PotluckError as error:
            await send(_error(error.message, error.hint, error.exit_code))
            return
        if method == "down":
            self._stop()

    async def _state(self, params: dict[str, Any], send: Any) -> object:
        await self._gateway.refresh()
        return self._gateway.cluster_state()

    async def _plan(self, params: dict[str, Any], send: Any) -> object:
        record, plan = await self._agent.plan(Deploy(**params))
        return plan_view(_with_plan(record, plan))

    async def _deploy(self, params: dict[str, Any], send: Any) -> object:
        known = set(self._agent.registry.records)
        deploying = asyncio.ensure_future(self._agent.deploy(Deploy(**params)))
        try:
            while not deploying.done():
                await asyncio.wait({deploying}, timeout=_PROGRESS_SECONDS)
                for record in self._agent.registry.live():
                    if record.deployment not in known and not deploying.done():
                        await send({"event": deployment_view(record)})
            return deployment_view(await deploying)
        finally:
            deploying.cancel()
            await asyncio.gather(deploying, return_exceptions=True)

    async def _undeploy(self, params: dict[str, Any], send: Any) -> object:
        return deployment_view(await self._agent.undeploy(params["name"]))

    async def _down(self, params: dict[str, Any], send: Any) -> object:
        await send({"event": {"is_draining": True}})
        await self._agent.drain()
        return None


def _error(message: str, hint: str, exit_code: int) -> dict[str, Any]:
    return {"error": {"message": message, "hint": hint, "exit_code": exit_code}}


def _with_plan(record: DeploymentRecord, plan: Plan) -> DeploymentRecord:
    return msgspec.structs.replace(
        record,
        stages=tuple(
            StageRecord(
                node_id=stage.node_id,
                unit_id=stage.unit_id,
                start_layer=stage.shard.start_layer,
                end_layer=stage.shard.end_layer,
                num_bytes=stage.num_bytes,
            )
            for stage in plan.stages
        ),
        rejections=tuple(
            RejectionRecord(node_id=each.node_id, unit_id=each.unit_id, reason=each.reason)
            for each in plan.rejections
        ),
    )


class RemoteError(PotluckError):
    """What the agent answered instead of a result."""

    def __init__(self, message: str, *, hint: str, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def ask(path: Path, method: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask the agent behind ``path``; gives events, and last the document with the result.

    Blocking. Raises ``UsageError`` when no agent runs there and what the agent raised.
    """
    with contextlib.ExitStack() as opened:
        connection = opened.enter_context(socket.socket(socket.AF_UNIX))
        try:
            connection.connect(str(path))
        except OSError as error:
            raise UsageError(
                f"no agent runs here (nothing answers at {path})",
                hint="start one with potluck up, or name its --state DIRECTORY",
            ) from error
        connection.sendall(json.dumps({"method": method, "params": params}).encode() + b"\n")
        for line in opened.enter_context(connection.makefile("rb")):
            document = json.loads(line)
            if "error" in document:
                raise RemoteError(**document["error"])
            yield document
            if "result" in document:
                return
    raise PotluckError("the agent ended before it answered", hint="look at its own output")
