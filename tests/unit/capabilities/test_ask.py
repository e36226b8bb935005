"""How long the caller waits."""

import math
import time
from collections.abc import Callable

import pytest

from potluck.capabilities import ask
from potluck.types.capabilities import DeviceCapabilities


@pytest.mark.parametrize("seconds", [math.inf, 1e300])
def test_a_caller_may_wait_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    ends = []

    def probe(tell: Callable[[DeviceCapabilities], None], end: float, **_: object) -> None:
        ends.append(end - time.monotonic())
        tell(ask.unknown_node("looked at"))

    monkeypatch.setattr(ask, "_probe", probe)
    assert ask.device_capabilities(timeout_seconds=seconds).reason == "looked at"
    assert 3600 < ends[0] <= 86400  # poll(2) takes milliseconds in 31 bits
