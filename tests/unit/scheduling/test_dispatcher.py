"""The dispatcher over an in-process pipeline whose engines compute nothing."""

from __future__ import annotations

import logging
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import pytest
from support.scheduling.toy_pipeline import ToyPipeline, expected_tokens

from potluck.errors import EngineError, PotluckError
from potluck.local.pipeline import LocalPipeline
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.scheduling.limits import SchedulerLimits
from potluck.types.engine import NO_MASKS, StepResult
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams, SequenceId, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from potluck.types.engine import TokenMasks
    from potluck.types.tensor import TensorSink


class ToyEngine:
    """The last stage computes the toy model; the others only pass on. Can be told to fail."""

    def __init__(self, *, is_last: bool, failure: Exception | None = None) -> None:
        self._toy = ToyPipeline() if is_last else None
        self._failure = failure
        self.is_closed = False
        self.gate = threading.Event()
        self.gate.set()

    def sink(self) -> TensorSink:
        raise AssertionError("not used")

    def step(
        self, step: Step, hidden: NDArray[np.float32] | None, masks: TokenMasks = NO_MASKS
    ) -> StepResult:
        self.gate.wait(10)
        if self._failure is not None:
            raise self._failure
        if self._toy is None:
            return StepResult(hidden=None, sampled=())
        self._toy.submit(step)
        return StepResult(hidden=None, sampled=self._toy.run_oldest()[1])

    def logits(self, step: Step, hidden: NDArray[np.float32] | None) -> NDArray[np.float32]:
        raise AssertionError("not used")

    def reset(self) -> None:
        raise AssertionError("not used")

    def close(self) -> None:
        self.is_closed = True


def dispatcher_of(*engines: ToyEngine) -> Dispatcher:
    limits = SchedulerLimits(
        num_blocks=16,
        context_tokens=128,
        max_step_tokens=32,
        max_step_sequences=4,
        max_steps_in_flight=len(engines),
    )
    dispatcher = Dispatcher(limits)
    dispatcher.attach(lambda on_outcome: LocalPipeline(engines, on_outcome), limits)
    return dispatcher


def request(first_token: int, num_new: int) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=tuple(range(first_token, first_token + 40)),
        sampling=SamplingParams(),
        max_new_tokens=num_new,
    )


def add(
    dispatcher: Dispatcher, sequence: SequenceRequest
) -> tuple[SequenceId, SimpleQueue[Update]]:
    updates: SimpleQueue[Update] = SimpleQueue()
    return dispatcher.add(sequence, updates.put), updates


def receive(updates: SimpleQueue[Update]) -> list[int]:
    tokens = []
    while True:
        update = updates.get(timeout=10)
        if isinstance(update, PotluckError):
            raise update
        tokens.append(update.tokens[0].token)
        if update.tokens[0].finish_reason is not None:
            return tokens


def test_concurrent_sequences_over_three_stages_get_their_own_texts() -> None:
    dispatcher = dispatcher_of(
        ToyEngine(is_last=False), ToyEngine(is_last=False), ToyEngine(is_last=True)
    )
    requests = [request(number, 20 + number) for number in range(6)]
    queues = [add(dispatcher, each)[1] for each in requests]
    for each, updates in zip(requests, queues, strict=True):
        assert receive(updates) == expected_tokens(each.prompt_tokens, each.max_new_tokens or 0)
    assert dispatcher.load.num_free_blocks == 16
    dispatcher.close()


def test_a_failing_stage_fails_its_sequences_and_frees_their_blocks() -> None:
    failing = ToyEngine(is_last=False, failure=EngineError("the cable is out"))
    dispatcher = dispatcher_of(failing, ToyEngine(is_last=True))
    _, updates = add(dispatcher, request(0, 5))
    with pytest.raises(EngineError, match="the cable is out"):
        receive(updates)
    assert dispatcher.load.num_free_blocks == 16
    dispatcher.close()


def test_a_crash_in_a_stage_is_reported_and_hangs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    failure = RuntimeError("boom\nand a second line")
    dispatcher = dispatcher_of(ToyEngine(is_last=True, failure=failure))
    _, updates = add(dispatcher, request(0, 5))
    with pytest.raises(EngineError, match=r"RuntimeError: boom$"):
        receive(updates)
    (record,) = [record for record in caplog.records if record.message == "a stage failed"]
    assert record.levelno == logging.DEBUG, "tracebacks are for --debug"
    assert record.exc_info is not None
    dispatcher.close()


def test_cancel_frees_the_blocks_while_a_step_is_in_flight() -> None:
    engine = ToyEngine(is_last=True)
    engine.gate.clear()
    dispatcher = dispatcher_of(engine)
    sequence_id, updates = add(dispatcher, request(0, 50))
    assert dispatcher.load.num_free_blocks == 13
    dispatcher.cancel(sequence_id)
    assert dispatcher.load.num_free_blocks == 16
    engine.gate.set()
    dispatcher.close()
    assert updates.empty()


def test_close_ends_live_sequences_and_closes_the_engines() -> None:
    engine = ToyEngine(is_last=True)
    engine.gate.clear()
    dispatcher = dispatcher_of(engine)
    _, updates = add(dispatcher, request(0, 50))
    threading.Timer(0.05, engine.gate.set).start()
    dispatcher.close()
    dispatcher.close()
    with pytest.raises(EngineError, match="was closed"):
        receive(updates)
    assert engine.is_closed
    with pytest.raises(EngineError, match="is closed"):
        add(dispatcher, request(0, 1))
