"""What is looked at between a stage and an engine whose unit may fail."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from potluck.cluster.worker.watch import CallWatch
from potluck.cluster.worker.watched_engine import WatchedEngine
from potluck.errors import EngineError, UnitFaultError
from potluck.types.engine import StepResult
from potluck.types.step import SequenceId


def a_step(num_tokens: int) -> Any:
    return SimpleNamespace(num_tokens=num_tokens)


STEP = a_step(1)


class Engine:
    """Gives ``hidden``, when it is let."""

    def __init__(self, hidden: NDArray[np.float32] | None) -> None:
        self.hidden = hidden
        self.may_end = threading.Event()
        self.may_end.set()

    def step(self, *arguments: object) -> StepResult:
        self.arguments = arguments
        self.may_end.wait(60)
        return StepResult(hidden=self.hidden, sampled=())

    begin = write_rows = step

    def warm_up(self) -> StepResult:
        return self.step()

    def sink(self) -> Engine:
        return self


def a_watch(reports: list[str], limit_seconds: float | None = None) -> CallWatch:
    return CallWatch(limit_seconds, lambda what, _: reports.append(what))


def matrix(*values: float) -> NDArray[np.float32]:
    return np.array([values], np.float32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_step_that_is_not_finite_is_a_fault(bad: float) -> None:
    engine = WatchedEngine(cast(Any, Engine(matrix(1, bad, 2))), a_watch([]))
    for hidden in (None, matrix(3, 4)):
        with pytest.raises(UnitFaultError) as raised:
            engine.step(STEP, hidden)
        assert raised.value.fault == "not finite"


def test_what_came_in_wrong_is_not_this_unit_s_fault() -> None:
    result = matrix(1, np.nan)
    engine = WatchedEngine(cast(Any, Engine(result)), a_watch([]))
    assert engine.step(STEP, matrix(np.nan, 1)).hidden is result


def test_masks_reach_the_engine() -> None:
    inner = Engine(None)
    masks = {SequenceId(0): np.ones(1, np.uint32)}
    WatchedEngine(cast(Any, inner), a_watch([])).step(STEP, None, masks)
    assert inner.arguments == (STEP, None, masks)


def test_large_numbers_are_finite_though_their_sum_is_not() -> None:
    result = np.full((4, 4), 3e38, np.float32)
    engine = WatchedEngine(cast(Any, Engine(result)), a_watch([]))
    assert engine.step(STEP, None).hidden is result
    last = WatchedEngine(cast(Any, Engine(None)), a_watch([]))
    assert last.step(STEP, None).hidden is None


@pytest.mark.parametrize(
    ("method", "arguments", "what"),
    [
        ("step", (STEP, None), "a step"),
        ("sink", ("name", 0, 1, memoryview(b"")), "copying name"),
    ],
)
def test_calls_that_do_not_return_are_told(
    method: str, arguments: tuple[object, ...], what: str
) -> None:
    inner = Engine(None)
    reports: list[str] = []

    def end(what: str, _: float) -> None:
        reports.append(what)
        inner.may_end.set()

    engine: Any = WatchedEngine(cast(Any, inner), CallWatch(0.05, end))
    inner.may_end.clear()
    if method == "sink":
        engine.sink().write_rows(*arguments)
    else:
        engine.step(*arguments)
    assert reports == [what]


@pytest.mark.slow
@pytest.mark.parametrize(("num_tokens", "is_late"), [(32, True), (320, False), (3200, False)])
def test_a_step_of_many_tokens_may_take_longer(num_tokens: int, is_late: bool) -> None:
    inner = Engine(None)
    reports: list[str] = []
    engine = WatchedEngine(cast(Any, inner), a_watch(reports, 0.5))
    inner.may_end.clear()
    threading.Timer(1.2, inner.may_end.set).start()
    engine.step(a_step(num_tokens), None)
    assert reports == (["a step"] if is_late else [])


def test_compiling_may_take_longer() -> None:
    inner = Engine(None)
    reports: list[str] = []
    engine = WatchedEngine(cast(Any, inner), a_watch(reports, 0.1))
    inner.may_end.clear()
    threading.Timer(0.4, inner.may_end.set).start()
    engine.warm_up()
    assert reports == []


@pytest.mark.parametrize("fault", ["", "out of memory"])
def test_what_a_unit_does_not_compile_is_its_fault(fault: str) -> None:
    error = UnitFaultError(fault, "no") if fault else EngineError("no such op")

    class Refuses(Engine):
        def warm_up(self) -> StepResult:
            raise error

    engine = WatchedEngine(cast(Any, Refuses(None)), a_watch([]))
    with pytest.raises(UnitFaultError, match="no") as raised:
        engine.warm_up()
    assert raised.value.fault == (fault or "driver error")
