"""Draft with a small in-process model for another one."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.types.sequence import Cancel, OnUpdate, SequenceRequest

_log = logging.getLogger(__name__)

_END_SECONDS = 5.0

_Work = Callable[[], None]


class DraftingThread:
    """Sends requests to the dispatcher of a small model, and handles its results in a separate
    thread, since neither of the two dispatchers may wait for the other's lock.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._posted: SimpleQueue[tuple[float, _Work] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="drafts", daemon=True)
        self._thread.start()

    def post(self, seconds: float, work: _Work) -> None:
        """Run ``work`` in the thread after ``seconds``. May be called from any thread."""
        self._posted.put((time.monotonic() + seconds, work))

    def start(self, request: SequenceRequest, on_update: OnUpdate) -> Cancel:
        """Start a request to the small model. Raise the errors of ``Dispatcher.add``."""

        def subscriber(update: Update) -> None:
            self.post(0.0, lambda: on_update(update))

        sequence_id = self._dispatcher.add(request, subscriber)
        return lambda: self._dispatcher.cancel(sequence_id)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._posted.put(None)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        numbers = itertools.count()
        due: list[tuple[float, int, _Work]] = []
        while True:
            wait = max(0.0, due[0][0] - time.monotonic()) if due else None
            try:
                posted = self._posted.get(timeout=wait)
            except Empty:
                self._do(heapq.heappop(due)[2])
                continue
            if posted is None:
                return
            at, work = posted
            if at <= time.monotonic():
                self._do(work)
            else:
                heapq.heappush(due, (at, next(numbers), work))

    def _do(self, work: _Work) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - the boundary of the thread
            _log.exception("a draft failed")
