"""What a stage's totals say while a step is computed and while its result is sent."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

from support.cluster.edges import edge
from support.processes.waiting import eventually

from potluck.cluster.network.edges.frames import FrameKind
from potluck.cluster.wire.steps import StepEncoder
from potluck.cluster.worker.stage import Stage, StageTotals
from potluck.errors import EdgeClosedError, EngineError
from potluck.grammars.step_masks import StepMasks
from potluck.types.engine import StepResult
from potluck.types.program import Shard
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId

STEP = Step(
    step_id=StepId(0),
    slices=(
        SequenceSlice(
            sequence_id=SequenceId(0), tokens=(1,), start_position=0, block_table=(0,), sample=True
        ),
    ),
)


class Engine:
    """Computes when it is let."""

    def __init__(self) -> None:
        self.may_compute = threading.Semaphore(0)
        self.error: EngineError | None = None

    def step(self, step: Step, hidden: object, masks: object) -> StepResult:
        self.may_compute.acquire()
        if self.error is not None:
            raise self.error
        return StepResult(hidden=None, sampled=())


def test_a_stage_says_for_how_long_it_computes_and_sends() -> None:
    engine = Engine()
    with edge() as (steps, incoming), edge() as (outgoing, results):
        shard = Shard(start_layer=0, end_layer=1, num_layers=1, has_embedding=True, has_head=True)
        totals = StageTotals(computing_since=1.0)  # of an earlier epoch
        stage = Stage(cast(Any, engine), shard, 8, incoming, outgoing, totals, StepMasks(None))

        def run() -> None:
            try:
                stage.run()
            except EdgeClosedError:
                return

        thread = threading.Thread(target=run)
        thread.start()
        eventually(lambda: totals.busy_seconds == 0, within=5, what="it waits")
        for number, error in enumerate((None, EngineError("not finite"))):
            engine.error = error
            steps.send(FrameKind.STEP, StepId(number), StepEncoder().encode(STEP))
            eventually(lambda: totals.busy_seconds > 0.05, within=5, what="it computes")
            assert totals.sending_seconds == 0
            engine.may_compute.release()
            results.receive(20)
            eventually(
                lambda: totals.busy_seconds == totals.sending_seconds == 0,
                within=5,
                what="it waits again",
            )
        assert totals.num_steps == 1
        assert 0 < totals.cpu_seconds < totals.compute_seconds / 2, "it waited most of the time"
        assert totals.times.slowdown(time.perf_counter()) is None
        totals.sending_since = time.perf_counter() - 2
        assert 1.9 < totals.sending_seconds < 60
        incoming.close()
        thread.join(20)
