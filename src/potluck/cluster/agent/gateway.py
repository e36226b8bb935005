"""The agent as its HTTP address sees it (``potluck.types.gateway.Gateway``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from potluck.catalog import (
    describe_model,
    load_chat_template,
    load_fill_in_tokens,
    load_tokenizer,
)
from potluck.cluster.agent.latest_reports import LatestReports
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.view import as_seen, cluster_view
from potluck.cluster.calls import DeploymentRecord, DeploymentState
from potluck.cluster.coordinator.survey import ask_report
from potluck.errors import ModelNotFoundError
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.gateway import (
    LiveSequence,
    ModelMetrics,
    ModelState,
    ModelStatus,
    ServedModel,
)
from potluck.types.sequence import Cancel, OnUpdate

_STATES = {
    DeploymentState.LOADING: ModelState.LOADING,
    DeploymentState.READY: ModelState.READY,
    DeploymentState.DEGRADED: ModelState.DEGRADED,
}


_LEAVING = "this node is about to leave the cluster"

_SLOW_STAGES_SECONDS = 1.0
"""For coordinators to tell which stages are slow. A stage that is stuck takes longer to answer."""


class AgentGateway:
    """For use in the agent's loop."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._served: dict[DeploymentId, asyncio.Future[ServedModel]] = {}
        self._latest = LatestReports(partial(ask_report, agent.membership))
        self._metrics: Sequence[ModelMetrics] = ()
        self._expected: dict[DeploymentId, tuple[Epoch, int, float]] = {}
        self._refreshing: dict[str, asyncio.Task[None]] = {}

    def models(self) -> Sequence[ModelStatus]:
        """Everything that is deployed, oldest first. Nothing is ready at a node that leaves."""
        live = self._as_seen()
        if self._agent.coordination.is_draining:
            live = [
                msgspec.structs.replace(record, state=DeploymentState.DEGRADED, reason=_LEAVING)
                for record in live
            ]
        self._note_expected(live)
        return [
            ModelStatus(
                model_id=record.model_id,
                created=record.created,
                context_tokens=record.context_tokens,
                state=_STATES[record.state],
                reason=record.reason,
                sampling_defaults=record.sampling_defaults,
                ready_in_seconds=self._ready_in_seconds(record),
                weights_bytes=record.total_bytes,
                weights_format="gguf" if record.model.endswith(".gguf") else "safetensors",
                quantization=record.quantization.value,
                digest="" if record.fingerprint is None else record.fingerprint.digest,
            )
            for record in live
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

    def start(self, sequence: LiveSequence, on_update: OnUpdate) -> Cancel:
        """Compute a sequence; see ``Relaying.start``."""
        record = self._find(sequence.model_id)
        return self._agent.relaying.start(record, sequence.request, on_update, sequence.committed)

    def cluster_state(self) -> Mapping[str, object]:
        """The cluster as it was at the last ``refresh``."""
        agent = self._agent
        alive = self._alive
        return cluster_view(
            agent.node_id,
            self._latest.reports(alive),
            self._latest.silent(alive),
            agent.incompatible,
            self._as_seen(),
            self._metrics,
        )

    async def refresh_cluster(self) -> None:
        """Ask all nodes how they are, without waiting for those that take long to answer."""
        await asyncio.gather(self._latest.refresh(self._alive), self._look_for_slow_stages())

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

    async def _look_for_slow_stages(self) -> None:
        with suppress(TimeoutError):  # then what is shown is a little older
            async with asyncio.timeout(_SLOW_STAGES_SECONDS):
                await self.refresh_metrics()

    async def _ask_coordinators(self) -> None:
        self._metrics = await self._agent.metrics()

    @property
    def _alive(self) -> frozenset[NodeId]:
        return self._agent.membership.nodes() | {self._agent.node_id}

    def _as_seen(self) -> list[DeploymentRecord]:
        alive = self._alive
        return [as_seen(record, alive) for record in self._agent.coordination.registry.live()]

    def _note_expected(self, live: Sequence[DeploymentRecord]) -> None:
        """Keep when each record was first seen here: what it expects counts from then."""
        now = asyncio.get_running_loop().time()
        seen, self._expected = self._expected, {}
        for record in live:
            known = seen.get(record.deployment)
            if known is None or known[:2] != (record.epoch, record.revision):
                known = (record.epoch, record.revision, now)
            self._expected[record.deployment] = known

    def _ready_in_seconds(self, record: DeploymentRecord) -> float | None:
        if record.state is DeploymentState.READY or self._agent.coordination.is_draining:
            return None
        expected = record.ready_in_seconds
        if expected is None:
            expected = record.recovery_seconds  # the next time may well take as long as the last
        if expected is None:
            return None
        since = self._expected[record.deployment][2]
        return max(0.0, expected - (asyncio.get_running_loop().time() - since))

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
    from potluck.text.chat import prompt_chat
    from potluck.text.fill_in import find_fill_in
    from potluck.text.reasoning import reasoning_format
    from potluck.text.rerank import check_labels, encode_pair, rerank_template
    from potluck.text.template_gaps import knows_tools
    from potluck.text.tool_formats import choose_output_format

    fingerprints.check_text(record)
    description = describe_model(record.model)
    tokenizer = load_tokenizer(description.files)
    template = load_chat_template(description.files)
    source = None if template is None else template.tool_source or template.source
    output_format = None
    if source is not None:
        output_format = choose_output_format(
            source, tokenizer.special_tokens, tool_format=record.tool_format
        )
    rerank = description.vectors.rerank
    if rerank is not None:
        check_labels(rerank, description.config.label_tokens, tokenizer)
    return ServedModel(
        model_id=record.model_id,
        tokenizer=tokenizer,
        encode_chat=partial(prompt_chat, tokenizer, template, max_tokens=record.context_tokens - 1),
        vocab_size=description.config.vocab_size,
        context_tokens=record.context_tokens,
        sampling_defaults=description.sampling_defaults,
        output_format=output_format,
        architecture=description.config.family,
        template=source,
        takes_tools=source is not None and knows_tools(source),
        can_think=source is not None and reasoning_format(source) is not None,
        has_logits=description.config.has_logits,
        vector_size=description.config.vector_size,
        embedding=description.vectors.embedding,
        rerank=rerank,
        encode_pair=None
        if rerank is None
        else partial(
            encode_pair,
            tokenizer,
            rerank_template(rerank, template),
            max_tokens=record.context_tokens,
        ),
        fill_in=find_fill_in(tokenizer, load_fill_in_tokens(description.files)),
    )
