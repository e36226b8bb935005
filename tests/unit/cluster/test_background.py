"""Threads that cannot be started."""

from __future__ import annotations

import asyncio
import threading

import pytest

from potluck.cluster.background import on_thread
from potluck.errors import EngineError


def test_work_that_gets_no_thread_fails_as_other_work_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refused)
            failing = on_thread(int, name="test")
        with pytest.raises(EngineError, match="cannot start a thread: can't start new thread"):
            await failing
        assert await on_thread(int, name="test") == 0

    asyncio.run(run())
