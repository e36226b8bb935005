"""What memory and arithmetic of this machine can do at best, with the threads of a pool.

Measured in the core: memory larger than the last cache read by all threads, and the instruction
set's own multiply-add repeated in registers. A sample takes about 0.1 s. Other users of the machine
come and go: whoever compares something with the limits takes a sample before and after it, and the
better of the two, since a limit is what can be reached.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from potluck.engines.native import ThreadPool
from potluck.engines.native_program import core_errors
from potluck.engines.products import Operands
from potluck.kernels import runner
from potluck.probe.cpu_cache import last_level_cache_bytes
from potluck.probe.memory import available_memory

_LEAST_READ_BYTES = 256 << 20
_MOST_READ_BYTES = 2 << 30
_CACHES = 4
"""A fourth of the memory that is read may still be in the last cache from the pass before."""
_NUM_PASSES = 3
_PEAK_SECONDS = 0.015
"""Of each of the passes, at least; to wake a thread takes up to 50 µs."""
_CHUNKS_PER_THREAD = 8
_FEW_ROUNDS = 2000
"""Some µs of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """One sample. Multiply-adds per second are those of all threads together."""

    read_bytes_per_second: float
    multiply_adds_per_second: Mapping[Operands, float]

    def better(self, other: Limits) -> Limits:
        """The greater of each figure; both are of the same operands."""
        return Limits(
            read_bytes_per_second=max(self.read_bytes_per_second, other.read_bytes_per_second),
            multiply_adds_per_second={
                each: max(rate, other.multiply_adds_per_second[each])
                for each, rate in self.multiply_adds_per_second.items()
            },
        )


class Roofline:
    """Takes samples; holds the memory that is read. Calls come from one thread.

    ``instructions`` names what is repeated for each of the ``operands`` asked for, and leaves
    out those that ``isa`` has no instruction for.
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
        """The best of a few passes over the memory, and of as many runs of each instruction."""
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
        """As many as take long enough that waking the threads does not count."""
        num_rounds = _FEW_ROUNDS
        while True:
            started = time.perf_counter()
            self._peak(operands, num_rounds)
            if time.perf_counter() - started >= _PEAK_SECONDS:
                return num_rounds
            num_rounds *= 2


def _read_bytes() -> int:
    """Several caches, but no more than an eighth of what is free."""
    wanted = max(_LEAST_READ_BYTES, _CACHES * (last_level_cache_bytes() or 0))
    return min(wanted, _MOST_READ_BYTES, available_memory().bytes // 8)
