"""How many threads of a pool compute while the usable cores change."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.engines.native_pipeline import Part, Pipeline, small_config
from support.engines.pools import cores_of

from potluck.engines.native.pool import ThreadPool, make_pool
from potluck.errors import EngineError
from potluck.host.cores import (
    WATCH_SECONDS,
    CoreWatch,
    UsableCores,
    default_num_threads,
)
from potluck.types.tensor import TensorFormat


@dataclass
class Machine:
    """Its usable cores, and a clock that moves when told."""

    cores: UsableCores
    now: float = 0.0
    num_reads: int = field(default=0, init=False)

    def read(self) -> UsableCores:
        self.num_reads += 1
        return self.cores

    def pool(self, num_threads: int) -> ThreadPool:
        return make_pool(num_threads, CoreWatch(self.read, lambda: self.now))

    def limit(self, num_cores: int) -> None:
        """Set a quota, and wait until it must have been noticed."""
        self.cores = cores_of(num_cores, num_affine_cores=self.cores.num_affine_cores)
        self.now += WATCH_SECONDS


def test_a_pool_has_as_many_threads_as_requested_or_a_thread_per_core() -> None:
    assert make_pool(3).num_threads == 3
    assert make_pool().num_threads == default_num_threads()


@pytest.mark.parametrize("num_threads", [0, -1, 1 << 20])
def test_an_impossible_number_of_threads_is_refused(num_threads: int) -> None:
    with pytest.raises(EngineError, match="1 to 1024 threads"):
        make_pool(num_threads)


def test_no_more_threads_compute_than_cores_are_usable() -> None:
    assert Machine(cores_of(2, num_affine_cores=8)).pool(8).num_active == 2
    assert Machine(cores_of(8)).pool(3).num_active == 3


def test_a_pool_follows_the_quota(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(cores_of(4))
    pool = machine.pool(4)
    with caplog.at_level(logging.INFO):
        pool.follow_cores()
        assert not caplog.records
        machine.limit(1)
        pool.follow_cores()
        assert pool.num_active == 1
        machine.limit(3)
        pool.follow_cores()
        assert (pool.num_active, pool.num_threads) == (3, 4)
        machine.limit(9)
        pool.follow_cores()
        assert pool.num_active == 4
    assert caplog.messages == [
        "computing on 1 thread from now on (usable cores: a quota)",
        "computing on 3 threads from now on (usable cores: a quota)",
        "computing on 4 threads from now on (usable cores: a quota)",
    ]


def test_the_cores_are_read_at_most_once_a_second() -> None:
    machine = Machine(cores_of(2))
    pool = machine.pool(2)
    machine.cores = cores_of(1, num_affine_cores=2)
    for _ in range(1000):
        pool.follow_cores()
    assert (machine.num_reads, pool.num_active) == (1, 2)
    machine.now += WATCH_SECONDS
    for _ in range(1000):
        pool.follow_cores()
    assert (machine.num_reads, pool.num_active) == (2, 1)


def test_a_step_follows_the_quota_and_computes_the_same() -> None:
    machine = Machine(cores_of(4))
    pool = machine.pool(4)
    changing, steady = (
        Pipeline.make(small_config(2), TensorFormat.Q8_0, pool=each) for each in (pool, None)
    )
    for start, num_cores in ((0, 4), (40, 1), (80, 3)):
        machine.limit(num_cores)
        part = Part(sequence=0, tokens=list(range(start, start + 40)), start=start)
        np.testing.assert_array_equal(changing.logits([part]), steady.logits([part]))
        assert pool.num_active == num_cores
    machine.limit(2)
    step = changing.step_of([Part(sequence=0, tokens=[1], start=120, sample=False)])
    changing.engines[0].step(step, None)
    assert pool.num_active == 2
