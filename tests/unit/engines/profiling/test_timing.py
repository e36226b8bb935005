"""How long steps take, also where a control group's quota holds them up."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from potluck.engines.profiling import rate_program
from potluck.engines.profiling.rate_program import Stopwatch, best_seconds
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId

STEP = Step(
    step_id=StepId(0),
    slices=(
        SequenceSlice(
            sequence_id=SequenceId(0), tokens=(0, 0), start_position=0, block_table=(), sample=False
        ),
    ),
)


class Machine:
    """Time as it passes for work that is held up, or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.computed = 0.0
        self.num_throttled = 5
        clocks = SimpleNamespace(perf_counter=lambda: self.now, process_time=lambda: self.computed)
        monkeypatch.setattr(rate_program, "time", clocks)

    def work(self, seconds: float, *, threads: int = 1, held_up: float = 0.0) -> Callable[[], None]:
        def do() -> None:
            self.now += seconds + held_up
            self.computed += threads * seconds
            self.num_throttled += held_up > 0

        return do

    def stopwatch(self, num_threads: int | None) -> Stopwatch:
        return Stopwatch(num_threads, lambda: self.num_throttled)


@pytest.mark.parametrize("threads", [1, 2])
def test_time_for_which_a_quota_holds_work_up_does_not_count(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    machine = Machine(monkeypatch)
    held = machine.work(0.012, threads=threads, held_up=0.18)
    assert machine.stopwatch(threads).seconds(held) == pytest.approx(0.012)
    # Of a device that is not the CPU nothing is known but how long it took.
    assert machine.stopwatch(None).seconds(held) == pytest.approx(0.192)


def test_threads_that_wait_for_one_another_take_the_time_that_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    idle = machine.work(0.010, threads=1)  # of four
    assert machine.stopwatch(4).seconds(idle) == pytest.approx(0.010)


def test_the_best_of_rounds_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    rounds = iter(
        [
            machine.work(0.02),
            machine.work(0.008, held_up=0.5),
            machine.work(0.01),
            machine.work(0.03),
        ]
    )

    class Engine:
        def step(self, step: Step, hidden: Any) -> None:
            assert hidden.shape == (2, 16)
            next(rounds)()

    engines = cast(Any, [Engine()])
    assert best_seconds(engines, STEP, 16, 0.55, machine.stopwatch(1)) == pytest.approx(0.008)
    assert len(list(rounds)) == 0
    with pytest.raises(StopIteration):
        best_seconds(engines, STEP, 16, 0.0, machine.stopwatch(1))


def test_real_time_passes() -> None:
    assert Stopwatch(1).seconds(lambda: time.sleep(0.02)) >= 0.02
    assert Stopwatch().seconds(lambda: time.sleep(0.02)) >= 0.02
