"""Who is let in, and what those are told who are not."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest
from support.processes.waiting import until
from support.virtual_time.run import ManualClock

from potluck.api.admission import Admission
from potluck.api.config import ApiConfig, ApiLimits
from potluck.api.errors import ApiError
from potluck.api.server import _listen


async def refused_after(admission: Admission) -> int:
    with pytest.raises(ApiError) as refused:
        async with admission.slot():
            pass
    assert refused.value.status == 429
    return int(refused.value.headers["Retry-After"])


@pytest.mark.parametrize(
    ("waited", "retry_after"), [((0.0,), 2), ((30.0,), 30), ((500.0,), 60), ((8.0, 8.0, 0.0), 8)]
)
def test_those_refused_are_told_when_a_request_ends(
    waited: tuple[float, ...], retry_after: int
) -> None:
    """``waited``: seconds from one end of a request to the next, and from the last one to now."""

    async def main() -> None:
        clock = ManualClock(1000.0)
        admission = Admission(ApiLimits(max_concurrent_requests=1, max_queued_requests=1), clock)
        ends = [asyncio.Event() for _ in range(len(waited) + 1)]

        async def request(end: asyncio.Event) -> None:
            async with admission.slot():
                await end.wait()

        def one_waits() -> bool:
            return (admission.num_running, admission.num_queued) == (1, 1)

        async with AsyncExitStack() as stack:
            tasks = [asyncio.create_task(request(end)) for end in ends[:2]]
            stack.callback(lambda: [task.cancel() for task in tasks])
            await until(one_waits)
            for number, seconds in enumerate(waited[:-1]):
                clock.now += seconds
                ends[number].set()
                await tasks[number]
                tasks.append(asyncio.create_task(request(ends[number + 2])))
                await until(one_waits)
            clock.now += waited[-1]
            assert await refused_after(admission) == retry_after

    asyncio.run(main())


def test_times_without_a_queue_do_not_count() -> None:
    async def main() -> None:
        clock = ManualClock(1000.0)
        admission = Admission(ApiLimits(max_concurrent_requests=1, max_queued_requests=1), clock)
        for _ in range(3):
            async with admission.slot():
                clock.now += 50
        async with admission.slot():
            clock.now += 50
            waiting = asyncio.create_task(admission.slot().__aenter__())
            await asyncio.sleep(0)
            assert await refused_after(admission) == 2
            waiting.cancel()

    asyncio.run(main())


def test_machines_of_clients_that_vanish_are_noticed() -> None:
    """Requests that wait are sent nothing, so nothing else would tell."""
    with _listen(ApiConfig()) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 20
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
