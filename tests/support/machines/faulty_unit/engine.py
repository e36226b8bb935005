"""The engine of the played GPU (``engines.backends.EngineModule``)."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from support.machines.faulty_unit import ABILITIES, Misbehaviour, misbehaviour

from potluck.engines.native import backend as native_backend
from potluck.engines.native.engine import NativeEngine
from potluck.errors import UnitFaultError
from potluck.types.engine import NO_MASKS, StepResult
from potluck.types.program import Program
from potluck.types.step import Step
from potluck.types.tensor import TensorInfo, TensorSink
from potluck.types.unit import Fault, UnitAddress

if TYPE_CHECKING:
    from potluck.types.engine import Exchange, ExpertUse, TokenMasks


class _Cost(native_backend.NativeCost):
    """Of a device: no arithmetic of its is that of CPUs, and nothing is mapped."""

    abilities = ABILITIES


COST = _Cost()

_FOR_EVER_SECONDS = 600


def open_engine(address: UnitAddress, program: Program, **options: Any) -> FaultyEngine:
    """The native engine inside."""
    inner = dataclasses.replace(address, variant="")
    return FaultyEngine(native_backend.open_engine(inner, program, **options))


class FaultyEngine:
    """Computes as the native engine does, until it misbehaves."""

    def __init__(self, engine: NativeEngine) -> None:
        self._engine = engine

    @property
    def weights_bytes(self) -> int:
        return self._engine.weights_bytes

    @property
    def expert_use(self) -> ExpertUse:
        return self._engine.expert_use

    def sink(self) -> TensorSink:
        return _Sink(self._engine.sink())

    def join_group(self, exchange: Exchange | None) -> None:
        self._engine.join_group(exchange)

    def warm_up(self) -> None:
        self._engine.warm_up()

    def step(
        self, step: Step, hidden: NDArray[np.float32] | None, masks: TokenMasks = NO_MASKS
    ) -> StepResult:
        match misbehaviour():
            case Misbehaviour.HANG:
                time.sleep(_FOR_EVER_SECONDS)
            case Misbehaviour.HOG:
                ctypes.PyDLL(None).sleep(_FOR_EVER_SECONDS)  # which keeps the interpreter's lock
            case Misbehaviour.DRIVER:
                raise UnitFaultError(Fault.DRIVER.value, "the context is lost")
            case Misbehaviour.CRASH:
                os.kill(os.getpid(), signal.SIGSEGV)
            case Misbehaviour.EXIT:
                os._exit(77)
            case Misbehaviour.NAN:
                result = self._engine.step(step, hidden)
                if result.hidden is None:  # as an engine must, whose logits nobody else sees
                    raise UnitFaultError(Fault.NOT_FINITE.value, "its logits are not finite")
                result.hidden[-1, -1] = np.nan
                return result
        return self._engine.step(step, hidden, masks)

    def logits(self, step: Step, hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        return self._engine.logits(step, hidden)

    def reset(self) -> None:
        self._engine.reset()

    def close(self) -> None:
        self._engine.close()


class _Sink:
    def __init__(self, sink: TensorSink) -> None:
        self._sink = sink

    def begin(self, info: TensorInfo) -> None:
        if misbehaviour() is Misbehaviour.NO_MEMORY:
            raise UnitFaultError(Fault.OUT_OF_MEMORY.value, f"no room for {info.name}")
        self._sink.begin(info)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        if misbehaviour() is Misbehaviour.HANG_LOADING:
            time.sleep(_FOR_EVER_SECONDS)
        self._sink.write_rows(name, start_row, end_row, data)

    def finish(self, name: str) -> None:
        self._sink.finish(name)
