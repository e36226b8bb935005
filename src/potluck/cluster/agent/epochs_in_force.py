"""Tracks which epochs of each deployment a node still obeys. Pure; grows with each deployment."""

from __future__ import annotations

from potluck.errors import EngineError
from potluck.types.cluster import DeploymentId, Epoch


class EpochsInForce:
    """The highest epoch seen in use, and the highest that has ended, per deployment."""

    def __init__(self) -> None:
        self._highest: dict[DeploymentId, Epoch] = {}
        self._ended: dict[DeploymentId, Epoch] = {}

    def observe(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """Record that ``epoch`` is in use; lower ones are over."""
        highest = self._highest.get(deployment)
        if highest is None or highest < epoch:
            self._highest[deployment] = epoch

    def end(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """Record that ``epoch`` and lower ones are over."""
        ended = self._ended.get(deployment)
        if ended is None or ended < epoch:
            self._ended[deployment] = epoch

    def is_over(self, deployment: DeploymentId, epoch: Epoch) -> bool:
        """Return whether ``epoch`` is over."""
        highest, ended = self._highest.get(deployment), self._ended.get(deployment)
        return (highest is not None and epoch < highest) or (ended is not None and epoch <= ended)

    def has_higher(self, deployment: DeploymentId, epoch: Epoch) -> bool:
        """Return whether a higher epoch than ``epoch`` was seen in use."""
        highest = self._highest.get(deployment)
        return highest is not None and epoch < highest

    def check(self, deployment: DeploymentId, epoch: Epoch) -> None:
        """Raise ``EngineError`` if ``epoch`` is over."""
        if self.is_over(deployment, epoch):
            raise EngineError(f"epoch {epoch.number} of {deployment} is over")
