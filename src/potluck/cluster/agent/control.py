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
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.gateway import AgentGateway
from potluck.cluster.agent.rebalance_view import rebalance_view
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.state import StateDirectory, is_utf8
from potluck.cluster.agent.view import deployment_view
from potluck.cluster.calls import Deploy
from potluck.errors import ParameterError, PotluckError, UsageError

_log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.2


@asynccontextmanager
async def serve_control(
    agent: Agent, gateway: AgentGateway, state: StateDirectory, stop: Callable[[], None]
) -> AsyncIterator[None]:
    """Answer on the socket in ``state`` until the block ends. ``stop`` ends the agent."""
    path = state.control_socket
    control = _Control(agent, gateway, stop)
    with state.errors("cannot hold the control socket"):
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(control.serve, sock=_bound(path))
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(
            OSError
        ):  # a disk that became read-only; the next agent removes it
            path.unlink(missing_ok=True)
        await control.close()


def _bound(path: Path) -> socket.socket:
    """A socket at ``path`` that this user alone can connect to, once it is listened on.

    Nobody can before that. The process's umask would do as well, and apply to what other threads
    make meanwhile.
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


class _Rebalance(msgspec.Struct, frozen=True):
    name: str | None = None
    is_dry_run: bool = False


_Parsed = TypeVar("_Parsed")
_Send = Callable[[dict[str, Any]], Awaitable[None]]


def _parse(document: bytes | msgspec.Raw, kind: type[_Parsed]) -> _Parsed:
    try:
        return msgspec.json.decode(document, type=kind)
    except ValueError as error:  # DecodeError, or text that is no UTF-8
        raise UsageError(f"the agent was asked what makes no sense: {error}") from error


class _Control:
    def __init__(self, agent: Agent, gateway: AgentGateway, stop: Callable[[], None]) -> None:
        self._agent = agent
        self._gateway = gateway
        self._stop = stop
        self._serving: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Give up what is being answered."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request on one connection; it is given up when the asker goes away."""
        serving = asyncio.current_task()
        if serving is not None:
            self._serving.add(serving)
            serving.add_done_callback(self._serving.discard)

        async def send(document: dict[str, Any]) -> None:
            writer.write(json.dumps(document).encode() + b"\n")
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
                await send(_error("the agent made a mistake", "its own output has the details", 1))
        except (ValueError, OSError) as error:  # no line, or nobody to answer
            _log.debug("control: %s", error)
        except asyncio.CancelledError:
            # By ``close``, and not passed on: the server would report it as a failure.
            _log.debug("control: the agent ends")
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
        }
        try:
            request = _parse(line, _Request)
            handler = handlers.get(request.method)
            if handler is None:
                raise UsageError(f"the agent does not know {request.method!r}")
            await send({"result": await handler(request.params, send)})
        except PotluckError as error:
            await send(_error(error.message, error.hint, error.exit_code))
            return
        except OSError as error:
            _log.debug("control: %s", error)  # whoever asked has gone
        if request.method == "down":
            self._stop()

    async def _state(self, params: msgspec.Raw, send: _Send) -> object:
        await self._gateway.refresh_cluster()
        return self._gateway.cluster_state()

    async def _doctor(self, params: msgspec.Raw, send: _Send) -> object:
        return msgspec.to_builtins(await self._agent.diagnose())

    async def _hosts(self, params: msgspec.Raw, send: _Send) -> object:
        """Each node's answer is an event, so that none of them is kept."""
        async with aclosing(self._agent.hosts()) as answers:
            async for answer in answers:
                await send({"event": msgspec.to_builtins(answer)})
        return None

    async def _plan(self, params: msgspec.Raw, send: _Send) -> object:
        from potluck.cluster.agent.plan_view import plan_view  # most agents are never asked

        outcome = await self._coordination.plan(_parse(params, Deploy))
        return plan_view(outcome, self._agent.node_id)

    async def _deploy(self, params: msgspec.Raw, send: _Send) -> object:
        known = set(self._coordination.registry.records)
        deploying = asyncio.ensure_future(self._coordination.deploy(_parse(params, Deploy)))
        told = None
        try:
            while not deploying.done():
                await asyncio.wait({deploying}, timeout=_PROGRESS_SECONDS)
                for record in self._coordination.registry.live():
                    is_news = record.deployment not in known and record is not told
                    if is_news and not deploying.done():
                        told = record
                        await send({"event": deployment_view(record)})
            return deployment_view(await deploying)
        finally:
            deploying.cancel()
            await asyncio.gather(deploying, return_exceptions=True)

    async def _rebalance(self, params: msgspec.Raw, send: _Send) -> object:
        """One deployment after the other: moves would compete for memory."""
        request = _parse(params, _Rebalance)
        views = []
        for record in self._coordination.find(request.name):
            doing = "looking for a better plan" if request.is_dry_run else "rebalancing"
            await send({"event": {"model_id": record.model_id, "doing": doing}})
            report = await self._coordination.rebalance(record, is_dry_run=request.is_dry_run)
            views.append(rebalance_view(report))
        return {"is_dry_run": request.is_dry_run, "deployments": views}

    async def _undeploy(self, params: msgspec.Raw, send: _Send) -> object:
        name = _parse(params, _Undeploy).name
        return deployment_view(await self._coordination.undeploy(name))

    async def _down(self, params: msgspec.Raw, send: _Send) -> object:
        await send({"event": {"is_draining": True}})
        await self._agent.drain()
        return None

    @property
    def _coordination(self) -> Coordination:
        return self._agent.coordination


def _error(message: str, hint: str, exit_code: int) -> dict[str, Any]:
    return {"error": {"message": message, "hint": hint, "exit_code": exit_code}}


class RemoteError(PotluckError):
    """What the agent answered instead of a result."""

    def __init__(self, message: str, *, hint: str, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def ask(path: Path, method: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Ask the agent behind ``path``; gives events, and last the document with the result.

    Blocking. Raises ``UsageError`` when no agent runs there and for texts that are not UTF-8, and
    what the agent raised.
    """
    request = _encoded(method, params)
    with contextlib.ExitStack() as opened:
        connection = opened.enter_context(socket.socket(socket.AF_UNIX))
        try:
            connection.connect(str(path))
        except OSError as error:
            raise UsageError(
                f"no agent runs here (nothing answers at {path})",
                hint="start one with potluck up, or name its --state DIRECTORY",
            ) from error
        connection.sendall(request)
        for line in opened.enter_context(connection.makefile("rb")):
            document = json.loads(line)
            if "error" in document:
                raise RemoteError(**document["error"])
            yield document
            if "result" in document:
                return
    raise PotluckError("the agent ended before it answered", hint="look at its own output")


def _encoded(method: str, params: dict[str, Any]) -> bytes:
    """A request as it is sent. Agents tell each other names and paths, as text."""
    for name, value in params.items():
        if isinstance(value, str) and not is_utf8(value):
            raise ParameterError(
                name,
                f"{value} is not UTF-8, and cannot be told to other nodes",
                hint="give it another name",
            )
    return json.dumps({"method": method, "params": params}).encode("utf-8") + b"\n"
