"""Updates that are sent to a gateway together."""

from __future__ import annotations

from contextlib import aclosing

import msgspec
import pytest
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent import sequence_calls as module
from potluck.cluster.agent.sequence_calls import TokenFeed, _in_parts
from potluck.cluster.wire.calls import decode, encode
from potluck.cluster.wire.sequence_messages import GenerateFailure, TokenBatch
from potluck.errors import CallError, EngineError, OverloadedError
from potluck.types.sequence import Cancel, CommittedToken, FinishReason, OnUpdate, SequenceUpdate
from potluck.types.step import SequenceId, TokenLogprob


def committed(position: int, *, num_top: int = 0, is_last: bool = False) -> CommittedToken:
    return CommittedToken(
        sequence_id=SequenceId(7),
        token=1000 + position,
        position=position,
        logprob=-0.5 if num_top else None,
        top=tuple(TokenLogprob(token=each, logprob=-1.0 - each) for each in range(num_top)),
        finish_reason=FinishReason.LENGTH if is_last else None,
    )


def an_update(*positions: int, num_top: int = 0, is_last: bool = False) -> SequenceUpdate:
    tokens = [committed(each, num_top=num_top) for each in positions[:-1]]
    last = committed(positions[-1], num_top=num_top, is_last=is_last)
    return SequenceUpdate(tokens=(*tokens, last))


class Sequences:
    """Sequences that tell what they are told to tell."""

    def __init__(self) -> None:
        self.callbacks: list[OnUpdate] = []
        self.cancelled: list[int] = []

    def start(self, on_update: OnUpdate) -> Cancel:
        number = len(self.callbacks)
        self.callbacks.append(on_update)
        return lambda: self.cancelled.append(number)


def test_what_a_step_gives_all_sequences_is_one_part() -> None:
    async def test() -> None:
        feed, sequences = TokenFeed(), Sequences()
        for number in (3, 4, 5):
            feed.start(number, sequences.start)
        async with aclosing(feed.parts()) as parts:
            assert await anext(parts) == TokenBatch()
            for on_update in sequences.callbacks:
                on_update(an_update(5))
            part = decode(encode(await anext(parts)), TokenBatch)
            assert [(each.number, each.given) for each in part.fed] == [
                (number, an_update(5)) for number in (3, 4, 5)
            ]
            sequences.callbacks[1](an_update(6, is_last=True))
            sequences.callbacks[2](EngineError("lost"))
            part = await anext(parts)
            assert [each.number for each in part.fed] == [4, 5]
            assert isinstance(part.fed[1].given, GenerateFailure)
        assert feed.num_live == 1
        feed.stop(3)
        feed.stop(4)
        assert sequences.cancelled == [0]

    run_in_virtual_time(test())


def test_large_updates_are_cut_and_lose_nothing() -> None:
    update = SequenceUpdate(
        tokens=an_update(*range(1, 1500), num_top=20).tokens, num_cached_tokens=16
    )
    parts = list(_in_parts(update))
    assert len(parts) == 4
    assert all(len(encode(part)) < 200_000 for part in parts)
    assert [part.num_cached_tokens for part in parts] == [16, 0, 0, 0]
    assert tuple(token for part in parts for token in part.tokens) == update.tokens

    async def test() -> None:
        feed, sequences = TokenFeed(), Sequences()
        feed.start(0, sequences.start)
        async with aclosing(feed.parts()) as sent:
            await anext(sent)
            sequences.callbacks[0](update)
            got = [await anext(sent) for _ in range(4)]
        given = [each.given for part in got for each in part.fed]
        assert all(isinstance(each, SequenceUpdate) for each in given)
        assert [each for each in given if isinstance(each, SequenceUpdate)] == parts

    run_in_virtual_time(test())


@pytest.mark.parametrize("num_top", [0, 3])
def test_tokens_are_the_same_after_the_way(num_top: int) -> None:
    update = an_update(5, 6, num_top=num_top, is_last=True)
    assert decode(encode(update), SequenceUpdate) == update


def test_a_gateway_that_takes_tokens_too_slowly_loses_its_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_NUMBERS", 8)

    async def test() -> None:
        feed, sequences = TokenFeed(), Sequences()
        feed.start(0, sequences.start)
        async with aclosing(feed.parts()) as parts:
            await anext(parts)
            for position in range(8):
                sequences.callbacks[0](an_update(position))
            assert not sequences.cancelled
            sequences.callbacks[0](an_update(8))
            assert sequences.cancelled == [0], "while the last part is still on its way"
            assert feed.num_live == 0
            with pytest.raises(CallError, match="faster than the gateway"):
                feed.start(1, sequences.start)
            with pytest.raises(CallError, match="faster than the gateway"):
                await anext(parts)
        feed.close()
        assert sequences.cancelled == [0]

    run_in_virtual_time(test())


def test_what_cannot_be_started_is_not_live() -> None:
    def refuse(_: OnUpdate) -> Cancel:
        raise OverloadedError("full", retry_after_seconds=3)

    feed = TokenFeed()
    with pytest.raises(OverloadedError):
        feed.start(0, refuse)
    assert feed.num_live == 0
    feed.start(0, Sequences().start)
    with pytest.raises(CallError, match="already"):
        feed.start(0, Sequences().start)


def test_vectors_arrive_and_count_by_their_size() -> None:
    vector = bytes(range(256)) * 64
    token = msgspec.structs.replace(committed(4, is_last=True), vector=vector)
    update = SequenceUpdate(tokens=(token,))
    assert decode(encode(update), SequenceUpdate) == update

    async def test() -> None:
        feed, sequences = TokenFeed(), Sequences()
        for number in range(100):
            feed.start(number, sequences.start)
        async with aclosing(feed.parts()) as parts:
            await anext(parts)
            for on_update in sequences.callbacks:
                on_update(update)
            count = 0
            while count < 100:
                part = await anext(parts)
                assert len(encode(part)) < 300_000
                count += len(part.fed)

    run_in_virtual_time(test())
