"""One deployment as run by its coordinator.

Its sequences live in ``request_queue``, across all of its epochs: when a stage is lost they wait,
and continue over the stages of the next epoch. ``epochs`` begins and ends epochs, as the state
machine decides (``machine``), with attempts to serve that ``attempt_runner`` runs.
``published_record`` tells all nodes about it, ``rebalancing`` looks for better plans, and
``upkeep`` does the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from functools import partial

from potluck.cluster.background import Background, in_loop
from potluck.cluster.coordinator.attempt import Attempt, DeploymentDependencies, StartDraft
from potluck.cluster.coordinator.epoch_end import EpochEnds
from potluck.cluster.coordinator.epochs import DRAIN_SECONDS, Epochs
from potluck.cluster.coordinator.metrics import (
    Slowdowns,
    own_metrics,
    slowdowns_of,
    stage_stats,
    with_stages,
)
from potluck.cluster.coordinator.published_record import Publish, PublishedRecord, Voters
from potluck.cluster.coordinator.rebalancing import Rebalancing
from potluck.cluster.coordinator.releasing import stop_everything
from potluck.cluster.coordinator.request_queue import RequestQueue
from potluck.cluster.coordinator.upkeep import Upkeep
from potluck.cluster.coordinator.weights import ModelWeights, end_weights
from potluck.cluster.network.edges.path_figures import PathFigures
from potluck.cluster.wire.calls import StageLost
from potluck.drafting.model import ModelDrafts
from potluck.drafting.sources import draft_source, names_model
from potluck.errors import (
    EngineError,
    MovedError,
    PotluckError,
)
from potluck.models.states import slot_bytes
from potluck.placement.model_counting import counting_of
from potluck.placement.planned import PlannedModel
from potluck.placement.rebalancing import PlanComparison
from potluck.scheduling.limits import Load
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import (
    DeploymentRecord,
    ModelFingerprint,
    RebalanceReport,
)
from potluck.types.drafting import DraftSource
from potluck.types.gateway import ModelMetrics
from potluck.types.profile import ModelProfile
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    Cancel,
    Continuation,
    OnUpdate,
    SequenceRequest,
)
from potluck.types.step import KV_BLOCK_TOKENS

_POLL_SECONDS = 0.05


class Deployment:
    """A deployment at its coordinator; ``publish`` sends its record to every agent.

    ``on_record`` is called with a record that supersedes this one, if a node has one. With
    ``weights``, nodes without files of the model get them by content; ``discard`` removes the
    model, with a reason, if these are damaged. For use in the agent's loop.
    """

    def __init__(
        self,
        record: DeploymentRecord,
        profile: ModelProfile,
        fingerprint: ModelFingerprint,
        dependencies: DeploymentDependencies,
        *,
        publish: Publish,
        on_record: Callable[[DeploymentRecord], None],
        weights: ModelWeights | None = None,
        discard: Callable[[DeploymentId, str], None] = lambda deployment, reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = profile.config
        self._counting = counting_of(profile, dependencies.cost_of)
        self._fingerprint = fingerprint
        self._weights = weights
        self._dependencies = dependencies
        self._membership = dependencies.membership
        self._clock = clock
        background = Background(f"{record.model_id}: a task failed")
        ends = EpochEnds(self._membership, clock)
        self._published = PublishedRecord(
            record,
            node_id=self._membership.node_id,
            placed=lambda record: self._epochs.placed(record),
            because=ends.because,
            publish=publish,
            clock=clock,
        )
        self._voters = Voters(self._membership, self._published)
        self._requests = RequestQueue(
            record.model_id,
            profile.config.vocab_size,
            self._new_attempt().limits,
            has_logits=profile.config.has_logits,
            drafts=_draft_source(
                record,
                dependencies.start_draft,
                profile.config.vocab_size,
                lambda: self._requests.drafts_ready(),
            ),
            recovery_wait_seconds=record.spec.recovery_wait_seconds,
            why_not=lambda: self._epochs.attempts.why_not(),
            no_plan=lambda: self._epochs.attempts.misfit is not None,
            retry_after=self._published.retry_after,
            clock=clock,
        )
        self._upkeep = Upkeep(
            self._membership,
            self._published,
            weights,
            in_force=lambda: self._epochs.in_force,
            discard=partial(discard, record.deployment),
            spawn=background.spawn,
        )
        self._rebalancing = Rebalancing(
            self,
            dependencies.rebalance_policy,
            note=lambda note: self._published.update(rebalance_note=note),
            release_unused=self._upkeep.release_unused,
            clock=clock,
            spawn=background.spawn,
        )
        self._epochs = Epochs(
            self._membership,
            self._new_attempt,
            self._published,
            ends,
            self._requests,
            self._rebalancing,
            self._upkeep,
            background,
            on_record=on_record,
            clock=clock,
        )
        self._latest_metrics: tuple[Epoch, float, ModelMetrics] | None = None

    @property
    def record(self) -> DeploymentRecord:
        """Return the current record; every agent has it, or will shortly."""
        return self._published.record

    @property
    def load(self) -> Load | None:
        """Return the current load; None while it does not serve."""
        return self._requests.load if self._requests.is_attached else None

    def path(self) -> tuple[NodeId, PathFigures] | None:
        """Return the figures of the edge to the first stage, and the node of that stage."""
        pipeline = self._requests.pipeline
        return None if pipeline is None else pipeline.path()

    async def start(self) -> None:
        """Deploy for the first time, then run independently.

        Raises the error that prevents the deployment, which must then be removed, as after a
        cancellation.
        """
        await self._epochs.start()

    def resume(self) -> None:
        """Take over from a coordinator that was lost or is leaving."""
        self._epochs.resume()

    async def remove(self, reason: str = "undeployed") -> None:
        """End the deployment: live sequences fail, the stages are stopped."""
        await self._end()
        await self._requests.end(EngineError("the model was undeployed"))
        await stop_everything(self._membership, self.record)
        await end_weights(self._membership, self.record)
        self._published.set_removed(reason)

    async def close(self, reason: PotluckError | None = None) -> None:
        """Hand the deployment to another node, leaving its stages as they are. Idempotent.

        Live sequences end with ``reason``, normally an error that makes their gateways continue
        them.
        """
        await self._end()
        await self._requests.end(
            reason
            or MovedError(
                "the coordinator of the model has left the cluster",
                hint="send the request again: another node takes over",
            )
        )

    async def _end(self) -> None:
        self._epochs.end()
        self._rebalancing.close()
        self._voters.close()
        await self._epochs.finish()

    def rename(self, model_id: str) -> None:
        """Give the deployment another name for clients."""
        self._requests.model_id = model_id
        self._published.rename(model_id)

    def name_successor(self, node_id: NodeId) -> None:
        """Make all nodes agree that ``node_id`` claims the next epoch."""
        self._published.update(successor=node_id)

    async def continue_without(self, node_id: NodeId) -> None:
        """Move the deployment off a node; return when that is done or impossible. Sequences
        continue.
        """
        await self._epochs.vacate(node_id)

    async def finish(self) -> None:
        """Wait for the sequences in flight, for at most half a minute."""
        deadline = self._clock() + DRAIN_SECONDS
        while self._clock() < deadline:
            load = self.load
            if load is None or load.num_sequences == 0:
                return
            await asyncio.sleep(_POLL_SECONDS)

    def stage_lost(self, lost: StageLost) -> None:
        """Handle a worker that ended by itself."""
        self._epochs.stage_lost(lost)

    def node_left(self, node_id: NodeId) -> None:
        """Handle a node that has left."""
        self._epochs.node_left(node_id)
        if not self._epochs.is_over:
            self._voters.node_left(node_id)

    def node_joined(self, node_id: NodeId) -> None:
        """Handle a node that has joined: there may be room for the model, spares, or a better
        plan.
        """
        self._voters.node_joined()
        self._rebalancing.node_joined(node_id)
        self._epochs.node_joined()
        self._upkeep.node_joined()

    def start_sequence(
        self,
        request: SequenceRequest,
        on_update: OnUpdate,
        continuation: Continuation = NOTHING_COMMITTED,
    ) -> Cancel:
        """Compute a sequence, or what follows ``continuation``; see ``RequestQueue.start``."""
        return self._requests.start(request, on_update, continuation)

    def own_metrics(self) -> ModelMetrics | None:
        """Return the current metrics without those of its stages; None while it does not serve."""
        record, load, pipeline = self.record, self.load, self._requests.pipeline
        if load is None or pipeline is None:
            return None
        return own_metrics(
            record,
            load,
            pipeline.rates.speed(record.spec.num_streams),
            num_blocks=self._epochs.served.limits.num_blocks,
            num_spares=self._upkeep.num_spares,
            slot_bytes=slot_bytes(self._config),
            num_moves=self._rebalancing.num_moves,
            last_gain=self._rebalancing.last_gain,
            generated=self._requests.generated,
        )

    async def metrics(self, *, max_age_seconds: float = 0.0) -> ModelMetrics | None:
        """Return metrics that are at most this old; None while it does not serve."""
        record, pipeline, own = self.record, self._requests.pipeline, self.own_metrics()
        if pipeline is None or own is None:
            return None
        if self._latest_metrics is not None:
            epoch, at, latest = self._latest_metrics
            if epoch == record.epoch and self._clock() - at < max_age_seconds:
                return latest
        metrics = await with_stages(self._membership, record, own, pipeline.sent)
        self._latest_metrics = (record.epoch, self._clock(), metrics)
        return metrics

    # Moves to better plans.

    async def rebalance(self, *, is_dry_run: bool) -> RebalanceReport:
        """Move to the best plan, or report what that would gain; see ``Rebalancing.ask``."""
        return await self._rebalancing.ask(is_dry_run=is_dry_run)

    @property
    def num_live_tokens(self) -> int:
        """Return how many tokens the cache holds now, in whole blocks."""
        num_free = self._requests.load.num_free_blocks
        return (self._epochs.served.limits.num_blocks - num_free) * KV_BLOCK_TOKENS

    async def alternative(self, without: Collection[NodeId]) -> PlanComparison | None:
        """Return the best plan on all other nodes; see ``Attempt.alternative``."""
        return await self._epochs.attempts.alternative(without)

    async def slowdowns(self) -> Slowdowns:
        """Return how the time of the stages' steps compares with earlier times and the
        prediction.
        """
        return slowdowns_of(
            await stage_stats(self._membership, self.record), self.record.status.plan.prediction
        )

    def begin_move(self, planned: PlannedModel, reason: str) -> None:
        """Move to a plan that was just made, unless something else is in progress."""
        self._epochs.begin_move(planned, reason)

    def _new_attempt(self) -> Attempt:
        return Attempt(
            self._dependencies,
            self.record,
            self._config,
            self._counting,
            self._fingerprint,
            self._weights,
        )


def _draft_source(
    record: DeploymentRecord, start: StartDraft | None, vocab_size: int, ready: Callable[[], None]
) -> DraftSource | None:
    """Return what drafts for a deployment; ``ready`` is called when a model has more drafts."""
    small = record.status.small
    if not names_model(record.spec.draft):
        return draft_source(record.spec.draft)
    if small is None or start is None:
        return None
    return ModelDrafts(
        partial(start, small.deployment),
        in_loop(asyncio.get_running_loop()),
        ready,
        vocab_size=vocab_size,
        context_tokens=small.context_tokens,
    )
