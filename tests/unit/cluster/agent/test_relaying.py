"""Streams of a gateway, while coordinators come and go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from support.cluster.calls import a_record, changed
from support.cluster.played_cluster import (
    PlayedCluster,
    PlayedDeployment,
    run_played,
    undisturbed,
)
from support.virtual_time.run import reach

from potluck.cluster.agent import relaying as module
from potluck.cluster.agent import remote_sequences
from potluck.cluster.agent.relaying import Patience
from potluck.errors import EngineError, OverloadedError, ParameterError, RefusedRequestError
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord, DeploymentState
from potluck.types.sequence import NOTHING_COMMITTED, CommittedToken, Continuation, SequenceRequest
from potluck.types.step import SamplingParams


def a_request(num_tokens: int = 100, *, score_prompt: bool = False) -> SequenceRequest:
    return SequenceRequest(
        prompt_tokens=(3, 1, 4, 1, 5),
        sampling=SamplingParams(),
        max_new_tokens=num_tokens,
        score_prompt=score_prompt,
    )


def waiting(seconds: float) -> DeploymentRecord:
    return changed(a_record(), recovery_wait_seconds=seconds)


@pytest.mark.parametrize("score_prompt", [False, True])
@pytest.mark.parametrize("gateway", ["b", "c"])
def test_a_stream_goes_on_when_its_coordinator_is_lost(gateway: str, score_prompt: bool) -> None:
    """At the gateway that takes over itself, and at one that asks the successor."""

    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        request = a_request(score_prompt=score_prompt)
        reading = asyncio.ensure_future(cluster[gateway].text(request))
        await cluster[gateway].receive(20)
        await cluster.kill("a")
        assert await reading == undisturbed(request)
        (continuation,) = cluster["b"].continuations
        assert len(continuation.output_tokens) + continuation.num_scored >= 10

    run_played("abc", body)


def test_a_new_request_waits_for_a_coordinator() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        await cluster.kill("a")
        request = a_request(5)
        assert await cluster["c"].text(request) == undisturbed(request)

    run_played("abc", body)


def test_without_a_coordinator_for_too_long_there_is_one_clear_error() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", waiting(0.4))
        for name in "bc":
            cluster[name].is_readable = False
        loop = asyncio.get_running_loop()
        reading = asyncio.ensure_future(cluster["c"].text(a_request(200)))
        await asyncio.sleep(0.1)
        await cluster.kill("a")
        lost_at = loop.time()
        with pytest.raises(EngineError, match=r"no node has coordinated demo for 0.4 s") as raised:
            await reading
        assert 0.35 <= loop.time() - lost_at < 2
        assert "potluck ps" in raised.value.hint

    run_played("abc", body)


def test_time_that_a_coordinator_holds_a_sequence_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How long it may wait there is for the coordinator to say."""
    generate = PlayedDeployment.generate

    async def slowly(
        self: PlayedDeployment,
        request: SequenceRequest,
        continuation: Continuation = NOTHING_COMMITTED,
    ) -> AsyncGenerator[CommittedToken, None]:
        await asyncio.sleep(0.6)
        async for token in generate(self, request, continuation):
            yield token

    async def body(cluster: PlayedCluster) -> None:
        monkeypatch.setattr(PlayedDeployment, "generate", slowly)
        await cluster.deploy("a", waiting(0.2))
        request = a_request(5)
        assert await cluster["b"].text(request) == undisturbed(request)

    run_played("ab", body)


def test_a_coordinator_that_only_another_node_reaches_is_asked_through_that() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        request = a_request()
        reading = asyncio.ensure_future(cluster["b"].text(request))
        await cluster["b"].receive(20)
        cluster.cut("ab")
        assert await reading == undisturbed(request)
        started = [call[:2] for call in cluster.network.calls if call[2] == "deployment.start"]
        a, b, c = (NodeId(name * 16) for name in "abc")
        assert started == [(b, a), (b, c), (c, a)]
        assert cluster.coordinators() == ["a"]

    run_played("abc", body)


def test_a_relay_that_is_lost_is_replaced() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        cluster.cut("ab")
        request = a_request()
        reading = asyncio.ensure_future(cluster["b"].text(request))
        await cluster["b"].receive(20)
        await cluster.kill("c")
        assert await reading == undisturbed(request)
        first, second = cluster["a"].continuations
        assert first == NOTHING_COMMITTED
        assert second.output_tokens

    run_played("abcd", body)


@pytest.mark.slow
def test_whoever_has_gone_on_alone_hands_its_streams_to_the_winner() -> None:
    """No stream has a mixture, because only its gateway says what was committed."""

    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        requests = {name: a_request(300 + ord(name)) for name in "abcd"}
        reading = {
            name: asyncio.ensure_future(cluster[name].text(each)) for name, each in requests.items()
        }
        await asyncio.sleep(0.1)
        cluster.cut("ac", "ad", "bc", "bd")
        await reach(lambda: cluster.coordinators() == ["a", "c"], what="each half has one")
        await asyncio.sleep(0.1)
        cluster.heal()
        for name, each in reading.items():
            assert await each == undisturbed(requests[name]), name
        assert cluster.coordinators() == ["c"]

    run_played("abcd", body)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_cut_and_healed_every_token_comes_once(seed: int) -> None:
    async def body(cluster: PlayedCluster) -> None:
        chance = random.Random(seed)
        await cluster.deploy("a", a_record())
        requests = {name: a_request(150 + ord(name)) for name in "abcd"}
        reading = {
            name: asyncio.ensure_future(cluster[name].text(each)) for name, each in requests.items()
        }
        pairs = ["ab", "ac", "ad", "bc", "bd", "cd"]
        for _ in range(4):
            cluster.cut(*chance.sample(pairs, chance.randint(1, 4)))
            await asyncio.sleep(chance.uniform(0.02, 0.2))
            cluster.heal(*chance.sample(pairs, chance.randint(1, 6)))
            await asyncio.sleep(chance.uniform(0.02, 0.2))
        cluster.heal()
        for name, each in reading.items():
            assert await each == undisturbed(requests[name]), (name, seed)

    run_played("abcd", body)


class Refusing:
    """A coordinator that answers with errors, one after the other, then with tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> None:
        self.errors = list(errors)
        self.num_calls = 0
        generate = PlayedDeployment.generate

        async def refuse(
            deployment: PlayedDeployment,
            request: SequenceRequest,
            continuation: Continuation = NOTHING_COMMITTED,
        ) -> AsyncGenerator[CommittedToken, None]:
            self.num_calls += 1
            if self.errors:
                raise self.errors.pop(0)
            async for token in generate(deployment, request, continuation):
                yield token

        monkeypatch.setattr(PlayedDeployment, "generate", refuse)


@pytest.mark.parametrize(
    "error",
    [
        RefusedRequestError("it has ended two epochs", hint=""),
        OverloadedError("too many wait", retry_after_seconds=3),
        EngineError("the machines that are left lack 3 GB", hint=""),
    ],
)
@pytest.mark.parametrize("gateway", ["a", "b"])
def test_what_the_coordinator_refuses_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, gateway: str
) -> None:
    async def body(cluster: PlayedCluster) -> None:
        refusing = Refusing(monkeypatch, error)
        await cluster.deploy("a", a_record())
        with pytest.raises(type(error), match=str(error)):
            await cluster[gateway].text(a_request())
        assert refusing.num_calls == 1

    run_played("ab", body)


def test_a_call_that_fails_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(cluster: PlayedCluster) -> None:
        refusing = Refusing(monkeypatch, *[KeyError("a defect")] * 50)
        await cluster.deploy("a", a_record())
        with pytest.raises(EngineError):
            await cluster["b"].text(a_request())
        assert refusing.num_calls <= module._MAX_FAILED_CALLS

    run_played("ab", body)


def test_a_request_that_no_message_holds_is_refused_at_once() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        request = SequenceRequest(
            prompt_tokens=(100_000,) * 400_000, sampling=SamplingParams(), max_new_tokens=1
        )
        with pytest.raises(ParameterError, match="bytes when sent to the coordinator"):
            await cluster["b"].text(request)

    run_played("ab", body)


def test_an_undeployed_model_ends_its_streams() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        reading = [asyncio.ensure_future(cluster[name].text(a_request(1000))) for name in "ab"]
        await asyncio.sleep(0.1)
        await cluster["b"].coordination.undeploy("demo")
        for each in reading:
            with pytest.raises(EngineError, match="undeployed"):
                await each

    run_played("ab", body)


def test_sequences_of_a_gateway_share_one_feed_until_it_has_been_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_sequences, "_IDLE_SECONDS", 0.1)

    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())

        def num_feeds() -> int:
            return [call[2] for call in cluster.network.calls].count("deployment.feed")

        requests = [a_request(each) for each in (5, 20, 60)]
        texts = await asyncio.gather(*map(cluster["b"].text, requests))
        assert texts == [undisturbed(each) for each in requests]
        assert num_feeds() == 1
        assert await cluster["b"].text(a_request(3)) == undisturbed(a_request(3))
        assert num_feeds() == 1
        await asyncio.sleep(0.3)
        assert not cluster["b"].coordination.remote._feeds
        assert await cluster["b"].text(a_request(3)) == undisturbed(a_request(3))
        assert num_feeds() == 2

    run_played("ab", body)


def test_a_sequence_that_is_cancelled_before_it_was_started_is_never_computed() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        node = cluster["b"]
        updates: list[object] = []
        cancel = node.relaying.start(node.record(), a_request(100_000), updates.append)
        await asyncio.sleep(0)
        assert node.relaying.deployments == {"d"}
        cancel()
        await asyncio.sleep(0.1)
        assert not updates
        computing = cluster["a"].deployment()
        assert computing is not None
        assert not computing.num_live
        assert node.relaying.deployments == frozenset()

    run_played("ab", body)


def test_an_abandoned_stream_ends_at_the_coordinator() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        node = cluster["b"]
        stream = node.stream(a_request(100_000))
        assert [await anext(stream) for _ in range(3)]
        computing = cluster["a"].deployment()
        assert computing is not None
        assert computing.num_live == 1
        await stream.aclose()
        await asyncio.wait_for(node.relaying.drain(5.0), 1)
        await reach(lambda: not computing.num_live, what="its coordinator has ended it")

    run_played("ab", body)


@pytest.mark.slow
def test_a_node_that_leaves_hands_over_and_ends_its_own_streams_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        request = a_request(300)
        reading = {name: asyncio.ensure_future(cluster[name].text(request)) for name in "abc"}
        asking = asyncio.ensure_future(_ask_on(cluster, "c"))
        await asyncio.sleep(0.1)
        leaving = asyncio.ensure_future(cluster["a"].leaving.drain())
        await cluster.settle("b")
        await asyncio.sleep(0.1)
        with pytest.raises(EngineError, match="is leaving"):
            await cluster["a"].text(a_request(1))
        assert not leaving.done()
        for name, each in reading.items():
            assert await each == undisturbed(request), name
        await leaving
        asking.cancel()
        assert (await asyncio.gather(asking, return_exceptions=True))[0].__class__ is (
            asyncio.CancelledError
        ), "no request of another gateway has failed"
        assert cluster["a"].deployment() is None
        assert "took over demo" in caplog.text

    run_played("abc", body)


async def _ask_on(cluster: PlayedCluster, name: str) -> None:
    while True:
        request = a_request(3)
        assert await cluster[name].text(request) == undisturbed(request)


def test_a_successor_that_cannot_is_passed_over_and_the_last_node_just_finishes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body(cluster: PlayedCluster) -> None:
        cluster["b"].is_readable = False
        await cluster.deploy("a", a_record())
        await cluster["a"].leaving.drain()
        await cluster.settle("c")
        await cluster.kill("a")
        deployment = cluster["c"].deployment()
        assert deployment is not None
        await cluster["c"].leaving.drain()
        assert deployment.done[-1] == "finish"
        assert "no other node can take over demo" in caplog.text

    run_played("abc", body)


def test_stages_are_vacated_with_whoever_coordinates() -> None:
    async def body(cluster: PlayedCluster) -> None:
        await cluster.deploy("a", a_record())
        deployment = cluster["a"].deployment()
        assert deployment is not None
        await cluster["b"].leaving.drain()
        assert deployment.done[-1] == f"continue_without {NodeId('b' * 16)}"

    run_played("abc", body)


def test_both_deployments_of_one_name_are_undeployed() -> None:
    async def body(cluster: PlayedCluster) -> None:
        for coordinator, key in (("a", "d"), ("b", "e")):
            record: Any = msgspec.structs.replace(a_record(), deployment=key)
            await cluster.deploy(coordinator, record)
        await asyncio.sleep(0.1)
        await cluster["c"].coordination.undeploy("demo")
        await asyncio.sleep(0.1)
        for node in cluster.nodes.values():
            assert node.coordination.records.live() == ()
            assert {
                each.status.state for each in node.coordination.records.registry.records.values()
            } == {DeploymentState.REMOVED}

    run_played("abc", body)


def test_patience_adds_up_until_a_token_comes() -> None:
    patience = Patience(limit_seconds=5.0).after(2.0).after(2.0)
    assert patience.left_seconds == 1.0
    assert patience.after(3.0).left_seconds == 0.0
    assert patience.renewed().left_seconds == 5.0
