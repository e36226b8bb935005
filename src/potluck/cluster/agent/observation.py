"""Observes the cluster every second: samples it for the series, and notifies watchers.

Once a second it samples the deployments that this node coordinates. Those of other nodes are asked
every second while somebody watches, and otherwise every ten seconds; so are stages for their
totals.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec

from potluck.cluster.agent.gateway import AgentGateway
from potluck.cluster.agent.series import Sampler, Series
from potluck.cluster.agent.service import Agent
from potluck.cluster.background import Spawn, is_set_within
from potluck.errors import OverloadedError
from potluck.types.cluster import DeploymentId
from potluck.types.cluster_events import ClusterEvent, ModelSample
from potluck.types.console import Notice
from potluck.types.deployment import DeploymentRecord
from potluck.types.gateway import ModelMetrics

_log = logging.getLogger(__name__)

_STEP_SECONDS = 1.0
_UNWATCHED_SECONDS = 10
"""The interval for asking other coordinators, and stages, while nobody watches."""

_NODES_SECONDS = 2
"""The interval for asking nodes for reports while somebody watches."""

_DRIFT_SECONDS = 5
"""The interval for sending watchers a cluster in which only figures have changed."""

_WATCHED_AGE_SECONDS = 0.5
"""The maximum age of a coordinator's answer, which several gateways may request."""
_UNWATCHED_AGE_SECONDS = 8.0

_DRIFTING = frozenset(
    {
        "available_bytes",
        "usable_bytes",
        "measured",
        "slow_stages",
        "available_reason",
        "age_seconds",
        "num_samples",
        "latency_seconds",
        "bytes_per_second",
    }
)
"""Fields of the cluster's document that change constantly."""


MAX_WATCHERS = 32
MAX_NOTICES = 640
"""Enough for all events that are kept, and samples for two minutes."""

_RETRY_AFTER_SECONDS = 10


class Observation:
    """The observer. For use in the agent's event loop. ``run`` must run while clients may watch."""

    def __init__(self, agent: Agent, gateway: AgentGateway, *, spawn: Spawn) -> None:
        self._agent = agent
        self._gateway = gateway
        self._spawn = spawn
        self._watchers = Watchers(self._first_watches)
        self._is_due = asyncio.Event()
        self._series = Series()
        self._samplers: dict[DeploymentId, Sampler] = {}
        self._asking: asyncio.Task[None] | None = None
        self._metrics_requested_at = 0.0
        self._nodes_refreshed_at = 0.0
        self._metrics: dict[DeploymentId, ModelMetrics] = {}  # as last reported by coordinators
        self._fresh: set[DeploymentId] = set()  # those not yet sampled
        self._shown = b""
        self._shown_steady = b""
        self._shown_at = 0.0

    def watch(self, last_event_id: int | None) -> Watcher:
        """Start watching; see ``Console.watch``."""
        notices = [_event_notice(each) for each in self._agent.history.log.after(last_event_id)]
        if self._shown and len(self._watchers):
            notices.insert(0, Notice(kind="cluster", data=self._shown))
        return self._watchers.add(notices)

    async def series(self, seconds: int, step_seconds: int) -> Mapping[str, object]:
        """Return the series of the last ``seconds``; see ``Console.series``."""
        window = self._series.window(int(self._now()), seconds, time.time())
        return await asyncio.to_thread(window.document, step_seconds)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def happened(self, event: ClusterEvent) -> None:
        """Send an event to watchers."""
        if len(self._watchers):
            self._watchers.notify(_event_notice(event))

    def _first_watches(self) -> None:
        self._shown = self._shown_steady = b""
        self._nodes_refreshed_at = 0.0
        self._is_due.set()

    async def run(self) -> None:
        """Sample once a second until cancelled, and immediately when somebody starts to watch."""
        is_second = True
        while True:
            self._is_due.clear()
            try:
                await self._step(is_second=is_second)
            except Exception:  # noqa: BLE001 - retried in the next second
                _log.exception("could not sample the cluster")
            left = _STEP_SECONDS - self._now() % _STEP_SECONDS
            is_second = not await is_set_within(self._is_due, left)

    async def _step(self, *, is_second: bool) -> None:
        live = {each.deployment: each for each in self._agent.coordination.records.live()}
        for forgotten in self._samplers.keys() - live.keys():
            del self._samplers[forgotten]
        is_watched = len(self._watchers) > 0
        if is_second and (live or is_watched):
            await self._look(live, is_watched=is_watched)
        if is_watched:
            await self._show()

    async def _look(
        self, live: Mapping[DeploymentId, DeploymentRecord], *, is_watched: bool
    ) -> None:
        """Sample the deployments coordinated here, and have the others asked."""
        if is_watched:
            self._ask(_WATCHED_AGE_SECONDS)
            if self._asking is not None:
                # Slow answers of others are sampled in the next second.
                await asyncio.wait({self._asking}, timeout=_STEP_SECONDS / 2)
        elif self._now() - self._metrics_requested_at >= _UNWATCHED_SECONDS:
            self._ask(_UNWATCHED_AGE_SECONDS)
        samples: dict[str, ModelSample] = {}
        for deployment, record in live.items():
            mine = self._agent.coordination.coordinated.get(deployment)
            remote = self._metrics[deployment] if deployment in self._fresh else None
            own = None if mine is None else mine.own_metrics()
            if own is not None and remote is not None and remote.epoch == own.epoch:
                own = dataclasses.replace(own, stages=remote.stages)
            metrics = remote if own is None else own
            if metrics is not None:
                samples[record.model_id] = self._taken(deployment, record, metrics)
        self._fresh.clear()
        if is_watched:
            self._watchers.notify(_sample_notice(samples))

    def _taken(
        self, deployment: DeploymentId, record: DeploymentRecord, metrics: ModelMetrics
    ) -> ModelSample:
        """Sample one deployment, spreading the totals evenly over the seconds since the last
        sample.
        """
        now = self._now()
        sampler = self._samplers.setdefault(deployment, Sampler())
        after = sampler.latest_at
        sample = sampler.take(metrics, now)
        self._series.put(
            record.model_id, sample, int(now), after=None if after is None else int(after)
        )
        return sample

    def _ask(self, max_age_seconds: float) -> None:
        """Ask coordinators and their stages, unless a call is in progress."""
        if self._asking is None or self._asking.done():
            self._metrics_requested_at = self._now()
            self._asking = self._spawn(self._ask_coordinators(max_age_seconds))

    async def _ask_coordinators(self, max_age_seconds: float) -> None:
        metrics = await self._agent.metrics_by_deployment(max_age_seconds=max_age_seconds)
        self._metrics = metrics
        self._fresh = set(metrics)

    async def _show(self) -> None:
        """Send the cluster to watchers if it has changed."""
        now = self._now()
        if now - self._nodes_refreshed_at >= _NODES_SECONDS or not self._shown:
            self._nodes_refreshed_at = now
            await self._gateway.refresh_nodes()
        cluster = self._gateway.cluster_state(tuple(self._metrics.values()))
        document = msgspec.json.encode(cluster)
        if document == self._shown:
            return
        steady = msgspec.json.encode(_without_drift(msgspec.to_builtins(cluster)))
        if steady == self._shown_steady and now - self._shown_at < _DRIFT_SECONDS:
            return
        self._shown, self._shown_steady, self._shown_at = document, steady, now
        self._watchers.notify(Notice(kind="cluster", data=document))


def _event_notice(event: ClusterEvent) -> Notice:
    what = event.what
    document = {
        "id": event.event_id,
        "time": event.time,
        "kind": what.kind.value,
        "message": what.message,
        "model_id": what.model_id,
        "node_id": what.node_id,
        "details": what.details,
    }
    return Notice(kind="event", data=msgspec.json.encode(document), event_id=event.event_id)


def _sample_notice(samples: Mapping[str, ModelSample]) -> Notice:
    document = {"time": time.time(), "models": samples}
    return Notice(kind="sample", data=msgspec.json.encode(document))


def _without_drift(value: object) -> object:
    """Return a document without the fields that change constantly."""
    if isinstance(value, Mapping):
        return {key: _without_drift(each) for key, each in value.items() if key not in _DRIFTING}
    if isinstance(value, list | tuple):
        return [_without_drift(each) for each in value]
    return value


class Watchers:
    """Clients that watch the cluster. ``on_first`` is called when one is added.

    A client that reads slowly delays nobody: only the latest view of the cluster is kept for it,
    and when ``MAX_NOTICES`` other notices are pending it is disconnected. For use in the agent's
    event loop.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._watchers: set[Watcher] = set()

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, notices: Sequence[Notice]) -> Watcher:
        """Add a watcher, which gets ``notices`` first. Raises ``OverloadedError``."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise OverloadedError(
                f"{MAX_WATCHERS} clients are already watching the cluster",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        watcher = Watcher(self._watchers.discard)
        for notice in notices:
            watcher.notify(notice)
        self._watchers.add(watcher)
        if len(self._watchers) == 1:
            self._on_first()
        return watcher

    def notify(self, notice: Notice) -> None:
        """Send a notice to all watchers."""
        for watcher in self._watchers:
            watcher.notify(notice)


class Watcher:
    """One client's pending notices; see ``potluck.types.console.Watch``. ``closed`` is called at
    its end.
    """

    def __init__(self, closed: Callable[[Watcher], None]) -> None:
        self._closed = closed
        self._cluster: Notice | None = None
        self._notices: deque[Notice] = deque()
        self._is_cut_off = False
        self._news = asyncio.Event()

    def notify(self, notice: Notice) -> None:
        """Keep a notice until it is read."""
        if notice.kind == "cluster":
            self._cluster = notice
        elif len(self._notices) < MAX_NOTICES:
            self._notices.append(notice)
        else:
            self._is_cut_off = True
        self._news.set()

    async def take(self, seconds: float) -> Sequence[Notice]:
        """See ``Watch``."""
        await is_set_within(self._news, seconds)
        self._news.clear()
        if self._is_cut_off:
            raise OverloadedError(
                "the stream was not read fast enough", retry_after_seconds=_RETRY_AFTER_SECONDS
            )
        cluster, self._cluster = self._cluster, None
        notices = [] if cluster is None else [cluster]
        notices += self._notices
        self._notices.clear()
        return notices

    def close(self) -> None:
        """See ``Watch``."""
        self._closed(self)
