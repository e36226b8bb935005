"""An engine on a unit that may fail: its calls are watched, and its results checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.cluster.worker.watch import (
    COMPILING_TIMES,
    LONGEST_STEP_TIMES,
    STEP_TOKENS,
    CallWatch,
)
from potluck.engines.backends import open_engine
from potluck.errors import EngineError, UnitFaultError
from potluck.types.engine import NO_MASKS, BlockFormat, LoadableEngine, StepResult
from potluck.types.tensor import TensorInfo, TensorSink
from potluck.types.unit import Fault

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.types.engine import Exchange, ExpertUse, TokenMasks
    from potluck.types.program import Program
    from potluck.types.step import Step
    from potluck.types.unit import UnitAddress


def open_watched(
    watch: CallWatch, address: UnitAddress, program: Program, **options: Any
) -> WatchedEngine:
    """Open an engine like ``open_engine``, watched from here on: a driver may hang when it is
    opened.

    If a unit cannot be opened for a program, it has failed, since it has passed its trial.
    """
    with watch.call("opening the unit", times=COMPILING_TIMES), _refusals_are_faults():
        return WatchedEngine(open_engine(address, program, **options), watch)


class WatchedEngine:
    """An ``Engine`` that owns another. A step with non-finite results is a fault of the unit.

    Calls that take longer than the watch allows exit the process.
    """

    def __init__(self, engine: LoadableEngine, watch: CallWatch) -> None:
        self._engine = engine
        self._watch = watch

    @property
    def weights_bytes(self) -> int:
        """Return the size of the weights that the engine holds."""
        return self._engine.weights_bytes

    def sink(self) -> TensorSink:
        """Return where the weights go; each call is watched."""
        with self._watch.call("making room for the weights"):
            return _WatchedSink(self._engine.sink(), self._watch)

    def join_group(self, exchange: Exchange | None) -> None:
        """See ``LoadableEngine``."""
        self._engine.join_group(exchange)

    def warm_up(self) -> None:
        """See ``LoadableEngine``; compiling may take longer than a step.

        If a unit fails to compile something after it has passed its trial, that is its fault.
        """
        what = "compiling for the unit"
        with self._watch.call(what, times=COMPILING_TIMES), _refusals_are_faults():
            self._engine.warm_up()

    def step(
        self, step: Step, hidden: NDArray[np.float32] | None, masks: TokenMasks = NO_MASKS
    ) -> StepResult:
        """See ``Engine``. Raise ``UnitFaultError`` if a result is not finite."""
        with self._watch.call("a step", times=_times(step)):
            result = self._engine.step(step, hidden, masks)
        if _is_finite(result.hidden) or not _is_finite(hidden):
            return result  # invalid input is another stage's fault
        raise UnitFaultError(Fault.NOT_FINITE.value, "a step returned NaN or infinite values")

    def logits(self, step: Step, hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        """See ``Engine``."""
        with self._watch.call("a step", times=_times(step)):
            return self._engine.logits(step, hidden)

    @property
    def block_format(self) -> BlockFormat | None:
        """Same as the engine's."""
        return self._engine.block_format

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``."""
        with self._watch.call("reading cache blocks"):
            return self._engine.read_blocks(blocks)

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """See ``LoadableEngine``."""
        with self._watch.call("writing cache blocks"):
            self._engine.write_blocks(blocks, data)

    def read_states(self, states: Sequence[int]) -> NDArray[np.uint8]:
        """See ``LoadableEngine``."""
        with self._watch.call("reading states"):
            return self._engine.read_states(states)

    def write_states(self, states: Sequence[int], data: NDArray[np.uint8]) -> None:
        """See ``LoadableEngine``."""
        with self._watch.call("writing states"):
            self._engine.write_states(states, data)

    @property
    def expert_use(self) -> ExpertUse:
        """Same as the engine's."""
        return self._engine.expert_use

    def reset(self) -> None:
        """See ``Engine``."""
        with self._watch.call("resetting the sequences"):
            self._engine.reset()

    def close(self) -> None:
        """See ``Engine``."""
        with self._watch.call("releasing the unit's memory"):
            self._engine.close()


@contextmanager
def _refusals_are_faults() -> Iterator[None]:
    """Treat errors before the first step as faults: they would recur on the same unit."""
    try:
        yield
    except UnitFaultError:
        raise
    except EngineError as error:
        raise UnitFaultError(Fault.DRIVER.value, error.message, hint=error.hint) from error


class _WatchedSink:
    def __init__(self, sink: TensorSink, watch: CallWatch) -> None:
        self._sink = sink
        self._watch = watch

    def begin(self, info: TensorInfo) -> None:
        with self._watch.call(f"making room for {info.name}"):
            self._sink.begin(info)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        with self._watch.call(f"copying {name}"):
            self._sink.write_rows(name, start_row, end_row, data)

    def finish(self, name: str) -> None:
        with self._watch.call(f"copying {name}"):
            self._sink.finish(name)


def _times(step: Step) -> float:
    return min(LONGEST_STEP_TIMES, max(1.0, step.num_tokens / STEP_TOKENS))


def _is_finite(hidden: NDArray[np.float32] | None) -> bool:
    """Return whether all values are finite; the sum shows it in one pass, unless it overflows."""
    if hidden is None:
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.add.reduce(hidden, axis=None))
    return math.isfinite(total) or bool(np.isfinite(hidden).all())
