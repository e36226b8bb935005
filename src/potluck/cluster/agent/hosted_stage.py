"""A stage that a worker of this node loads, holds or computes, as its agent knows it."""

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
from potluck.types.node import HeldStage

STATS_SECONDS = 1.0
"""What a worker may take to say what it did; it need not stop computing for it."""


@dataclass(slots=True, kw_only=True, eq=False)
class HostedStage:
    """A worker and its stage.

    ``asked`` is the stage as it was asked for last, ``serving`` the one whose edges stand or are
    being opened. Both are the same holding; they differ in the epoch and the place in the plan.
    ``loaded`` is None while the worker loads. One that ``is_stopped`` was killed and has not ended
    yet. What it measured until ``measured_at`` (seconds since 1970) is known.
    """

    worker: WorkerProcess
    asked: StageSpec
    serving: StageSpec | None = None
    loaded: Loaded | None = None
    is_stopped: bool = False
    measured_at: float = 0.0

    @property
    def deployment(self) -> DeploymentId:
        """Of which it is a stage."""
        return self.asked.deployment

    @property
    def is_usable(self) -> bool:
        """Whether its worker has loaded it, and is not about to end."""
        return self.loaded is not None and not (self.is_stopped or self.worker.is_ending)

    @property
    def held(self) -> HeldStage:
        """As a node reports it."""
        epoch = (self.serving or self.asked).epoch
        return msgspec.structs.replace(self.asked, epoch=epoch).held


def memory_of(stages: Sequence[HostedStage]) -> StageMemory:
    """Return what plans have counted for ``stages``, and what of it their workers have taken."""
    untaken_bytes = 0
    device_bytes: Counter[UnitId] = Counter()
    for each in stages:
        device_bytes[each.asked.unit_id] += each.asked.device_bytes
        with suppress(psutil.Error):
            memory = psutil.Process(each.worker.pid).memory_info()
            # Pages of a mapped file are resident, and in no plan.
            taken_bytes = memory.rss - memory.shared if each.asked.is_mapped else memory.rss
            # Caches fill up as they are used.
            untaken_bytes += max(0, each.asked.num_bytes - taken_bytes)
    return StageMemory(
        planned_bytes=sum(each.asked.num_bytes for each in stages),
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
