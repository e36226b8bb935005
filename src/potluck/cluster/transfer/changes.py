"""The one lock of the board, and notification when something on it changes."""

from __future__ import annotations

import os
import threading


class Changes(threading.Condition):
    """A condition over a reentrant lock that also wakes threads which poll descriptors.

    All parts of the board share one. Hold it while their state is read or changed.
    """

    def __init__(self) -> None:
        super().__init__(threading.RLock())
        self._wakers: set[int] = set()

    def add_waker(self, descriptor: int) -> None:
        """Register an ``eventfd(2)`` that is written to when something changes."""
        with self:
            self._wakers.add(descriptor)

    def drop_waker(self, descriptor: int) -> None:
        """Stop writing to a descriptor."""
        with self:
            self._wakers.discard(descriptor)

    def wake(self) -> None:
        """Wake all threads that wait for the condition or poll a waker. The lock must be held."""
        self.notify_all()
        for descriptor in self._wakers:
            os.eventfd_write(descriptor, 1)
