"""A bound on what others can have this process write to its log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class LogRate:
    """Lets a number of lines through in each period and counts the others.

    A period begins with the first line after the one before has ended. Not thread-safe.
    """

    def __init__(
        self, *, lines: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines = lines
        self._seconds = seconds
        self._clock = clock
        self._ends_at = clock()
        self._num_seen = 0

    def allows(self) -> bool:
        """Count one line; return whether it may be written."""
        if self._clock() >= self._ends_at and self.num_suppressed == 0:
            self._ends_at = self._clock() + self._seconds
            self._num_seen = 0
        self._num_seen += 1
        return self._num_seen <= self._lines

    @property
    def num_suppressed(self) -> int:
        """How many lines have not been written and not been taken yet."""
        return max(0, self._num_seen - self._lines)

    @property
    def ends_at(self) -> float | None:
        """When suppressed lines should be reported (on the clock given); None without any."""
        return self._ends_at if self.num_suppressed else None

    def take(self) -> int:
        """Return the number of suppressed lines once their period has ended, otherwise 0."""
        if self._clock() < self._ends_at:
            return 0
        number = self.num_suppressed
        self._num_seen = min(self._num_seen, self._lines)
        return number


class LogRateFilter(logging.Filter):
    """Passes a message once in ``seconds``; its next line says how many were left out meanwhile.

    Add it to a logger (``Logger.addFilter``). Messages are told apart by their text before
    arguments are filled in. Errors that are logged with a traceback count as any other.
    """

    def __init__(
        self, seconds: float = 10.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._rates: dict[str, LogRate] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether ``record`` is logged."""
        message = str(record.msg)
        rate = self._rates.get(message)
        if rate is None:
            rate = self._rates[message] = LogRate(lines=1, seconds=self._seconds, clock=self._clock)
        left_out = rate.take()
        if not rate.allows():
            return False
        if left_out:
            record.msg = f"{message} ({left_out} similar messages suppressed)"
        return True
