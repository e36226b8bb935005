"""The latest record of every deployment, as every agent keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from potluck.types.cluster import DeploymentId
from potluck.types.deployment import DeploymentRecord

MAX_REMOVED = 256
"""The number of removed deployments remembered; records of older ones no longer arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Records by deployment, in order of their last change.

    A removal is final, whatever its epoch: ids are used only once, and a late record, or a
    coordinator that was partitioned, must not revive what the user has removed.
    """

    records: dict[DeploymentId, DeploymentRecord] = field(default_factory=dict)

    def put(self, record: DeploymentRecord, *, is_coordinator_lost: bool = False) -> Registry:
        """Return the registry with ``record``; the same one if the record is outdated.

        A record without a quorum replaces one that has it only if the coordinator of the latter
        ``is_coordinator_lost``, on the side of a partition that continues alone, or if the
        coordinator is the same, since then the others have not continued.
        """
        known = self.records.get(record.deployment)
        if known is not None:
            if known.is_removed:
                return self
            is_same = record.epoch.coordinator == known.epoch.coordinator
            goes_on_alone = (is_coordinator_lost or is_same) and record.epoch > known.epoch
            is_news = record.supersedes(known) or goes_on_alone
            if not record.is_removed and not is_news:
                return self
        records = {**self.records, record.deployment: record}
        removed = [key for key, each in records.items() if each.is_removed]
        for key in removed[:-MAX_REMOVED]:
            del records[key]
        return replace(self, records=records)

    def live(self) -> tuple[DeploymentRecord, ...]:
        """Return the deployments that are not removed, oldest first."""
        live = [record for record in self.records.values() if not record.is_removed]
        return tuple(sorted(live, key=lambda record: (record.created, record.deployment)))

    def find(self, name: str) -> DeploymentRecord | None:
        """Return the live deployment with the given model id or deployment id."""
        return next(iter(self.find_all(name)), None)

    def find_all(self, name: str) -> tuple[DeploymentRecord, ...]:
        """Return the live deployments with that name or id, oldest first.

        There may be several: both sides of a partition can deploy under one name.
        """
        return tuple(
            record for record in self.live() if name in (record.model_id, record.deployment)
        )

    def free_model_id(self, wanted: str) -> str:
        """Return ``wanted``, or the first of ``wanted-2``, ``wanted-3`` … that no live deployment
        has.
        """
        taken = {record.model_id for record in self.live()}
        number, model_id = 1, wanted
        while model_id in taken:
            number += 1
            model_id = f"{wanted}-{number}"
        return model_id
