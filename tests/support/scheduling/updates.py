"""Sequences as generators of tokens, and generators as sequences that are started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from potluck.types.sequence import Cancel, CommittedToken, OnUpdate, SequenceUpdate


async def updates_of(start: Callable[[OnUpdate], Cancel]) -> AsyncGenerator[SequenceUpdate, None]:
    """Yield the updates of one sequence; closing it cancels the sequence. Raises what ends it."""
    updates: asyncio.Queue[SequenceUpdate | Exception] = asyncio.Queue()
    cancel = start(updates.put_nowait)
    try:
        while True:
            update = await updates.get()
            if isinstance(update, Exception):
                raise update
            yield update
            if update.tokens[-1].finish_reason is not None:
                return
    finally:
        cancel()


async def tokens_of(
    start: Callable[[OnUpdate], Cancel],
) -> AsyncGenerator[CommittedToken, None]:
    """The tokens of a sequence that ``start`` starts; closed, it cancels the sequence."""
    async with aclosing(updates_of(start)) as updates:
        async for update in updates:
            for token in update.tokens:
                yield token


def start_of(tokens: AsyncGenerator[CommittedToken, None], on_update: OnUpdate) -> Cancel:
    """Tell the items of ``tokens`` one by one, then what it raises, on a task of its own."""

    async def tell() -> None:
        try:
            async with aclosing(tokens):
                async for token in tokens:
                    on_update(SequenceUpdate(tokens=(token,)))
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            on_update(error)

    task = asyncio.ensure_future(tell())

    def cancel() -> None:
        task.cancel()

    return cancel
