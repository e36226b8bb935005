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

    def put(self, record: DeploymentRecord, *, is_coordinator_lost: bool = False) -> Registry:
        """The registry after ``record`` was heard of; the same one if that is old news.

        A record without a quorum takes the place of one that has it only where the coordinator of
        that ``is_coordinator_lost``: on the side that goes on alone, until it is healed. It does,
        too, where the coordinator is the same: the others have not gone on meanwhile.
        """
        known = self.records.get(record.deployment)
        if known is not None:
            if known.state is DeploymentState.REMOVED:
                return self
            is_same = record.epoch.coordinator == known.epoch.coordinator
            goes_on_alone = (is_coordinator_lost or is_same) and record.epoch > known.epoch
            is_news = record.supersedes(known) or goes_on_alone
            if record.state is not DeploymentState.REMOVED and not is_news:
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
        return next(iter(self.find_all(name)), None)

    def find_all(self, name: str) -> tuple[DeploymentRecord, ...]:
        """Return the live deployments of that name or id, oldest first.

        They may be several: both sides of a cluster that was cut in two can deploy under one name.
        """
        return tuple(
            record for record in self.live() if name in (record.model_id, record.deployment)
        )

    def free_model_id(self, wanted: str) -> str:
        """``wanted``, or the first of ``wanted-2``, ``wanted-3`` … that no live deployment has."""
        taken = {record.model_id for record in self.live()}
        number, model_id = 1, wanted
        while model_id in taken:
            number += 1
            model_id = f"{wanted}-{number}"
        return model_id
