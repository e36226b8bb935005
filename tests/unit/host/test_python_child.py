"""Children that cannot be started."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from potluck.host.python_child import start_connected_child


def test_a_child_that_no_thread_can_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_thread(*given: Any, **options: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", without_thread)
    with pytest.raises(OSError, match="can't start new thread") as refused:
        asyncio.run(start_connected_child("json.tool", descriptors=()))
    assert refused.value.errno == errno.EAGAIN
