"""A stage that a worker of this node loads, holds or computes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import psutil

from potluck.cluster.agent.node import StageMemory
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.worker.messages import Loaded, StageSpec, Stats
from potluck.errors import PotluckError
from potluck.types.cluster import DeploymentId, UnitId
from potluck.types.held_stage import HeldStage

STATS_SECONDS = 1.0
"""How long a worker may take to report its totals, for which it need not stop computing."""


@dataclass(slots=True, kw_only=True, eq=False)
class HostedStage:
    """A worker and its stage.

    ``requested`` is the stage as last requested; ``serving`` is the one whose edges are open or
    being opened. Both hold the same layers, but may differ in epoch and position in the plan.
    ``loaded`` is None while the worker loads. A worker that ``is_stopped`` was killed and has not
    exited yet. Its measurements until ``measured_at`` (seconds since 1970) are known.
    """

    worker: WorkerProcess
    requested: StageSpec
    serving: StageSpec | None = None
    loaded: Loaded | None = None
    is_stopped: bool = False
    measured_at: float = 0.0

    @property
    def deployment(self) -> DeploymentId:
        """Return the deployment of the stage."""
        return self.requested.deployment

    @property
    def is_usable(self) -> bool:
        """Whether its worker has loaded it and is not about to exit."""
        return self.loaded is not None and not (self.is_stopped or self.worker.is_ending)

    @property
    def held(self) -> HeldStage:
        """Return the stage as the node reports it."""
        epoch = (self.serving or self.requested).epoch
        return msgspec.structs.replace(self.requested, epoch=epoch).held


def memory_of(stages: Sequence[HostedStage]) -> StageMemory:
    """Return the memory that plans have assigned to ``stages``, and how much of it is in use."""
    untaken_bytes = 0
    device_bytes: Counter[UnitId] = Counter()
    for each in stages:
        device_bytes[each.requested.unit_id] += each.requested.device_bytes
        with suppress(psutil.Error):
            memory = psutil.Process(each.worker.pid).memory_info()
            # Pages of a mapped file are resident, but not part of a plan.
            taken_bytes = memory.rss - memory.shared if each.requested.is_mapped else memory.rss
            # Caches fill as they are used.
            untaken_bytes += max(0, each.requested.num_bytes - taken_bytes)
    return StageMemory(
        planned_bytes=sum(each.requested.num_bytes for each in stages),
        untaken_bytes=untaken_bytes,
        device_bytes=device_bytes,
        held=tuple(each.held for each in stages if each.is_usable),
    )


async def stats_of(worker: WorkerProcess, seconds: float = STATS_SECONDS) -> Stats | None:
    """Return a worker's totals; None if it is not loaded or does not answer in time."""
    with suppress(TimeoutError, PotluckError):
        async with asyncio.timeout(seconds):
            return await worker.stats()
    return None
