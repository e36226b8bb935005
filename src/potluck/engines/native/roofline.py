"""The peak rates of this machine's memory and arithmetic with the threads of a pool.

Measured in the core: all threads read memory larger than the last-level cache, and repeat the
instruction set's multiply-add in registers. A sample takes about 0.1 s. The load of the machine
varies: to compare a measurement with the limits, take a sample before and after it and use the
better one, since a limit is the attainable maximum.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from potluck.engines.native.pool import ThreadPool
from potluck.engines.native.products import Operands
from potluck.engines.native.program import core_errors
from potluck.host.cores import last_level_cache_bytes
from potluck.host.memory import available_memory
from potluck.kernels import runner

_LEAST_READ_BYTES = 256 << 20
_MOST_READ_BYTES = 2 << 30
_CACHES = 4
"""Up to a quarter of the memory may still be in the last-level cache from the previous pass."""
_NUM_PASSES = 3
_PEAK_SECONDS = 0.015
"""Minimum duration of each run; waking a thread takes up to 50 µs."""
_CHUNKS_PER_THREAD = 8
_FEW_ROUNDS = 2000
"""These take a few µs on a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The result of one sample. Multiply-adds per second are those of all threads together."""

    read_bytes_per_second: float
    multiply_adds_per_second: Mapping[Operands, float]

    def better(self, other: Limits) -> Limits:
        """Return the maximum of each figure; both samples have the same operands."""
        return Limits(
            read_bytes_per_second=max(self.read_bytes_per_second, other.read_bytes_per_second),
            multiply_adds_per_second={
                each: max(rate, other.multiply_adds_per_second[each])
                for each, rate in self.multiply_adds_per_second.items()
            },
        )


class Roofline:
    """Takes samples; owns the memory that is read. Not thread-safe.

    ``instructions`` names the repeated instruction for each of the requested ``operands``, without
    those for which ``isa`` has none.
    """

    def __init__(self, pool: ThreadPool, isa: str, operands: Iterable[Operands]) -> None:
        self._pool = pool
        self._isa = isa
        with core_errors():
            named = {each: runner.peak_instruction(isa, each.value) for each in operands}
            self.instructions = {each: name for each, name in named.items() if name is not None}
            self._reader = runner.MemoryReader(num_bytes=_read_bytes(), pool=pool)
            self._num_rounds = {each: self._rounds(each) for each in self.instructions}

    def sample(self) -> Limits:
        """Return the best of a few passes over the memory, and of the same number of runs of each
        instruction.
        """
        seconds = min(self._reader.read() for _ in range(_NUM_PASSES))
        return Limits(
            read_bytes_per_second=self._reader.num_bytes / seconds,
            multiply_adds_per_second={
                each: max(self._peak(each, num_rounds) for _ in range(_NUM_PASSES))
                for each, num_rounds in self._num_rounds.items()
            },
        )

    def _peak(self, operands: Operands, num_rounds: int) -> float:
        return runner.measure_peak(
            pool=self._pool,
            isa=self._isa,
            operands=operands.value,
            num_chunks=self._pool.num_threads * _CHUNKS_PER_THREAD,
            num_rounds=num_rounds,
        )

    def _rounds(self, operands: Operands) -> int:
        """Return the number of rounds that takes long enough to make the waking of threads
        negligible.
        """
        num_rounds = _FEW_ROUNDS
        while True:
            started = time.perf_counter()
            self._peak(operands, num_rounds)
            if time.perf_counter() - started >= _PEAK_SECONDS:
                return num_rounds
            num_rounds *= 2


def _read_bytes() -> int:
    """Return the size of several caches, but at most an eighth of free memory."""
    wanted = max(_LEAST_READ_BYTES, _CACHES * (last_level_cache_bytes() or 0))
    return min(wanted, _MOST_READ_BYTES, available_memory().bytes // 8)
