"""An agent as the page sees it, that does what a test has it do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from potluck.cluster.agent.dashboard_tokens import DashboardTokens
from potluck.cluster.agent.watching import Watcher, Watchers
from potluck.errors import PotluckError
from potluck.types.cluster import NodeId
from potluck.types.console import Notice


class PlayedConsole:
    """Tells what ``tell`` is given, and keeps what it was asked for in ``requests``."""

    node_id = NodeId("00000000000000aa")
    host_name = "played"

    def __init__(self, first: Sequence[Notice] = (), error: PotluckError | None = None) -> None:
        self.tokens = DashboardTokens()
        self.watchers = Watchers(lambda: None)
        self.requests: list[tuple[str, object]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._first = first
        self._error = error

    def admits(self, token: str) -> bool:
        return self.tokens.admits(token)

    def watch(self, last_event_id: int | None) -> Watcher:
        self._loop = asyncio.get_running_loop()
        self.requests.append(("watch", last_event_id))
        return self.watchers.add(self._first)

    def tell(self, notice: Notice) -> None:
        """Tell all watchers, from any thread; somebody must have watched."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.watchers.notify, notice)

    async def series(self, seconds: int, step_seconds: int) -> Mapping[str, object]:
        return {"schema": "potluck.series/1", "seconds": seconds, "step_seconds": step_seconds}

    async def plan(self, request: bytes) -> Mapping[str, object]:
        return self._answer("plan", request)

    async def deploy(self, request: bytes) -> Mapping[str, object]:
        return self._answer("deploy", request)

    async def undeploy(self, name: str) -> Mapping[str, object]:
        return self._answer("undeploy", name)

    def _answer(self, what: str, request: object) -> Mapping[str, object]:
        self.requests.append((what, request))
        if self._error is not None:
            raise self._error
        return {"model_id": "m"}
