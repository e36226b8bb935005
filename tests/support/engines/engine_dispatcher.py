"""Requests served by engines in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from support.engines.native_pipeline import CONTEXT_TOKENS

from potluck.errors import PotluckError
from potluck.local.pipeline import LocalPipeline
from potluck.scheduling.dispatcher import Dispatcher
from potluck.scheduling.ledger import Update
from potluck.scheduling.limits import SchedulerLimits
from potluck.types.engine import Engine
from potluck.types.sequence import CommittedToken, SequenceRequest


@contextmanager
def dispatcher(
    engines: Sequence[Engine], max_step_tokens: int, num_blocks: int = 100
) -> Iterator[Dispatcher]:
    limits = SchedulerLimits(
        num_blocks=num_blocks,
        context_tokens=min(CONTEXT_TOKENS, num_blocks * 16),
        max_step_tokens=max_step_tokens,
        max_step_sequences=min(8, max_step_tokens),
        max_steps_in_flight=len(engines),
    )
    opened = Dispatcher(limits)
    opened.attach(lambda on_outcome: LocalPipeline(engines, on_outcome), limits)
    try:
        yield opened
    finally:
        opened.close()


def start(opened: Dispatcher, request: SequenceRequest) -> SimpleQueue[Update]:
    updates: SimpleQueue[Update] = SimpleQueue()
    opened.add(request, updates.put)
    return updates


def received(updates: SimpleQueue[Update]) -> list[CommittedToken]:
    tokens: list[CommittedToken] = []
    while not tokens or tokens[-1].finish_reason is None:
        update = updates.get(timeout=60)
        assert not isinstance(update, PotluckError), update
        tokens.append(update.tokens[0])
    return tokens
