"""An agent as the page sees it, that does what a test has it do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from support.cluster.calls import a_record

from potluck.cluster.agent.dashboard_tokens import DashboardTokens
from potluck.cluster.agent.observation import Watcher, Watchers
from potluck.cluster.agent.view import deployment_view
from potluck.errors import PotluckError
from potluck.placement.plan_view import PlanOutcome, plan_view
from potluck.types.cluster import NodeId
from potluck.types.console import Notice
from potluck.types.documents.cluster import DeployDocument
from potluck.types.documents.plan import PlanDocument


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

    async def plan(self, request: bytes) -> PlanDocument:
        self._ask("plan", request)
        outcome = PlanOutcome(record=a_record(), reports=(), explanation=None)
        return plan_view(outcome, self.node_id)

    async def deploy(self, request: bytes) -> DeployDocument:
        self._ask("deploy", request)
        return deployment_view(a_record())

    async def undeploy(self, name: str) -> DeployDocument:
        self._ask("undeploy", name)
        return deployment_view(a_record())

    def _ask(self, what: str, request: object) -> None:
        self.requests.append((what, request))
        if self._error is not None:
            raise self._error
