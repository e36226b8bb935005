"""What every agent knows of all deployments: records, the latest word on each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from potluck.cluster.calls import DeploymentRecord, DeploymentState
from potluck.types.cluster import DeploymentId, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Records by deployment. Removed ones are kept, so that late news does not revive them."""

    records: dict[DeploymentId, DeploymentRecord] = field(default_factory=dict)

    def put(self, record: DeploymentRecord) -> Registry:
        """The registry after ``record`` was heard of; the same one if that is old news."""
        known = self.records.get(record.deployment)
        if known is not None and not record.supersedes(known):
            return self
        return replace(self, records={**self.records, record.deployment: record})

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

    def orphans(self, lost: NodeId) -> tuple[DeploymentRecord, ...]:
        """Live deployments whose coordinator was ``lost``."""
        return tuple(record for record in self.live() if record.epoch.coordinator == lost)


def successor(alive: Iterable[NodeId]) -> NodeId:
    """Which of the nodes that are left takes over from a coordinator: the least id."""
    return min(alive)
