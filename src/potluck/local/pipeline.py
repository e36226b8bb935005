"""Stages in one process: one thread per stage, connected by queues.

Every stage runs the steps in the order in which they were submitted, so several steps can be in
flight, each on a different stage. A stage's engine computes without holding the GIL. Stages skip
cancelled steps that they have not begun.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

from potluck.errors import EngineError, PotluckError
from potluck.grammars.limits import STAGE_STACK_BYTES
from potluck.grammars.step_masks import StepMasks
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.types.engine import NO_MASKS, Engine, StepResult
from potluck.types.step import Step, StepId

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from potluck.grammars.vocabulary import Vocabulary

_log = logging.getLogger(__name__)


_NOTHING = StepResult(hidden=None, sampled=())


@dataclass(slots=True)
class _Work:
    """A step in flight. It has no ``hidden`` after it is skipped."""

    step: Step
    hidden: NDArray[np.float32] | None = None
    is_cancelled: bool = False
    is_skipped: bool = False


class LocalPipeline:
    """Runs steps through ``engines``, the first stage first.

    A ``Pipeline``; ``on_outcome`` is called in the thread of the stage that ended the step.
    :meth:`close` closes the engines. ``open_vocabulary`` is called for the first sequence with a
    grammar; without it, such sequences are refused.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        on_outcome: OnOutcome,
        open_vocabulary: Callable[[], Vocabulary] | None = None,
    ) -> None:
        self._engines = tuple(engines)
        self._masks = StepMasks(open_vocabulary)
        self._on_outcome = on_outcome
        self._inboxes: list[SimpleQueue[_Work | None]] = [SimpleQueue() for _ in engines]
        self._in_flight: dict[StepId, _Work] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(index,), name=f"stage-{index}", daemon=True)
            for index in range(len(self._engines))
        ]
        before = threading.stack_size(STAGE_STACK_BYTES)
        try:
            for thread in self._threads:
                thread.start()
        finally:
            threading.stack_size(before)

    def submit(self, step: Step) -> None:
        """Queue a step, and return immediately."""
        for step_id in step.cancels:
            cancelled = self._in_flight.get(step_id)
            if cancelled is not None and cancelled.step.can_be_skipped:
                cancelled.is_cancelled = True
        work = self._in_flight[step.step_id] = _Work(step)
        self._inboxes[0].put(work)

    def close(self) -> None:
        """Finish queued steps, end the threads and close the engines. Idempotent."""
        for inbox, thread in zip(self._inboxes, self._threads, strict=True):
            inbox.put(None)
            thread.join()
        for engine in self._engines:
            engine.close()

    def _run(self, index: int) -> None:
        engine = self._engines[index]
        is_last = index == len(self._engines) - 1
        while (work := self._inboxes[index].get()) is not None:
            work.is_skipped = work.is_skipped or work.is_cancelled
            if work.is_skipped:
                result: StepResult | PotluckError = _NOTHING
            else:
                result = _compute(engine, work, self._masks if is_last else None)
            if isinstance(result, PotluckError):
                self._end(work, StepOutcome(step=work.step, error=result))
            elif not is_last:
                work.hidden = result.hidden
                self._inboxes[index + 1].put(work)
            elif work.is_skipped:
                self._end(work, StepOutcome(step=work.step, is_skipped=True))
            else:
                sampled = self._masks.marked(result.sampled)
                self._end(work, StepOutcome(step=work.step, sampled=sampled))
                self._masks.after(work.step, result.sampled)

    def _end(self, work: _Work, outcome: StepOutcome) -> None:
        self._in_flight.pop(work.step.step_id, None)
        self._on_outcome(outcome)


def _compute(engine: Engine, work: _Work, masks: StepMasks | None) -> StepResult | PotluckError:
    try:
        allowed = NO_MASKS if masks is None else masks.before(work.step)
        return engine.step(work.step, work.hidden, allowed)
    except PotluckError as error:
        return error
    except Exception as error:  # noqa: BLE001 - an error must not make clients hang
        _log.debug("a stage failed", exc_info=True)  # the error is passed to the client
        reason = str(error).strip().partition("\n")[0]
        return EngineError(
            f"a stage failed: {type(error).__name__}: {reason}",
            hint="this is a bug in Potluck: please report it, with the output of --debug",
        )
