"""The agent's implementation of ``potluck.types.gateway.Gateway``, for its HTTP API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import closing, suppress
from functools import partial

from potluck.catalog import (
    ModelDescription,
    describe_model,
    describe_view,
    load_chat_template,
    load_fill_in_tokens,
    load_tokenizer,
    locate_on_disk,
)
from potluck.cluster.agent.model_files import Fingerprints
from potluck.cluster.agent.service import Agent
from potluck.cluster.agent.view import as_seen, cluster_view
from potluck.cluster.agent.weights import NodeWeights
from potluck.cluster.background import SharedCalls
from potluck.cluster.coordinator.survey import ask_report
from potluck.errors import EngineError, ModelNotFoundError, PotluckError
from potluck.placement.layout import LayoutNode, layout_nodes
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.content import Manifest
from potluck.types.deployment import DeploymentRecord, DeploymentState
from potluck.types.documents.cluster import ClusterDocument
from potluck.types.gateway import ModelMetrics, ModelStatus, ServedModel
from potluck.types.node import NodeReport
from potluck.types.sequence import Cancel, OnUpdate, SequenceRequest, SequenceUpdate

_log = logging.getLogger(__name__)

_LEAVING = "this node is leaving the cluster"

_SLOW_STAGES_SECONDS = 1.0
"""How long to wait for coordinators to report slow stages. A stage that is stuck takes longer."""


SHOWN_SECONDS = 0.5
"""How long a view waits for new reports: healthy nodes answer within milliseconds."""


class AgentGateway:
    """For use in the agent's loop."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._served: dict[DeploymentId, asyncio.Future[ServedModel]] = {}
        self._latest = LatestReports(self._ask_report)
        self._metrics: Sequence[ModelMetrics] = ()
        self._expected: dict[DeploymentId, tuple[Epoch, int, float]] = {}
        self._asking = SharedCalls[None]()

    def models(self) -> Sequence[ModelStatus]:
        """Return all deployed models, oldest first. None is ready at a node that is leaving."""
        live = self._as_seen()
        if self._agent.coordination.is_draining:
            live = [
                record.with_status(state=DeploymentState.DEGRADED, reason=_LEAVING)
                for record in live
            ]
        self._note_expected(live)
        names = self._agent.known_nodes.names
        return [
            ModelStatus(
                model_id=record.model_id,
                created=record.created,
                context_tokens=record.status.context_tokens,
                state=record.status.state,
                reason=names.in_text(record.status.reason),
                sampling_defaults=record.facts.sampling_defaults,
                ready_in_seconds=self._ready_in_seconds(record),
                weights_bytes=record.status.total_bytes,
                weights_format=record.facts.files,
                quantization=_format_of(record),
                family=record.facts.family,
                num_parameters=record.facts.num_parameters,
                digest="" if record.facts.fingerprint is None else record.facts.fingerprint.digest,
            )
            for record in live
        ]

    async def served_model(self, model_id: str) -> ServedModel:
        """Return the tokenizer and templates of a deployed model; loaded at the first request for
        it.
        """
        record = self._find(model_id)
        live = {each.deployment for each in self._agent.coordination.records.live()}
        self._served = {key: value for key, value in self._served.items() if key in live}
        loading = self._served.get(record.deployment)
        if loading is None or (loading.done() and loading.exception() is not None):
            loading = asyncio.ensure_future(self._load(record))
            self._served[record.deployment] = loading
        return await asyncio.shield(loading)

    async def _load(self, record: DeploymentRecord) -> ServedModel:
        """Load the tokenizer and templates from this node's own files, or from other nodes by
        content.

        Raises the error of the latter, or of the former if there is no other way, and
        ``EngineError`` while other nodes still hash the model's files.
        """
        weights, manifest = self._agent.weights, record.status.files.manifest
        can_get = manifest is not None and not weights.cannot
        try:
            load = partial(_load_own, record, self._agent.fingerprints, may_fetch=not can_get)
            if (served := await asyncio.to_thread(load)) is not None:
                return served
        except PotluckError as error:
            if isinstance(error, ModelNotFoundError) and manifest is None and not weights.cannot:
                raise EngineError(
                    f"this node has none of the files of {record.model_id}, and can read those of "
                    "other nodes when these have hashed them",
                    hint="try again in a moment, or ask another node",
                ) from error
            if not can_get:
                raise
            _log.info("reading %s from other nodes: %s", record.model_id, error.message)
        assert manifest is not None
        job = f"texts of {record.deployment}"
        try:
            await weights.prepare_reading(job, manifest)
            return await asyncio.to_thread(_load_by_content, record, manifest, weights, job)
        finally:
            weights.end_reading(job)

    def start(self, model_id: str, request: SequenceRequest, on_update: OnUpdate) -> Cancel:
        """Compute a sequence; see ``Relaying.start``. Errors have the names of nodes."""
        record = self._find(model_id)

        def updated(update: SequenceUpdate | Exception) -> None:
            if isinstance(update, PotluckError):
                update.message = self._agent.known_nodes.names.in_text(update.message)
            on_update(update)

        return self._agent.relaying.start(record, request, updated)

    def cluster_state(self, metrics: Sequence[ModelMetrics] | None = None) -> ClusterDocument:
        """Return the cluster as of the last ``refresh``; ``metrics``, if given, are more recent."""
        agent = self._agent
        alive = self._alive
        return cluster_view(
            agent.node_id,
            self._latest.reports(alive),
            self._latest.silent(alive),
            agent.events.incompatible,
            self._as_seen(),
            self._metrics if metrics is None else metrics,
        )

    async def refresh_cluster(self) -> None:
        """Ask all nodes for reports, without waiting for slow ones."""
        await asyncio.gather(self._latest.refresh(self._alive), self._find_slow_stages())

    async def refresh_nodes(self) -> None:
        """Ask all nodes for reports, but no coordinator for metrics."""
        await self._latest.refresh(self._alive)

    async def layout_nodes(self) -> list[LayoutNode]:
        """Ask all nodes for reports, and return the names that a layout may use."""
        await self.refresh_nodes()
        return layout_nodes(self._latest.reports(self._alive))

    async def refresh_metrics(self) -> None:
        """Ask the coordinators for the metrics of their deployments.

        All that wait for the answers share one round of calls.
        """
        await self._asking.call(self._ask_coordinators)

    def metrics(self) -> Sequence[ModelMetrics]:
        """Return the metrics as of the last ``refresh``."""
        return self._metrics

    async def _find_slow_stages(self) -> None:
        with suppress(TimeoutError):  # the result is then slightly older
            async with asyncio.timeout(_SLOW_STAGES_SECONDS):
                await self.refresh_metrics()

    async def _ask_coordinators(self) -> None:
        self._metrics = tuple((await self._agent.metrics_by_deployment()).values())

    async def _ask_report(self, node: NodeId) -> NodeReport:
        report = await ask_report(self._agent.membership, node)
        self._agent.history.reported(report)
        return report

    @property
    def _alive(self) -> frozenset[NodeId]:
        return self._agent.membership.reachable_nodes()

    def _as_seen(self) -> list[DeploymentRecord]:
        alive = self._alive
        return [as_seen(record, alive) for record in self._agent.coordination.records.live()]

    def _note_expected(self, live: Sequence[DeploymentRecord]) -> None:
        """Record when each record was first seen here, from when its expected times count."""
        now = asyncio.get_running_loop().time()
        seen, self._expected = self._expected, {}
        for record in live:
            known = seen.get(record.deployment)
            if known is None or known[:2] != (record.epoch, record.revision):
                known = (record.epoch, record.revision, now)
            self._expected[record.deployment] = known

    def _ready_in_seconds(self, record: DeploymentRecord) -> float | None:
        if record.is_ready or self._agent.coordination.is_draining:
            return None
        expected = record.status.ready_in_seconds
        if expected is None:  # the next recovery may take as long as the last
            expected = record.status.recovery_seconds
        if expected is None:
            return None
        since = self._expected[record.deployment][2]
        return max(0.0, expected - (asyncio.get_running_loop().time() - since))

    def _find(self, model_id: str) -> DeploymentRecord:
        record = self._agent.coordination.records.registry.find(model_id)
        if record is None:
            known = ", ".join(each.model_id for each in self._agent.coordination.records.live())
            raise ModelNotFoundError(
                f"no model {model_id} is deployed",
                hint=f"deployed now: {known}" if known else "deploy one: potluck deploy MODEL",
            )
        return record


def _format_of(record: DeploymentRecord) -> str:
    """Return the format of most of the loaded weights."""
    is_as_stored = record.status.plan.quantization is Quantization.NONE
    return record.facts.stored_format if is_as_stored else record.status.plan.quantization.value


def _load_own(
    record: DeploymentRecord, fingerprints: Fingerprints, *, may_fetch: bool
) -> ServedModel | None:
    """Load from files at this node's own path; None for a model on the hub, unless ``may_fetch``.

    Raises ``EngineError`` if the model's tokenizer here differs from the deployment's.
    """
    fingerprints.check_text(record)
    if not may_fetch and locate_on_disk(record.spec.model) is None:
        return None
    return _served_model(record, describe_model(record.spec.model))


def _load_by_content(
    record: DeploymentRecord, manifest: Manifest, weights: NodeWeights, job: str
) -> ServedModel:
    view = weights.view(manifest, record.spec.model, job, keep=record.spec.keep_weights)
    with closing(view):
        return _served_model(record, describe_view(view))


def _served_model(record: DeploymentRecord, description: ModelDescription) -> ServedModel:
    from potluck.text.chat import prompt_chat
    from potluck.text.fill_in import find_fill_in
    from potluck.text.reasoning import reasoning_format
    from potluck.text.rerank import check_labels, encode_pair, rerank_template
    from potluck.text.tool_formats import choose_output_format

    tokenizer = load_tokenizer(description.files)
    template = load_chat_template(description.files)
    source = None if template is None else template.tool_source or template.source
    output_format = None
    if source is not None:
        output_format = choose_output_format(
            source, tokenizer.special_tokens, tool_format=record.spec.tool_format
        )
    rerank = description.vectors.rerank
    if rerank is not None:
        check_labels(rerank, description.config.label_tokens, tokenizer)
    return ServedModel(
        model_id=record.model_id,
        tokenizer=tokenizer,
        encode_chat=partial(
            prompt_chat, tokenizer, template, max_tokens=record.status.context_tokens - 1
        ),
        vocab_size=description.config.vocab_size,
        context_tokens=record.status.context_tokens,
        sampling_defaults=description.sampling_defaults,
        output_format=output_format,
        architecture=description.config.family,
        template=source,
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
            max_tokens=record.status.context_tokens,
        ),
        fill_in=find_fill_in(tokenizer, load_fill_in_tokens(description.files)),
    )


class LatestReports:
    """The latest reports of the nodes, for views that must not wait for the slowest one.

    The last report of a node that was just disconnected, or whose disk is slow, is shown until the
    call to it times out. ``ask`` returns a node's report or raises ``PotluckError`` in a bounded
    time. For use in one event loop.
    """

    def __init__(
        self,
        ask: Callable[[NodeId], Awaitable[NodeReport]],
        *,
        shown_seconds: float = SHOWN_SECONDS,
    ) -> None:
        self._ask = ask
        self._shown_seconds = shown_seconds
        self._reports: dict[NodeId, NodeReport | None] = {}
        self._asking: dict[NodeId, asyncio.Task[None]] = {}

    async def refresh(self, nodes: Collection[NodeId]) -> None:
        """Ask ``nodes``, and wait briefly for their answers; later ones count for the next view.

        A node that has not answered an earlier call is not asked again.
        """
        self._reports = {node: each for node, each in self._reports.items() if node in nodes}
        for node in nodes:
            if node not in self._asking:
                asking = asyncio.create_task(self._learn(node))
                self._asking[node] = asking
                asking.add_done_callback(lambda _, node=node: self._asking.pop(node))  # type: ignore[misc]
        waiting = [self._asking[node] for node in nodes]
        if waiting:
            await asyncio.wait(waiting, timeout=self._shown_seconds)

    def reports(self, alive: Collection[NodeId]) -> list[NodeReport]:
        """Return the last reports of those of ``alive`` that have answered, by node id."""
        known = [self._reports.get(node) for node in sorted(alive)]
        return [report for report in known if report is not None]

    def silent(self, alive: Collection[NodeId]) -> list[NodeId]:
        """Return those of ``alive`` that were asked and have not answered."""
        queried = {*self._reports, *self._asking}
        return [
            node for node in sorted(alive) if node in queried and self._reports.get(node) is None
        ]

    async def _learn(self, node: NodeId) -> None:
        try:
            self._reports[node] = await self._ask(node)
        except PotluckError:
            self._reports[node] = None
