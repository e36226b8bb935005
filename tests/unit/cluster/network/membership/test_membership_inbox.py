from __future__ import annotations

import asyncio
import threading

import pytest

from potluck.cluster.network.membership.client import Inbox


def test_items_come_in_order_from_another_thread_and_then_the_end() -> None:
    async def body() -> None:
        inbox: Inbox[int] = Inbox(asyncio.get_running_loop(), max_items=10_000, max_bytes=10_000)

        def fill() -> None:
            for number in range(5000):
                inbox.offer(number, 1)
            inbox.close(EOFError())

        thread = threading.Thread(target=fill)
        thread.start()
        async with asyncio.timeout(40):
            assert [await inbox.get() for _ in range(5000)] == list(range(5000))
            with pytest.raises(EOFError):
                await inbox.get()
        thread.join()

    asyncio.run(body())


def test_both_bounds_hold() -> None:
    async def body() -> None:
        inbox: Inbox[str] = Inbox(asyncio.get_running_loop(), max_items=2, max_bytes=10)
        assert inbox.offer("a", 10)
        assert not inbox.offer("b", 1)
        assert inbox.offer("c", 0)
        assert not inbox.offer("d", 0)
        assert await inbox.get() == "a"
        assert inbox.offer("e", 10)
        assert [await inbox.get(), await inbox.get()] == ["c", "e"]

    asyncio.run(body())


def test_the_first_close_counts_and_may_discard() -> None:
    async def body() -> None:
        inbox: Inbox[str] = Inbox(asyncio.get_running_loop(), max_items=9, max_bytes=9)
        inbox.offer("kept", 1)
        assert inbox.close(KeyError("first"))
        assert not inbox.close(ValueError("second"), discard=True)
        assert not inbox.offer("late", 1)
        assert await inbox.get() == "kept"
        with pytest.raises(KeyError):
            await inbox.get()
        inbox = Inbox(asyncio.get_running_loop(), max_items=9, max_bytes=9)
        inbox.offer("dropped", 1)
        inbox.close(KeyError("first"), discard=True)
        with pytest.raises(KeyError):
            await inbox.get()

    asyncio.run(body())
