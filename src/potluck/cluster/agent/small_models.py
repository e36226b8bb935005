"""Draft models: small models that are deployments of their own and may be asked by any gateway.

``--draft MODEL`` deploys the small model first, unless it is already deployed. Both are placed,
loaded, recovered and moved like any deployment. While the draft model is not available, the other
one continues without drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from potluck.cluster.agent.remote_sequences import RemoteSequences
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.membership import Membership
from potluck.cluster.sequence_messages import Generate
from potluck.errors import EngineError
from potluck.types.cluster import DeploymentId
from potluck.types.deployment import DeploymentRecord
from potluck.types.sequence import Cancel, OnUpdate, SequenceRequest


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
