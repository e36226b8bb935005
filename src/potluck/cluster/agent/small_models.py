"""Draft models: small models that are deployments of their own and may be asked by any gateway.

``--draft MODEL`` deploys the small model first, unless it is already deployed. Both are placed,
loaded, recovered and moved like any deployment. While the draft model is not available, the other
one continues without drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from potluck.catalog import ModelDescription
from potluck.catalog.small_models import check_small
from potluck.cluster.agent.remote_sequences import RemoteSequences
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.membership import Membership
from potluck.cluster.sequence_messages import Generate
from potluck.errors import EngineError
from potluck.types.choices import OFF
from potluck.types.cluster import DeploymentId
from potluck.types.deployment import Deploy, DeploymentRecord, DraftRecord
from potluck.types.sequence import Cancel, OnUpdate, SequenceRequest


def deploy_of(request: Deploy, small: ModelDescription, verified: ModelDescription) -> Deploy:
    """Return the request that deploys the draft model ``small`` for a deployment of ``verified``.

    It reads files of both models. Raises as ``check_small``.
    """
    check_small(small, verified, draft_label=request.draft, label=request.model)
    most = small.config.max_context_tokens
    context = None if request.context_tokens is None else min(most, request.context_tokens)
    name = request.draft.rstrip("/").rpartition("/")[2].removesuffix(".gguf")
    return Deploy(
        model=request.draft,
        model_id=f"{name}-draft",
        context_tokens=context,
        default_states=request.default_states,
        arithmetic=request.arithmetic,
        recovery_wait_seconds=request.recovery_wait_seconds,
        rebalance=request.rebalance,
        keep_weights=request.keep_weights,
        draft=OFF,
    )


def draft_record(record: DeploymentRecord, *, is_own: bool) -> DraftRecord:
    """Return the reference to a draft model's deployment."""
    return DraftRecord(
        deployment=record.deployment, context_tokens=record.status.context_tokens, is_own=is_own
    )


class SmallModels:
    """Sends sequences to draft models, wherever they are coordinated. For use in the agent's event
    loop.
    """

    def __init__(
        self,
        membership: Membership,
        coordinated: Mapping[DeploymentId, Deployment],
        find: Callable[[DeploymentId], DeploymentRecord | None],
    ) -> None:
        self._membership = membership
        self._coordinated = coordinated
        self._find = find
        self._remote = RemoteSequences(membership)

    def start(
        self, deployment: DeploymentId, request: SequenceRequest, on_update: OnUpdate
    ) -> Cancel:
        """Have a deployment continue a sequence. Raises ``PotluckError``."""
        mine = self._coordinated.get(deployment)
        if mine is not None:
            return mine.start_sequence(request, on_update)
        record = self._find(deployment)
        if record is None or not record.is_ready:
            raise EngineError("the draft model is not deployed")
        generate = Generate(deployment=deployment, request=request)
        return self._remote.start(record.epoch.coordinator, generate, on_update)
