"""A clock that only the test moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ManualClock:
    now: float

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
