"""The agent as its HTTP address sees it (``potluck.types.gateway.Gateway``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence

from potluck.catalog import describe_model, load_chat_template, load_tokenizer
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.view import cluster_view
from potluck.cluster.calls import DeploymentRecord, DeploymentState, NodeReport
from potluck.cluster.coordinator.deployment import Deployment, gather_reports
from potluck.errors import EngineError, ModelNotFoundError
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.gateway import (
    EdgeMetrics,
    LiveSequence,
    ModelMetrics,
    ModelState,
    ModelStatus,
    ServedModel,
    StageMetrics,
)
from potluck.types.sequence import CommittedToken

_STATES = {
    DeploymentState.LOADING: ModelState.LOADING,
    DeploymentState.READY: ModelState.READY,
    DeploymentState.DEGRADED: ModelState.DEGRADED,
}
_REPORTS_SECONDS = 2.0
"""How old the nodes' reports may be that a snapshot shows."""


class AgentGateway:
    """For use in the agent's loop."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._served: dict[DeploymentId, asyncio.Future[ServedModel]] = {}
        self._reports: list[NodeReport] = []
        self._silent: list[NodeId] = []
        self._reports_at = 0.0
        self._refreshing: asyncio.Task[None] | None = None

    def models(self) -> Sequence[ModelStatus]:
        """Everything that is deployed, oldest first."""
        return [
            ModelStatus(
                model_id=record.model_id,
                created=record.created,
                context_tokens=record.context_tokens,
                state=_STATES[record.state],
                reason=record.reason,
            )
            for record in self._agent.registry.live()
        ]

    async def served_model(self, model_id: str) -> ServedModel:
        """The texts' side of a deployed model; loaded at the first request for it."""
        record = self._find(model_id)
        live = {each.deployment for each in self._agent.registry.live()}
        self._served = {key: value for key, value in self._served.items() if key in live}
        loading = self._served.get(record.deployment)
        if loading is None or (loading.done() and loading.exception() is not None):
            loading = asyncio.ensure_future(asyncio.to_thread(_load_served_model, record))
            self._served[record.deployment] = loading
        return await asyncio.shield(loading)

    async def generate(self, sequence: LiveSequence) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence; closing the generator cancels it."""
        if self._agent.is_draining:
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
        """The cluster as it was at most a few seconds ago."""
        if time.monotonic() - self._reports_at > _REPORTS_SECONDS and self._refreshing is None:
            self._refreshing = asyncio.create_task(self.refresh())
            self._refreshing.add_done_callback(self._refreshed)
        agent = self._agent
        alive = agent.membership.nodes() | {agent.node_id}
        return cluster_view(
            agent.node_id,
            [report for report in self._reports if report.node_id in alive],
            [node for node in self._silent if node in alive],
            agent.incompatible,
            agent.registry.live(),
        )

    async def refresh(self) -> None:
        """Ask all nodes how they are."""
        agent = self._agent
        nodes = sorted(agent.membership.nodes() | {agent.node_id})
        self._reports, silent = await gather_reports(agent.membership, nodes)
        self._silent = [each.node_id for each in silent]
        self._reports_at = time.monotonic()

    def metrics(self) -> Sequence[ModelMetrics]:
        """One for each model that this agent coordinates."""
        return [_metrics(each) for each in self._agent.coordinated() if each.load is not None]

    def _refreshed(self, _: asyncio.Task[None]) -> None:
        self._refreshing = None

    def _find(self, model_id: str) -> DeploymentRecord:
        record = self._agent.registry.find(model_id)
        if record is None:
            known = ", ".join(each.model_id for each in self._agent.registry.live())
            raise ModelNotFoundError(
                f"no model {model_id} is deployed",
                hint=f"deployed now: {known}" if known else "deploy one: potluck deploy MODEL",
            )
        return record


def _load_served_model(record: DeploymentRecord) -> ServedModel:
    from potluck.text.chat import encode_chat

    description = describe_model(record.model)
    tokenizer = load_tokenizer(description.files)
    template = load_chat_template(description.files)
    return ServedModel(
        model_id=record.model_id,
        tokenizer=tokenizer,
        encode_chat=lambda messages: encode_chat(tokenizer, template, messages),
        vocab_size=description.config.vocab_size,
        context_tokens=record.context_tokens,
        sampling_defaults=description.sampling_defaults,
    )


def _metrics(deployment: Deployment) -> ModelMetrics:
    load = deployment.load
    record = deployment.record
    totals = deployment.stage_totals()
    coordinator = record.epoch.coordinator
    receivers = [*(each.node_id for each in totals[1:]), coordinator]
    return ModelMetrics(
        model_id=record.model_id,
        num_waiting=load.num_waiting if load else 0,
        num_running=load.num_running if load else 0,
        num_blocks=deployment.num_blocks,
        num_free_blocks=load.num_free_blocks if load else 0,
        stages=tuple(
            StageMetrics(
                stage=index,
                node_id=each.node_id,
                num_steps=each.stats.num_steps,
                compute_seconds=each.stats.compute_seconds,
                memory_bytes=each.stats.resident_bytes,
            )
            for index, each in enumerate(totals)
            if each.stats is not None
        ),
        edges=tuple(
            EdgeMetrics(
                edge=index + 1,
                sender=each.node_id,
                receiver=receiver,
                num_frames=each.stats.num_steps,
                num_bytes=each.stats.num_sent_bytes,
                send_seconds=each.stats.send_seconds,
            )
            for index, (each, receiver) in enumerate(zip(totals, receivers, strict=True))
            if each.stats is not None
        ),
    )
