"""Tokens on their way to a gateway, several to a message where nobody waits for each.

A token that was generated goes at once: a client reads along. The scores of a prompt come hundreds
at a time, and are of use when all are there. Sent one by one they would fill what a gateway that
is busy holds of unread messages (``membership.client``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from potluck.types.sequence import CommittedToken

MAX_BATCH_TOKENS = 64
"""With 20 alternatives each, some 40 KiB: far below what a message may have."""


async def in_batches(
    tokens: AsyncGenerator[CommittedToken, None], num_prompt_tokens: int
) -> AsyncGenerator[tuple[CommittedToken, ...], None]:
    """``tokens`` of one sequence, in order; closed with this, it closes ``tokens``."""
    batch: list[CommittedToken] = []
    async with aclosing(tokens):
        async for token in tokens:
            batch.append(token)
            is_last = token.finish_reason is not None
            is_read = token.position >= num_prompt_tokens - 1
            if is_last or is_read or len(batch) == MAX_BATCH_TOKENS:
                yield tuple(batch)
                batch = []
