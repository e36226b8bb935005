"""The agent as its HTTP address sees it (``potluck.types.gateway.Gateway``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from potluck.catalog import describe_model, load_chat_template, load_tokenizer
from potluck.cluster.agent.latest_reports import LatestReports
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.view import cluster_view
from potluck.cluster.calls import DeploymentRecord, DeploymentState
from potluck.cluster.coordinator.survey import ask_report
from potluck.errors import EngineError, ModelNotFoundError
from potluck.types.cluster import DeploymentId
from potluck.types.gateway import (
    LiveSequence,
    ModelMetrics,
    ModelState,
    ModelStatus,
    ServedModel,
)
from potluck.types.sequence import CommittedToken

_STATES = {
    DeploymentState.LOADING: ModelState.LOADING,
    DeploymentState.READY: ModelState.READY,
    DeploymentState.DEGRADED: ModelState.DEGRADED,
}


class AgentGateway:
    """For use in the agent's loop."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._served: dict[DeploymentId, asyncio.Future[ServedModel]] = {}
        self._latest = LatestReports(partial(ask_report, agent.membership))
        self._metrics: Sequence[ModelMetrics] = ()
        self._refreshing: dict[str, asyncio.Task[None]] = {}

    def models(self) -> Sequence[ModelStatus]:
        """Everything that is deployed, oldest first."""
        return [
            ModelStatus(
                model_id=record.model_id,
                created=record.created,
                context_tokens=record.context_tokens,
                state=_STATES[record.state],
                reason=record.reason,
                sampling_defaults=record.sampling_defaults,
            )
            for record in self._agent.coordination.registry.live()
        ]

    async def served_model(self, model_id: str) -> ServedModel:
        """The texts' side of a deployed model; loaded at the first request for it."""
        record = self._find(model_id)
        live = {each.deployment for each in self._agent.coordination.registry.live()}
        self._served = {key: value for key, value in self._served.items() if key in live}
        loading = self._served.get(record.deployment)
        if loading is None or (loading.done() and loading.exception() is not None):
            load = partial(_load_served_model, record, self._agent.fingerprints)
            loading = asyncio.ensure_future(asyncio.to_thread(load))
            self._served[record.deployment] = loading
        return await asyncio.shield(loading)

    async def generate(self, sequence: LiveSequence) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence; closing the generator cancels it."""
        if self._agent.coordination.is_draining:
            raise EngineError(
                "this node is about to leave the cluster", hint="send the request to another node"
            )
        stream = self._agent.generate(self._find(sequence.model_id), sequence.request)
        try:
            async for token in stream:
                yield token
        finally:
            await stream.aclose()

    def cluster_state(self) -> Mapping[str, object]:
        """The cluster as it was at the last ``refresh``."""
        agent = self._agent
        alive = agent.membership.nodes() | {agent.node_id}
        return cluster_view(
            agent.node_id,
            self._latest.reports(alive),
            self._latest.silent(alive),
            agent.incompatible,
            agent.coordination.registry.live(),
        )

    async def refresh_cluster(self) -> None:
        """Ask all nodes how they are, without waiting for those that take long to answer."""
        await self._latest.refresh(self._agent.membership.nodes() | {self._agent.node_id})

    async def refresh_metrics(self) -> None:
        """Ask the coordinators what their deployments do."""
        await self._once("metrics", self._ask_coordinators)

    def metrics(self) -> Sequence[ModelMetrics]:
        """What the coordinators said at the last ``refresh``."""
        return self._metrics

    async def _once(self, what: str, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """One round of questions for all who wait for it."""
        asking = self._refreshing.get(what)
        if asking is None:
            asking = asyncio.create_task(ask())
            self._refreshing[what] = asking
            asking.add_done_callback(lambda _: self._refreshing.pop(what))
        await asyncio.shield(asking)

    async def _ask_coordinators(self) -> None:
        self._metrics = await self._agent.metrics()

    def _find(self, model_id: str) -> DeploymentRecord:
        record = self._agent.coordination.registry.find(model_id)
        if record is None:
            known = ", ".join(each.model_id for each in self._agent.coordination.registry.live())
            raise ModelNotFoundError(
                f"no model {model_id} is deployed",
                hint=f"deployed now: {known}" if known else "deploy one: potluck deploy MODEL",
            )
        return record


def _load_served_model(record: DeploymentRecord, fingerprints: Fingerprints) -> ServedModel:
    """Raises ``EngineError`` where the model's tokenizer here is not the deployment's."""
    from potluck.text.chat import encode_chat

    fingerprints.check_text(record)
    description = describe_model(record.model)
    tokenizer = load_tokenizer(description.files)
    template = load_chat_template(description.files)
    return ServedModel(
        model_id=record.model_id,
        tokenizer=tokenizer,
        encode_chat=partial(encode_chat, tokenizer, template, max_tokens=record.context_tokens - 1),
        vocab_size=description.config.vocab_size,
        context_tokens=record.context_tokens,
        sampling_defaults=description.sampling_defaults,
    )
