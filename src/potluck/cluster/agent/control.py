"""The control socket in the state directory, by which the command line reaches its node's agent
(``asking``).

One JSON document per line: a request ``{"method": …, "params": {…}}``, then events ``{"event":
…}``, and finally ``{"result": …}`` or ``{"error": {message, hint, exit_code}}``. Access is
controlled by file permissions (0600, in a directory of 0700).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from potluck.cluster.agent.console import AgentConsole
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.dashboard_tokens import VALID_SECONDS
from potluck.cluster.agent.diagnosis import diagnose
from potluck.cluster.agent.gateway import AgentGateway
from potluck.cluster.agent.hosts import ask_hosts
from potluck.cluster.agent.nodes_view import (
    find_node,
    invitations_view,
    new_invitation_view,
    nodes_view,
)
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.state import StateDirectory
from potluck.cluster.agent.view import deployment_view
from potluck.cluster.background import cancel_all, is_done_within
from potluck.cluster.invitations.ledger import DEFAULT_SECONDS
from potluck.errors import PotluckError, UsageError
from potluck.placement.views import rebalance_view
from potluck.types.deployment import Deploy
from potluck.types.documents.nodes import NodesDocument
from potluck.types.documents.plan import RebalanceDocument

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.2


@asynccontextmanager
async def serve_control(
    agent: Agent,
    gateway: AgentGateway,
    console: AgentConsole,
    state: StateDirectory,
    stop: Callable[[], None],
) -> AsyncIterator[None]:
    """Serve the socket in ``state`` until the block ends. ``stop`` stops the agent."""
    path = state.control_socket
    control = _Control(agent, gateway, console, stop)
    with state.errors("cannot hold the control socket"):
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(control.serve, sock=_bound(path))
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(
            OSError
        ):  # the disk became read-only; the next agent removes the socket
            path.unlink(missing_ok=True)
        await control.close()


def _bound(path: Path) -> socket.socket:
    """Bind a socket at ``path`` that only this user can connect to, once it listens.

    Nobody can before that. The process's umask would do, too, but would also apply to files that
    other threads create in the meantime.
    """
    bound = socket.socket(socket.AF_UNIX)
    try:
        bound.bind(str(path))
        path.chmod(0o600)
    except OSError:
        bound.close()
        raise
    return bound


class _Request(msgspec.Struct, frozen=True):
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Undeploy(msgspec.Struct, frozen=True):
    name: str


class _Invite(msgspec.Struct, frozen=True):
    num_uses: int = 1
    seconds: float = DEFAULT_SECONDS
    wheel_folders: tuple[str, ...] = ()


class _Withdraw(msgspec.Struct, frozen=True):
    invitation_id: str


class _Remove(msgspec.Struct, frozen=True):
    node: str


class _Rebalance(msgspec.Struct, frozen=True):
    name: str | None = None
    is_dry_run: bool = False


_Parsed = TypeVar("_Parsed")
_Send = Callable[[dict[str, Any]], Awaitable[None]]


def _parse(document: bytes | msgspec.Raw, kind: type[_Parsed]) -> _Parsed:
    try:
        return msgspec.json.decode(document, type=kind)
    except ValueError as error:  # DecodeError, or text that is not UTF-8
        raise UsageError(f"malformed request to the agent: {error}") from error


class _Control:
    def __init__(
        self,
        agent: Agent,
        gateway: AgentGateway,
        console: AgentConsole,
        stop: Callable[[], None],
    ) -> None:
        self._agent = agent
        self._gateway = gateway
        self._console = console
        self._stop = stop
        self._serving: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Cancel the requests in progress."""
        await cancel_all(self._serving)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request on one connection; it is cancelled if the client disconnects."""
        serving = asyncio.current_task()
        if serving is not None:
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)

        async def send(document: dict[str, Any]) -> None:
            line = json.dumps(msgspec.to_builtins(document))
            writer.write(line.encode() + b"\n")
            await writer.drain()

        try:
            line = await reader.readline()
            working = asyncio.ensure_future(self._answer(line, send))
            gone = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
                is_gone = gone.done()
            finally:
                gone.cancel()
                working.cancel()
                failure, _ = await asyncio.gather(working, gone, return_exceptions=True)
            if isinstance(failure, Exception) and not is_gone:
                _log.error("control: a request failed", exc_info=failure)
                await send(_error("internal error in the agent", "see the agent's log", 1))
        except (ValueError, OSError) as error:  # no line, or the client has gone
            _log.debug("control: %s", error)
        except asyncio.CancelledError:
            # By ``close``; not propagated, since the server would report it as a failure.
            _log.debug("control: the agent is stopping")
        finally:
            writer.close()

    async def _answer(self, line: bytes, send: _Send) -> None:
        handlers = {
            "state": self._state,
            "doctor": self._doctor,
            "hosts": self._hosts,
            "plan": self._plan,
            "deploy": self._deploy,
            "rebalance": self._rebalance,
            "undeploy": self._undeploy,
            "down": self._down,
            "invite": self._invite,
            "invitations": self._invitations,
            "withdraw": self._withdraw,
            "nodes": self._nodes,
            "remove": self._remove,
            "dashboard": self._dashboard,
        }
        try:
            request = _parse(line, _Request)
            handler = handlers.get(request.method)
            if handler is None:
                raise UsageError(f"the agent has no method {request.method!r}")
            await send({"result": await handler(request.params, send)})
        except PotluckError as error:
            message = self._agent.known_nodes.names.in_text(error.message)
            await send(_error(message, error.hint, error.exit_code))
            return
        except OSError as error:
            _log.debug("control: %s", error)  # the client has gone
        if request.method == "down":
            self._stop()

    async def _state(self, params: msgspec.Raw, send: _Send) -> object:
        await self._gateway.refresh_cluster()
        return self._gateway.cluster_state()

    async def _doctor(self, params: msgspec.Raw, send: _Send) -> object:
        cluster = await diagnose(self._agent.membership)
        return {"cluster": cluster, "host_names": self._agent.known_nodes.host_names}

    async def _hosts(self, params: msgspec.Raw, send: _Send) -> object:
        """Send each node's answer as an event, so that none of them is kept."""
        async with aclosing(ask_hosts(self._agent.membership)) as answers:
            async for answer in answers:
                await send({"event": answer})
        return None

    async def _plan(self, params: msgspec.Raw, send: _Send) -> object:
        return await self._coordination.planner.plan(_parse(params, Deploy))

    async def _deploy(self, params: msgspec.Raw, send: _Send) -> object:
        known = set(self._coordination.records.registry.records)
        deploying = asyncio.ensure_future(self._coordination.deploy(_parse(params, Deploy)))
        reported = None
        try:
            while not await is_done_within(deploying, _PROGRESS_SECONDS):
                for record in self._coordination.records.live():
                    is_news = record.deployment not in known and record is not reported
                    if is_news and not deploying.done():
                        reported = record
                        await send({"event": deployment_view(record)})
            return deployment_view(await deploying)
        finally:
            await cancel_all([deploying])

    async def _rebalance(self, params: msgspec.Raw, send: _Send) -> object:
        """Rebalance one deployment after the other, since moves would compete for memory."""
        request = _parse(params, _Rebalance)
        moves = []
        for record in self._coordination.records.find(request.name):
            doing = "looking for a better plan" if request.is_dry_run else "rebalancing"
            await send({"event": {"model_id": record.model_id, "doing": doing}})
            report = await self._coordination.rebalance(record, is_dry_run=request.is_dry_run)
            moves.append(rebalance_view(report))
        return RebalanceDocument(is_dry_run=request.is_dry_run, deployments=tuple(moves))

    async def _undeploy(self, params: msgspec.Raw, send: _Send) -> object:
        name = _parse(params, _Undeploy).name
        return deployment_view(await self._coordination.undeploy(name))

    async def _invite(self, params: msgspec.Raw, send: _Send) -> object:
        request = _parse(params, _Invite)
        made = await self._agent.inviting.invite(
            num_uses=request.num_uses,
            seconds=request.seconds,
            wheel_folders=[Path(each) for each in request.wheel_folders],
        )
        return new_invitation_view(made)

    async def _invitations(self, params: msgspec.Raw, send: _Send) -> object:
        return invitations_view(self._agent.inviting.ledger, time.time())

    async def _withdraw(self, params: msgspec.Raw, send: _Send) -> object:
        request = _parse(params, _Withdraw)
        self._agent.inviting.withdraw(request.invitation_id)
        return invitations_view(self._agent.inviting.ledger, time.time())

    async def _nodes(self, params: msgspec.Raw, send: _Send) -> object:
        return await self._nodes_document()

    async def _nodes_document(self) -> NodesDocument:
        await self._gateway.refresh_cluster()
        return nodes_view(self._gateway.cluster_state(), self._agent.removals, self._agent.inviting)

    async def _remove(self, params: msgspec.Raw, send: _Send) -> object:
        name = _parse(params, _Remove).node
        node = find_node(await self._nodes_document(), name)
        await self._agent.removals.remove(node.node_id)
        return node

    async def _dashboard(self, params: msgspec.Raw, send: _Send) -> object:
        """Return a token for the user of this socket, who is the owner of the agent."""
        address = self._agent.http_address
        if address is None:
            raise UsageError(
                "this node serves neither HTTP nor the dashboard", hint="start it without --no-http"
            )
        return {
            "address": address,
            "token": self._console.tokens.make(),
            "valid_seconds": VALID_SECONDS,
        }

    async def _down(self, params: msgspec.Raw, send: _Send) -> object:
        is_alone = not self._agent.membership.nodes()
        await send({"event": {"is_draining": True, "is_alone": is_alone}})
        await self._agent.leaving.drain()
        return None

    @property
    def _coordination(self) -> Coordination:
        return self._agent.coordination


def _error(message: str, hint: str, exit_code: int) -> dict[str, Any]:
    return {"error": {"message": message, "hint": hint, "exit_code": exit_code}}
