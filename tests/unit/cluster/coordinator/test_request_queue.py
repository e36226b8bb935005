"""Requests that wait for stages, go on after a loss, move, are accused, or wait too long."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from support.scheduling.played_pipeline import PlayedPipeline
from support.scheduling.updates import tokens_of
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator import request_queue as module
from potluck.cluster.coordinator.request_queue import OnOver, RequestQueue
from potluck.errors import (
    DefectError,
    EngineError,
    InsufficientMemoryError,
    MovedError,
    OverloadedError,
    ParameterError,
    PotluckError,
    RefusedRequestError,
)
from potluck.grammars.limits import MAX_GRAMMAR_BYTES
from potluck.scheduling.limits import SchedulerLimits
from potluck.scheduling.pipeline import OnOutcome, StepOutcome
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    Cancel,
    Continuation,
    OnUpdate,
    SequenceRequest,
    SequenceUpdate,
)
from potluck.types.step import SampledToken, SamplingParams

LIMITS = SchedulerLimits(
    num_blocks=8, context_tokens=64, max_step_tokens=64, max_step_sequences=8, max_steps_in_flight=1
)
REQUEST = SequenceRequest(prompt_tokens=(1, 2), sampling=SamplingParams(), max_new_tokens=4)
OTHER = dataclasses.replace(REQUEST, prompt_tokens=(7, 8))
NO_ROOM = InsufficientMemoryError(4 << 30, 1 << 30, "3 GiB of memory are missing", hint="add some")


class Played:
    """A ``RequestQueue``, its clock and its pipelines."""

    def __init__(
        self, *, wait_seconds: float = 60.0, clock: Callable[[], float] | None = None
    ) -> None:
        self.now = 1000.0
        self.reason: PotluckError = NO_ROOM
        self.has_no_plan = False
        self.overs: list[PotluckError] = []
        self.request_queue = RequestQueue(
            "demo",
            100,
            LIMITS,
            recovery_wait_seconds=wait_seconds,
            why_not=lambda: self.reason,
            no_plan=lambda: self.has_no_plan,
            retry_after=lambda: 17,
            clock=clock or (lambda: self.now),
        )
        self.pipeline: PlayedPipeline

    def attach(self) -> None:
        def open_pipeline(on_outcome: OnOutcome, on_lost: OnOver) -> Any:
            self.pipeline = PlayedPipeline(on_outcome, on_lost)
            return self.pipeline

        self.request_queue.attach(LIMITS, open_pipeline, self.overs.append)

    def ask(
        self, request: SequenceRequest = REQUEST, continuation: Continuation = NOTHING_COMMITTED
    ) -> tuple[asyncio.Task[None], list[int]]:
        tokens: list[int] = []

        async def read() -> None:
            def start(on_update: OnUpdate) -> Cancel:
                return self.request_queue.start(request, on_update, continuation)

            async with aclosing(tokens_of(start)) as stream:
                async for token in stream:
                    tokens.append(token.token)

        return asyncio.create_task(read()), tokens

    async def lose(self, error: PotluckError, defect: str = "") -> None:
        self.pipeline.on_lost(error)
        self.request_queue.record_defect(await self.request_queue.detach(), defect)


def test_what_is_asked_before_there_are_stages_waits_for_them() -> None:
    async def test() -> None:
        played = Played()
        task, tokens = played.ask()
        await asyncio.sleep(0.001)
        assert not played.request_queue.is_attached
        assert played.request_queue.load.num_waiting == 1
        played.attach()
        for _ in range(4):
            played.pipeline.answer()
        await task
        assert tokens == [2, 3, 4, 5]
        assert not played.request_queue._waiting

    run_in_virtual_time(test())


def test_sequences_go_on_over_the_next_stages_and_late_results_are_dropped() -> None:
    async def test() -> None:
        played = Played()
        played.attach()
        task, tokens = played.ask()
        await asyncio.sleep(0.001)
        played.pipeline.answer()
        played.pipeline.answer()
        old = played.pipeline
        await played.lose(EngineError("gone"))
        assert old.num_closes == 1
        assert [each.message for each in played.overs] == ["gone"]
        old.answer()
        await asyncio.sleep(0.001)
        assert tokens == [2, 3]
        assert played.request_queue._dispatcher.num_dropped_outcomes == 1
        played.attach()
        (opening,) = played.pipeline.steps[0].opened
        assert opening.output_tokens == (2, 3)
        old.on_lost(EngineError("told once more"))
        assert played.request_queue.is_attached, "another pipeline was lost"
        played.pipeline.answer()
        played.pipeline.answer()
        await task
        assert tokens == [2, 3, 4, 5]

    run_in_virtual_time(test())


def test_a_continuation_yields_what_follows_it() -> None:
    async def test() -> None:
        played = Played()
        played.attach()
        task, tokens = played.ask(REQUEST, Continuation(output_tokens=(2, 3, 4)))
        await asyncio.sleep(0.001)
        played.pipeline.answer()
        await task
        assert tokens == [5]
        for outputs in ((2, 3, 4, 5), (100,)):
            task, _ = played.ask(REQUEST, Continuation(output_tokens=outputs))
            with pytest.raises(ParameterError):
                await task

    run_in_virtual_time(test())


def test_a_grammar_that_does_not_fit_in_a_frame_is_refused() -> None:
    async def test() -> None:
        played = Played()
        played.attach()
        for num_characters, is_taken in ((MAX_GRAMMAR_BYTES, True), (MAX_GRAMMAR_BYTES + 1, False)):
            task, _ = played.ask(dataclasses.replace(REQUEST, grammar="x" * num_characters))
            await asyncio.sleep(0.001)
            assert bool(played.pipeline.steps) is is_taken
            if is_taken:
                played.pipeline.answer()
                task.cancel()
                await asyncio.sleep(0.001)
                played.pipeline.steps.clear()
            else:
                with pytest.raises(ParameterError, match="grammar"):
                    await task

    run_in_virtual_time(test())


def test_a_subscriber_that_raises_loses_its_sequence_and_no_other() -> None:
    async def test() -> None:
        played = Played()
        played.attach()
        updates: list[object] = []

        def fail(update: object) -> None:
            updates.append(update)
            raise KeyError(update)

        played.request_queue.start(REQUEST, fail)
        task, tokens = played.ask()
        await asyncio.sleep(0.001)
        for _ in range(6):
            if played.pipeline.steps:
                played.pipeline.answer()
            await asyncio.sleep(0.001)
        await task
        assert len(updates) == 1
        assert tokens == [2, 3, 4, 5]
        assert played.request_queue.load.num_running == 0

    run_in_virtual_time(test())


def test_what_a_step_gives_is_told_at_once_and_nothing_after_a_cancel() -> None:
    async def test() -> None:
        played = Played()
        played.attach()
        updates: list[object] = []
        scored = dataclasses.replace(REQUEST, prompt_tokens=(1, 2, 3, 4), score_prompt=True)
        cancel = played.request_queue.start(scored, updates.append)
        step = played.pipeline.steps.pop(0)
        sampled = tuple(
            SampledToken(
                sequence_id=part.sequence_id,
                position=part.start_position + index + 1,
                token=7,
                logprob=-1.0,
            )
            for part in step.slices
            for index in part.wanted
        )
        played.pipeline.on_outcome(StepOutcome(step=step, sampled=sampled))
        await asyncio.sleep(0.001)
        (update,) = updates
        assert isinstance(update, SequenceUpdate)
        assert [token.position for token in update.tokens] == [1, 2, 3, 4]
        played.pipeline.answer()  # on its way when the sequence is cancelled
        cancel()
        cancel()
        await asyncio.sleep(0.001)
        assert len(updates) == 1
        assert played.request_queue.load.num_running == 0

    run_in_virtual_time(test())


def test_a_sequence_fails_when_it_has_waited_since_its_arrival_or_the_loss() -> None:
    async def test() -> None:
        played = Played(wait_seconds=60.0)
        request_queue = played.request_queue
        first, _ = played.ask()
        await asyncio.sleep(0.001)
        assert request_queue.expire(NO_ROOM, 1059.9) == 1060.0
        played.attach()
        assert request_queue.expire(NO_ROOM, 5000.0) is None, "it is computed"
        played.now = 5000.0
        await played.lose(EngineError("gone"))
        played.now = 5030.0
        second, _ = played.ask(OTHER)
        await asyncio.sleep(0.001)
        assert request_queue.expire(NO_ROOM, 5059.9) == 5060.0
        assert request_queue.expire(NO_ROOM, 5060.0) == 5090.0
        with pytest.raises(InsufficientMemoryError, match="3 GiB of memory are missing"):
            await first
        assert not second.done()
        assert request_queue.expire(EngineError("other"), 5090.0) is None
        with pytest.raises(EngineError, match="other"):
            await second
        assert request_queue.load.num_waiting == 0

    run_in_virtual_time(test())


def test_a_timer_ends_the_wait_with_the_reason_of_that_moment() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        played = Played(wait_seconds=0.1, clock=loop.time)
        started = loop.time()
        task, _ = played.ask()
        await asyncio.sleep(0.001)
        played.reason = EngineError("still loading")
        await asyncio.sleep(0.05)
        later, _ = played.ask()
        with pytest.raises(EngineError, match="still loading"):
            await task
        assert 0.1 <= loop.time() - started < 1.0
        assert not later.done()
        with pytest.raises(EngineError, match="still loading"):
            await later
        assert 0.15 <= loop.time() - started < 1.0

    run_in_virtual_time(test())


def test_without_a_plan_nobody_waits_longer_than_those_who_saw_the_loss() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        played = Played(wait_seconds=3.0, clock=loop.time)
        played.attach()
        await played.lose(EngineError("gone"))
        lost_at = loop.time()
        await asyncio.sleep(2.5)
        loading, _ = played.ask()
        await asyncio.sleep(1.0)
        assert not loading.done(), "stages are being loaded"
        played.has_no_plan = True
        played.request_queue.end_waits()
        with pytest.raises(InsufficientMemoryError):
            await loading
        later, _ = played.ask(OTHER)
        with pytest.raises(InsufficientMemoryError):
            await later
        assert loop.time() - lost_at == pytest.approx(3.5), "they fail at once"
        played.has_no_plan = False
        hopeful, _ = played.ask()
        await asyncio.sleep(2.9)
        assert not hopeful.done()
        await played.request_queue.end(EngineError("over"))
        with pytest.raises(EngineError, match="over"):
            await hopeful

    run_in_virtual_time(test())


def test_too_many_that_wait_are_told_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        played = Played()
        tasks = [played.ask()[0] for _ in range(3)]
        await asyncio.sleep(0.001)
        refused, _ = played.ask()
        with pytest.raises(OverloadedError) as raised:
            await refused
        assert raised.value.retry_after_seconds == 17
        continued, _ = played.ask(REQUEST, Continuation(output_tokens=(2,)))
        await asyncio.sleep(0.001)
        assert not continued.done(), "it was admitted once"
        another, _ = played.ask(REQUEST, Continuation(output_tokens=(2,)))
        with pytest.raises(OverloadedError):
            await another
        for task in (*tasks, continued):
            task.cancel()
        await asyncio.gather(*tasks, continued, return_exceptions=True)
        assert played.request_queue.load.num_waiting == 0

    monkeypatch.setattr(module, "MAX_WAITING_SEQUENCES", 3)
    monkeypatch.setattr(module, "_MAX_CONTINUED_SEQUENCES", 4)
    run_in_virtual_time(test())


def test_only_a_defect_accuses_and_only_the_guilty_ends() -> None:
    async def test() -> None:
        played = Played()
        played.attach()
        guilty, _ = played.ask()
        await asyncio.sleep(0.001)
        innocent, tokens = played.ask(OTHER)  # waits for the step in flight
        await asyncio.sleep(0.001)
        await played.lose(EngineError("a node was lost"))
        played.attach()
        assert len(played.pipeline.steps[0].slices) == 2, "nobody is accused"
        await played.lose(DefectError("boom"), "boom")
        played.attach()
        alone = played.pipeline.steps[0].slices
        assert [part.tokens for part in alone] == [(1, 2)], "alone, and first"
        await played.lose(DefectError("boom"), "boom")
        with pytest.raises(RefusedRequestError):
            await guilty
        played.attach()
        for _ in range(4):
            assert len(played.pipeline.steps[0].slices) == 1
            played.pipeline.answer()
        await innocent
        assert tokens == [2, 3, 4, 5]
        again, _ = played.ask()
        with pytest.raises(RefusedRequestError):
            await again
        cleared, _ = played.ask(OTHER)
        other, _ = played.ask(dataclasses.replace(REQUEST, prompt_tokens=(5,)))
        await asyncio.sleep(0.001)
        played.pipeline.answer()
        assert len(played.pipeline.steps[0].slices) == 2, "it has completed, and is no suspect"
        await played.request_queue.end(EngineError("over"))
        await asyncio.gather(cleared, other, return_exceptions=True)

    run_in_virtual_time(test())


def test_a_deployment_that_moves_ends_its_sequences_after_their_tokens() -> None:
    async def test() -> None:
        played = Played()
        played.attach()
        task, tokens = played.ask()
        await asyncio.sleep(0.001)
        played.pipeline.answer()
        ending = asyncio.ensure_future(
            played.request_queue.end(MovedError("the coordinator has left"))
        )
        await asyncio.sleep(0)
        played.pipeline.answer()  # committed nowhere
        await ending
        assert not played.request_queue.is_attached
        with pytest.raises(MovedError):
            await task
        assert tokens == [2]
        await played.request_queue.end(EngineError("undeployed"))
        assert played.pipeline.num_closes == 1
        late, _ = played.ask()
        with pytest.raises(MovedError):
            await late

    run_in_virtual_time(test())


def test_the_end_ends_all_that_wait_and_later_requests() -> None:
    async def test() -> None:
        played = Played()
        task, _ = played.ask()
        await asyncio.sleep(0.001)
        assert await played.request_queue.end(EngineError("undeployed")) == ()
        assert await played.request_queue.end(EngineError("undeployed again")) == ()
        late, _ = played.ask()
        for each in (task, late):
            with pytest.raises(EngineError, match=r"undeployed$"):
                await each
        assert played.request_queue._timer is None

    run_in_virtual_time(test())


def test_the_tokens_of_a_step_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        played = Played()
        played.attach()
        answers = [played.ask(dataclasses.replace(REQUEST, prompt_tokens=(n,))) for n in (1, 2, 3)]
        await asyncio.sleep(0.001)
        played.pipeline.answer()  # the first sequence was in a step alone
        await asyncio.sleep(0.001)
        wakes: list[object] = []
        loop = asyncio.get_running_loop()
        call_soon = loop.call_soon_threadsafe

        def noted(callback: Callable[..., object], *args: Any) -> object:
            wakes.append(callback)
            return call_soon(callback, *args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", noted)
        assert len(played.pipeline.steps[0].slices) == 3
        played.pipeline.answer()
        assert len(wakes) == 1
        await asyncio.sleep(0.001)
        assert [len(tokens) for _, tokens in answers] == [2, 1, 1]
        while played.pipeline.steps:
            played.pipeline.answer()
            await asyncio.sleep(0.001)
        for task, tokens in answers:
            await task
            assert len(tokens) == 4
        await played.request_queue.end(EngineError("over"))

    run_in_virtual_time(test())
