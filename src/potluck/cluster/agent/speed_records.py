"""Step times of a node's units by model shape, as stored across runs.

Pure: callers have the clock, which is in seconds since 1970. Records of another version of Potluck,
whose kernels may be faster, and old records are not used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from potluck.errors import ParameterError
from potluck.types.cluster import UnitId
from potluck.types.speed import StepTime

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
    """The records. Mutable, for one thread. ``version`` is that of the Potluck that measures.

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
        for time in times:
            if time.is_plausible:
                self._put((unit_id, conditions, model_shape), time, now - time.age_seconds)
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
