"""Answers of several sequences, merged into one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from potluck.api.answer import merge


def test_a_source_that_was_cancelled_within_ends_the_whole() -> None:
    """Otherwise the client would wait for it without end."""

    async def source() -> AsyncGenerator[int, None]:
        yield 1
        waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waited.cancel()
        await waited

    async def run() -> None:
        async with asyncio.timeout(2):
            async for _ in merge([source()], tick_seconds=10.0):
                pass

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
