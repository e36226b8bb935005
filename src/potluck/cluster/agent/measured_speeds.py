"""The measured speeds of this node's units, kept across restarts of the agent.

Workers measure (``scheduling.step_times``), ``SpeedRecords`` decides what is kept, and this module
stores it in a file of the state directory. If the file cannot be read or written, that is logged.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from potluck.cluster.agent.hosted_stage import HostedStage
from potluck.cluster.agent.threads import NodeThreads
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.wire.worker_messages import Stats
from potluck.errors import ParameterError
from potluck.host.log_rate import LogRate
from potluck.host.private_files import replace_file
from potluck.host.system import read_regular_file
from potluck.types.cluster import UnitId
from potluck.types.speed import StepTime
from potluck.version import __version__

_log = logging.getLogger(__name__)

COLLECT_SECONDS = 10.0
"""How often workers are asked, in addition to when the figures are needed and when workers are
stopped. Costs a message of some hundred bytes."""

_SAVE_SECONDS = 300.0
"""The shortest interval between writes: state directories are on SD cards, too."""


KEPT_SECONDS = 14 * 86_400.0
"""How long a record is used. A unit that seems slow may never be used again, and so never be
corrected: after two weeks it gets another chance."""

_CURRENT_SECONDS = 86_400.0
"""For a unit and a shape, only records within a day of the latest are used: a machine's speed today
matters more than that of last week."""

AGREEING_SECONDS = 600.0
"""Steps of one size were computed by different cuts of a model, and at different depths. A record
this much older than the latest one says how fast the unit was, not how fast it is."""

SETTLED_SAMPLES = 8
"""A median of this many samples replaces any earlier one; one of fewer samples replaces only an
older one that had no more samples or is outdated."""

MAX_RECORDS = 32
"""The most units and shapes. The one not measured for the longest time is dropped."""

_MAX_TIMES = 128
"""The most times of one unit and shape: five cuts of a model by about 25 kinds of steps."""

MAX_FILE_BYTES = 2 * 2**20
"""``MAX_RECORDS`` with ``_MAX_TIMES`` each take half of this."""

_MAX_KEY_CHARACTERS = 512


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    time: StepTime


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    unit_id: UnitId
    conditions: str
    model_shape: str
    times: tuple[_Kept, ...]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["potluck.step-times/1"] = "potluck.step-times/1"
    version: str
    records: tuple[_Record, ...] = ()


_Key = tuple[UnitId, str, str]
_Kind = tuple[object, ...]
_Size = tuple[int, int | None]
_Times = dict[_Kind, _Kept]


class SpeedRecords:
    """Step times of a node's units by model shape, as stored across runs. Mutable, for one thread.

    ``version`` is that of the Potluck that measures. Old records are not used, nor those of another
    version, whose kernels may be faster. Callers have the clock, in seconds since 1970.

    ``conditions`` is a text that changes when the speed of a unit may have changed permanently: its
    device, its instruction set, its usable cores.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._records: dict[_Key, _Times] = {}

    @classmethod
    def decode(cls, version: str, document: bytes, now: float) -> SpeedRecords:
        """Decode the result of ``encode``, skipping records of other versions.

        Raises ``ParameterError`` for anything else.
        """
        records = cls(version)
        try:
            decoded = msgspec.json.decode(document, type=_Document)
        except (
            ValueError,
            RecursionError,
        ) as error:  # another document, not UTF-8, or nested too deeply
            raise ParameterError("step times", str(error)) from error
        if decoded.version != version:
            return records
        for each in decoded.records:
            for kept in each.times:
                # A clock that was wrong must not make a record seem newer.
                at = min(kept.at, now)
                if not math.isfinite(at):
                    raise ParameterError("step times", f"measured at {kept.at}")
                records._put((each.unit_id, each.conditions, each.model_shape), kept.time, at)
        records._expire(now)
        return records

    def encode(self, now: float) -> bytes:
        """Return a JSON document of at most ``MAX_FILE_BYTES``."""
        self._expire(now)
        return msgspec.json.encode(
            _Document(
                version=self._version,
                records=tuple(
                    _Record(
                        unit_id=unit_id,
                        conditions=conditions,
                        model_shape=shape,
                        times=tuple(times.values()),
                    )
                    for (unit_id, conditions, shape), times in self._records.items()
                ),
            )
        )

    def take(
        self,
        unit_id: UnitId,
        conditions: str,
        model_shape: str,
        times: Iterable[StepTime],
        now: float,
    ) -> int:
        """Record a unit's step times; return how many of ``times`` were rejected as impossible."""
        self._set_back((unit_id, conditions, model_shape), now)
        num_wrong = 0
        for each in times:
            if each.is_plausible:
                self._put((unit_id, conditions, model_shape), each, now - each.age_seconds)
            else:
                num_wrong += 1
        return num_wrong

    def of(
        self, model_shape: str, conditions: Mapping[UnitId, str], now: float
    ) -> dict[UnitId, tuple[StepTime, ...]]:
        """Return the records of units under their present conditions, the latest first."""
        found = {}
        for unit_id, present in conditions.items():
            self._set_back((unit_id, present, model_shape), now)
            kept = sorted(
                self._records.get((unit_id, present, model_shape), {}).values(),
                key=lambda each: -each.at,
            )
            latest: dict[_Size, float] = {}
            current = []
            for each in kept:
                last = latest.setdefault(_size(each.time), each.at)
                is_current = kept[0].at - each.at <= _CURRENT_SECONDS
                if (
                    is_current
                    and last - each.at <= AGREEING_SECONDS
                    and now - each.at <= KEPT_SECONDS
                ):
                    age = max(0.0, now - each.at)
                    current.append(dataclasses.replace(each.time, age_seconds=age))
            if current:
                found[unit_id] = tuple(current)
        return found

    def _put(self, key: _Key, time: StepTime, at: float) -> None:
        if not time.is_plausible or max(map(len, key)) > _MAX_KEY_CHARACTERS:
            return
        times = self._records.setdefault(key, {})
        kind = _kind(time)
        before = times.get(kind)
        if before is not None and not _replaces(time, at, before):
            return
        times[kind] = _Kept(at=at, time=dataclasses.replace(time, age_seconds=0.0))
        if len(times) > _MAX_TIMES:
            del times[min(times, key=lambda each: times[each].at)]
        if len(self._records) > MAX_RECORDS:
            del self._records[min(self._records, key=lambda each: _latest(self._records[each]))]

    def _set_back(self, key: _Key, now: float) -> None:
        """Date records from when the clock was ahead as of now, so that they are replaced."""
        for kind, kept in self._records.get(key, {}).items():
            if kept.at > now:
                self._records[key][kind] = _Kept(at=now, time=kept.time)

    def _expire(self, now: float) -> None:
        for key, times in list(self._records.items()):
            for kind, kept in list(times.items()):
                if now - kept.at > KEPT_SECONDS:
                    del times[kind]
            if not times:
                del self._records[key]


def _kind(time: StepTime) -> _Kind:
    """Return the key of a measurement; a later one with the same key replaces it."""
    return (
        time.num_layers,
        time.has_embedding,
        time.has_head,
        *_size(time),
        time.context_tokens.bit_length(),
    )


def _size(time: StepTime) -> _Size:
    """Return the number of sequences, and the order of magnitude of a prompt's tokens."""
    is_decode = time.num_tokens == time.num_sequences
    return time.num_sequences, None if is_decode else time.num_tokens.bit_length()


def _replaces(time: StepTime, at: float, before: _Kept) -> bool:
    is_settled = time.num_samples >= min(SETTLED_SAMPLES, before.time.num_samples)
    return at >= before.at and (is_settled or at - before.at > _CURRENT_SECONDS)


def _latest(times: _Times) -> float:
    return max(kept.at for kept in times.values())


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
        if (
            stage.loaded is None
            or not stage.loaded.model_shape
            or stage.requested.shard.part is not None
        ):
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
        saved_at = -math.inf
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            await collect()
            # The clock may have been set back by years since then.
            if self._has_news and abs(self._clock() - saved_at) >= _SAVE_SECONDS:
                saved_at = self._clock()
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
            document = read_regular_file(self._path, MAX_FILE_BYTES)
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
