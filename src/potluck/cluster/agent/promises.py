"""The epochs that a node has seen or promised, and whether it agrees to another one. Pure.

Promises are not stored on disk. They only settle which of several candidates continues; what keeps
two coordinators from extending one sequence is that workers obey the highest epoch that they have
seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from potluck.cluster.calls import Claim, ClaimAnswer
from potluck.types.cluster import DeploymentId, Epoch
from potluck.types.deployment import DeploymentRecord

MAX_PROMISES = 1024
"""The number of deployments remembered: more than a cluster has in months, in some hundred KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """The highest epoch by deployment, in order of their last change.

    ``taken`` are the deployments whose highest epoch was seen in a record.
    """

    highest: Mapping[DeploymentId, Epoch] = field(default_factory=dict)
    taken: frozenset[DeploymentId] = frozenset()

    def seen(self, deployment: DeploymentId, epoch: Epoch) -> Promises:
        """Return the promises after a record of ``epoch`` was seen: no lower one is agreed to."""
        known = self.highest.get(deployment)
        if known is not None and known > epoch:
            return self
        raised = self._raised(deployment, epoch)
        return replace(raised, taken=raised.taken | {deployment})

    def _raised(self, deployment: DeploymentId, epoch: Epoch) -> Promises:
        others = {key: each for key, each in self.highest.items() if key != deployment}
        kept = dict(list(others.items())[-(MAX_PROMISES - 1) :])
        return Promises(highest={**kept, deployment: epoch}, taken=self.taken & kept.keys())

    def answer(
        self, claim: Claim, record: DeploymentRecord | None, *, sees_coordinator: bool
    ) -> tuple[Promises, ClaimAnswer]:
        """Return the answer to ``claim``, and the promises after it.

        ``record`` is this node's record of the deployment, and ``sees_coordinator`` says whether
        the coordinator that it names is a member and, if it is this node itself, is active.
        """
        highest = self.highest.get(claim.deployment)
        if record is not None and (highest is None or highest < record.epoch):
            highest = record.epoch
        later = None
        if record is not None and (record.epoch > claim.known or record.is_removed):
            later = record
        reason = self._objection(claim, record, highest, sees_coordinator=sees_coordinator)
        if reason:
            return self, ClaimAnswer(is_granted=False, reason=reason, highest=highest, record=later)
        promises = self._raised(claim.deployment, claim.epoch)
        return promises, ClaimAnswer(is_granted=True, highest=claim.epoch)

    def _objection(
        self,
        claim: Claim,
        record: DeploymentRecord | None,
        highest: Epoch | None,
        *,
        sees_coordinator: bool,
    ) -> str:
        """Return why it does not agree; empty if it does.

        A claimant that was promised an epoch but did not take it, because too few others agreed,
        may ask for it again.
        """
        claimant = claim.epoch.coordinator
        if record is not None:
            coordinator = record.epoch.coordinator
            if record.is_removed:
                return "the deployment was removed"
            if record.epoch > claim.known:
                return f"it is already at epoch {record.epoch.number} of node {coordinator}"
            may_follow = claimant in (coordinator, record.status.successor)
            if sees_coordinator and not may_follow:
                return f"node {coordinator} coordinates it"
        is_repeated = highest == claim.epoch and claim.deployment not in self.taken
        if highest is not None and highest >= claim.epoch and not is_repeated:
            return f"epoch {highest.number} of node {highest.coordinator} was seen or promised"
        return ""
