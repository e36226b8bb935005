"""Stages in one process: a thread each, joined by queues.

Every stage runs the steps in the order in which they were submitted, so several steps can be in
flight, each at another stage. A stage's engine computes without the interpreter's lock.
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
from potluck.serving.pipeline import OnOutcome, StepOutcome
from potluck.types.engine import NO_MASKS, Engine, StepResult
from potluck.types.step import Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from potluck.grammars.vocabulary import Vocabulary

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    step: Step
    hidden: NDArray[np.float32] | None


class LocalPipeline:
    """Runs steps through ``engines``, the first stage first.

    A ``Pipeline``; ``on_outcome`` is called on the thread of the stage that ended the step. The
    engines are closed by :meth:`close`. ``open_vocabulary`` is called when the first sequence with
    a grammar comes; without it those are refused.
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
        """Queue a step; returns at once."""
        self._inboxes[0].put(_Work(step=step, hidden=None))

    def close(self) -> None:
        """Finish what is queued, end the threads and close the engines. Idempotent."""
        for inbox, thread in zip(self._inboxes, self._threads, strict=True):
            inbox.put(None)
            thread.join()
        for engine in self._engines:
            engine.close()

    def _run(self, index: int) -> None:
        engine = self._engines[index]
        is_last = index == len(self._engines) - 1
        while (work := self._inboxes[index].get()) is not None:
            outcome = _compute(engine, work, self._masks if is_last else None)
            if isinstance(outcome, PotluckError):
                self._on_outcome(StepOutcome(step=work.step, error=outcome))
            elif is_last:
                sampled = self._masks.marked(outcome.sampled)
                self._on_outcome(StepOutcome(step=work.step, sampled=sampled))
                self._masks.after(work.step, outcome.sampled)
            else:
                self._inboxes[index + 1].put(_Work(step=work.step, hidden=outcome.hidden))


def _compute(engine: Engine, work: _Work, masks: StepMasks | None) -> StepResult | PotluckError:
    try:
        allowed = NO_MASKS if masks is None else masks.before(work.step)
        return engine.step(work.step, work.hidden, allowed)
    except PotluckError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a stage is a worker's boundary: nobody may hang on it
        _log.debug("a stage failed", exc_info=True)  # the error says it to whoever waits
        reason = str(error).strip().partition("\n")[0]
        return EngineError(
            f"a stage failed: {type(error).__name__}: {reason}",
            hint="this is a fault of Potluck: please report it, with what --debug shows",
        )
