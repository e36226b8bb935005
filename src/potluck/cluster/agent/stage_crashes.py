"""Remembers how stages of this node have crashed, until their coordinators ask."""

from __future__ import annotations

from potluck.cluster.calls import StageEnds, StageScope
from potluck.cluster.worker.messages import StageSpec
from potluck.types.cluster import DeploymentId, Epoch


class StageCrashes:
    """The latest crash of each stage. For use in the agent's event loop."""

    def __init__(self) -> None:
        self._crashes: dict[tuple[DeploymentId, int], tuple[Epoch, str]] = {}

    def __len__(self) -> int:
        """Return the number of crashes not yet reported."""
        return len(self._crashes)

    def note(self, spec: StageSpec, line: str) -> None:
        """Record that a stage crashed, with a line that describes how."""
        self._crashes[spec.deployment, spec.index] = (spec.epoch, line)

    def take(self, scope: StageScope) -> StageEnds:
        """Return the crashes of an epoch, and drop them and those of lower epochs."""
        known = [key for key in self._crashes if key[0] == scope.deployment]
        crashes = [self._crashes.pop(key) for key in known if self._crashes[key][0] <= scope.epoch]
        return StageEnds(crashes=tuple(line for epoch, line in crashes if epoch == scope.epoch))
