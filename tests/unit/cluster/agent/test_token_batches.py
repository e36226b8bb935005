"""Tokens that are sent to a gateway together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from potluck.cluster.agent.token_batches import MAX_BATCH_TOKENS, in_batches
from potluck.types.sequence import CommittedToken
from potluck.types.step import SequenceId


def committed(position: int) -> CommittedToken:
    return CommittedToken(
        sequence_id=SequenceId(0),
        token=position,
        position=position,
        logprob=-1.0,
        top=(),
        finish_reason=None,
    )


def batches(positions: range, num_prompt_tokens: int) -> list[list[int]]:
    async def stream() -> AsyncGenerator[CommittedToken, None]:
        for position in positions:
            yield committed(position)

    async def gather() -> list[list[int]]:
        return [
            [token.position for token in batch]
            async for batch in in_batches(stream(), num_prompt_tokens)
        ]

    return asyncio.run(gather())


def test_generated_tokens_go_one_by_one() -> None:
    assert batches(range(5, 9), 5) == [[5], [6], [7], [8]]


@pytest.mark.parametrize("num_new", [0, 3])
def test_scores_go_together_and_wait_for_no_generated_token(num_new: int) -> None:
    most = MAX_BATCH_TOKENS
    num_prompt = 2 * most + 11
    got = batches(range(1, num_prompt + num_new), num_prompt)
    assert [len(batch) for batch in got] == [most, most, 10] + [1] * num_new
    assert [position for batch in got for position in batch] == list(range(1, num_prompt + num_new))


def test_the_source_is_closed_with_it() -> None:
    is_closed = False

    async def stream() -> AsyncGenerator[CommittedToken, None]:
        nonlocal is_closed
        try:
            for position in range(5, 100):
                yield committed(position)
        finally:
            is_closed = True

    async def take_one() -> None:
        batched = in_batches(stream(), 5)
        await anext(batched)
        await batched.aclose()

    asyncio.run(take_one())
    assert is_closed
