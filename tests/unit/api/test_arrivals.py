"""Updates of several sequences on their way to the task that answers a request."""

from __future__ import annotations

import asyncio

from potluck.api.answer import Arrivals
from potluck.errors import EngineError
from potluck.types.sequence import SequenceUpdate

NOTHING = SequenceUpdate(tokens=())


def test_all_that_came_is_taken_at_once_in_order() -> None:
    async def run() -> None:
        arrivals = Arrivals(tick_seconds=10.0)
        error = EngineError("lost")
        taking = asyncio.ensure_future(arrivals.take())
        await asyncio.sleep(0)
        for index, update in ((1, NOTHING), (0, NOTHING), (1, error)):
            arrivals.put(index, update)
        assert await taking == [(1, NOTHING), (0, NOTHING), (1, error)]
        arrivals.put(0, NOTHING)
        assert await asyncio.wait_for(arrivals.take(), 20) == [(0, NOTHING)]
        arrivals.close()

    asyncio.run(run())


def test_a_tick_wakes_who_waits_and_does_not_count_while_nobody_does() -> None:
    async def run() -> None:
        arrivals = Arrivals(tick_seconds=0.02)
        await asyncio.sleep(0.05)
        started = asyncio.get_running_loop().time()
        assert await asyncio.wait_for(arrivals.take(), 20) == []
        assert asyncio.get_running_loop().time() - started > 0.001
        arrivals.close()

    asyncio.run(run())


def test_a_cancelled_task_loses_nothing_that_came() -> None:
    async def run() -> None:
        arrivals = Arrivals(tick_seconds=10.0)
        taking = asyncio.ensure_future(arrivals.take())
        await asyncio.sleep(0)
        taking.cancel()
        arrivals.put(0, NOTHING)
        await asyncio.gather(taking, return_exceptions=True)
        assert await asyncio.wait_for(arrivals.take(), 20) == [(0, NOTHING)]
        arrivals.close()

    asyncio.run(run())


def test_closed_arrivals_leave_no_timer() -> None:
    async def run() -> None:
        arrivals = Arrivals(tick_seconds=0.02)
        assert await arrivals.take() == []
        arrivals.close()
        timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert all(timer.cancelled() for timer in timers)

    asyncio.run(run())
