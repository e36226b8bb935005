"""The measured speeds of this node's units, kept across restarts of the agent.

Workers measure (``scheduling.step_times``), ``speed_records`` decides what is kept, and this module
stores it in a file of the state directory. If the file cannot be read or written, that is logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from potluck.cluster.agent.hosted_stage import HostedStage
from potluck.cluster.agent.speed_records import MAX_FILE_BYTES, SpeedRecords
from potluck.cluster.agent.threads import NodeThreads
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.worker.messages import Stats
from potluck.errors import ParameterError
from potluck.log_rate import LogRate
from potluck.private_files import read_small_file, replace_file
from potluck.types.cluster import UnitId
from potluck.types.speed import StepTime
from potluck.version import __version__

_log = logging.getLogger(__name__)

COLLECT_SECONDS = 10.0
"""How often workers are asked, in addition to when the figures are needed and when workers are
stopped. Costs a message of some hundred bytes."""

_SAVE_SECONDS = 300.0
"""The shortest interval between writes: state directories are on SD cards, too."""


class MeasuredSpeeds:
    """The measured speeds. For use in the agent's event loop. ``clock`` is the time since 1970."""

    def __init__(
        self,
        path: Path,
        units: NodeUnits,
        threads: NodeThreads,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._units = units
        self._threads = threads
        self._clock = clock
        self._records = self._load()
        self._has_news = False
        self._refusals = LogRate(lines=1, seconds=600.0)

    def record(self, stage: HostedStage, stats: Stats) -> None:
        """Record what a worker has measured since it was last asked.

        Measurements of a group's member cover only its part, and the waiting for the others, and
        say little about the unit.
        """
        now = self._clock()
        since, stage.measured_at = stage.measured_at, now
        if stage.loaded is None or not stage.loaded.model_shape or stage.requested.part is not None:
            return
        news = [each for each in stats.step_times if now - each.age_seconds > since]
        unit_id = stage.requested.unit_id
        conditions = self._units.conditions(self._threads).get(unit_id)
        if not news or conditions is None:
            return
        num_wrong = self._records.take(unit_id, conditions, stage.loaded.model_shape, news, now)
        self._has_news = self._has_news or num_wrong < len(news)
        if num_wrong and self._refusals.allows():
            _log.warning(
                "ignored %d implausible step times from the worker of %s",
                num_wrong,
                unit_id,
            )

    def of(self, model_shape: str) -> dict[UnitId, tuple[StepTime, ...]]:
        """Return what is known of each unit for models of a shape, the latest first."""
        return self._records.of(model_shape, self._units.conditions(self._threads), self._clock())

    async def run(self, collect: Callable[[], Awaitable[None]]) -> None:
        """Call ``collect``, which asks the workers, periodically, and keep the file up to date."""
        next_save = self._clock()
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            await collect()
            if self._has_news and self._clock() >= next_save:
                next_save = self._clock() + _SAVE_SECONDS
                document = self._document()
                await asyncio.to_thread(self._write, document)

    def close(self) -> None:
        """Write the file if something has changed."""
        if self._has_news:
            self._write(self._document())

    def _document(self) -> bytes:
        self._has_news = False
        return self._records.encode(self._clock())

    def _load(self) -> SpeedRecords:
        try:
            document = read_small_file(self._path, MAX_FILE_BYTES)
            return SpeedRecords.decode(__version__, document, self._clock())
        except FileNotFoundError:
            pass
        except (OSError, ParameterError) as error:
            _log.warning("ignored %s: %s", self._path, error)
        return SpeedRecords(__version__)

    def _write(self, document: bytes) -> None:
        try:
            # Data lost in a power failure is measured again.
            replace_file(self._path, document, is_durable=False)
        except OSError as error:
            _log.warning("cannot write %s: %s", self._path, error.strerror or error)
