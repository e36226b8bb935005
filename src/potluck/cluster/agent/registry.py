"""What every agent knows of all deployments: records, the latest word on each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from potluck.cluster.calls import DeploymentRecord, DeploymentState
from potluck.types.cluster import DeploymentId

MAX_REMOVED = 256
"""Removed deployments that are remembered; late news of older ones is not to be expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Records by deployment, those heard of last at the end.

    A removal is final, whatever its epoch: ids are used once, and late news, or a coordinator that
    was cut off, must not revive what the user has removed.
    """

    records: dict[DeploymentId, DeploymentRecord] = field(default_factory=dict)

    def put(self, record: DeploymentRecord) -> Registry:
        """The registry after ``record`` was heard of; the same one if that is old news."""
        known = self.records.get(record.deployment)
        if known is not None:
            if known.state is DeploymentState.REMOVED:
                return self
            if record.state is not DeploymentState.REMOVED and not record.supersedes(known):
                return self
        records = {**self.records, record.deployment: record}
        removed = [key for key, each in records.items() if each.state is DeploymentState.REMOVED]
        for key in removed[:-MAX_REMOVED]:
            del records[key]
        return replace(self, records=records)

    def live(self) -> tuple[DeploymentRecord, ...]:
        """Deployments that are not removed, oldest first."""
        live = [
            record
            for record in self.records.values()
            if record.state is not DeploymentState.REMOVED
        ]
        return tuple(sorted(live, key=lambda record: (record.created, record.deployment)))

    def find(self, name: str) -> DeploymentRecord | None:
        """The live deployment that clients call ``name``, or whose id it is."""
        for record in self.live():
            if name in (record.model_id, record.deployment):
                return record
        return None

    def free_model_id(self, wanted: str) -> str:
        """``wanted``, or the first of ``wanted-2``, ``wanted-3`` … that no live deployment has."""
        taken = {record.model_id for record in self.live()}
        number, model_id = 1, wanted
        while model_id in taken:
            number += 1
            model_id = f"{wanted}-{number}"
        return model_id
