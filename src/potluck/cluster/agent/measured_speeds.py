"""How fast this node's units computed what they served, over restarts of the agent.

Workers measure (``worker.step_times``), ``speed_records`` says what is kept, and this keeps it: in
a file of the state directory. A file that cannot be read or written costs a line in the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from potluck.cluster.agent.hosted_stage import HostedStage
from potluck.cluster.agent.speed_records import MAX_FILE_BYTES, SpeedRecords
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.worker.messages import Stats
from potluck.errors import ParameterError
from potluck.log_rate import LogRate
from potluck.private_files import read_small_file, replace_file
from potluck.probe.cores import own_usable_cores
from potluck.types.cluster import UnitId
from potluck.types.speed import StepTime
from potluck.version import __version__

_log = logging.getLogger(__name__)

COLLECT_SECONDS = 10.0
"""How often workers are asked, beyond when somebody wants to know and when they are ended: a
message of some hundred bytes."""

_SAVE_SECONDS = 300.0
"""How often the file is written, at most: state directories lie on SD cards, too."""


class MeasuredSpeeds:
    """For use in the agent's loop. ``clock`` is in seconds since 1970."""

    def __init__(
        self,
        path: Path,
        units: NodeUnits,
        *,
        num_threads: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._units = units
        self._num_threads = num_threads
        self._clock = clock
        self._records = self._load()
        self._has_news = False
        self._refusals = LogRate(lines=1, seconds=600.0)

    def took(self, stage: HostedStage, stats: Stats) -> None:
        """Keep what a worker has measured since it was asked last."""
        now = self._clock()
        since, stage.measured_at = stage.measured_at, now
        if stage.loaded is None or not stage.loaded.model_shape:
            return
        news = [each for each in stats.step_times if now - each.age_seconds > since]
        unit_id = stage.asked.unit_id
        conditions = self._conditions().get(unit_id)
        if not news or conditions is None:
            return
        num_wrong = self._records.take(unit_id, conditions, stage.loaded.model_shape, news, now)
        self._has_news = self._has_news or num_wrong < len(news)
        if num_wrong and self._refusals.allows():
            _log.warning(
                "%d step times of the worker of %s make no sense, and are ignored",
                num_wrong,
                unit_id,
            )

    def of(self, model_shape: str) -> dict[UnitId, tuple[StepTime, ...]]:
        """Return what is known of each unit and models of a shape, the latest first."""
        return self._records.of(model_shape, self._conditions(), self._clock())

    async def run(self, collect: Callable[[], Awaitable[None]]) -> None:
        """Have ``collect`` ask the workers now and then, and keep the file up to date."""
        next_save = self._clock()
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            await collect()
            if self._has_news and self._clock() >= next_save:
                next_save = self._clock() + _SAVE_SECONDS
                document = self._document()
                await asyncio.to_thread(self._write, document)

    def close(self) -> None:
        """Write the file if there is something new."""
        if self._has_news:
            self._write(self._document())

    def _conditions(self) -> dict[UnitId, str]:
        return self._units.conditions(self._num_threads, own_usable_cores().core_seconds_per_second)

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
            _log.warning("%s is ignored: %s", self._path, error)
        return SpeedRecords(__version__)

    def _write(self, document: bytes) -> None:
        try:
            # What is lost in a power failure is measured again.
            replace_file(self._path, document, is_durable=False)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path, error.strerror or error)
