"""A deployment's life, with nodes, stages and edges that are played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cluster_calls import A, B, PlayedMembership, a_record, stage_on

from potluck.cluster.calls import DeploymentRecord, DeploymentState, ModelFingerprint, StageLost
from potluck.cluster.coordinator import deployment as module
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.coordinator.planning import PlannedModel
from potluck.engines.costs import CostOf, cost_of
from potluck.errors import EngineError, ParameterError, PotluckError
from potluck.types.quantization import Quantization
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams, Step


class SilentPipeline:
    """Steps never come back."""

    sent = None

    def __init__(self, *_: object, **__: object) -> None:
        return

    def submit(self, step: Step) -> None:
        return

    def close(self) -> None:
        return


class Cluster:
    """What ``Deployment`` asks of others. Planning meets ``failures``, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.membership = PlayedMembership(others={B})
        self.said: list[DeploymentRecord] = []
        self.failures: list[Exception] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.num_loading = 0
        monkeypatch.setattr(module, "plan_model", self._plan)
        monkeypatch.setattr(module, "load_stages", self._load)
        monkeypatch.setattr(module, "connect_stages", self._connect)
        monkeypatch.setattr(module, "placement_fields", lambda _: {"stages": (stage_on(B),)})
        monkeypatch.setattr(module, "RemotePipeline", SilentPipeline)
        description = SimpleNamespace(config=SimpleNamespace(hidden_size=8, vocab_size=100))
        self.deployment = Deployment(
            a_record(state=DeploymentState.LOADING),
            cast(Any, description),
            ModelFingerprint(digest=""),
            membership=cast(Any, self.membership),
            credentials=cast(Any, None),
            listen_host="127.0.0.1",
            step_seconds=1.0,
            cost_of=cost_of,
            before_next_epoch=self._look_around,
            publish=self.said.append,
        )

    async def _look_around(self) -> None:
        return

    async def _plan(self, *_: object, may_quantize: bool, cost_of: CostOf) -> PlannedModel:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        return PlannedModel(quantization=Quantization.NONE, stages=(), rejections=())

    async def _load(self, *_: object) -> list[object]:
        self.num_loading += 1
        try:
            await self.may_load.wait()
        finally:
            self.num_loading -= 1
        return [object()]

    async def _connect(self, *_: object) -> tuple[object, object]:
        return object(), object()

    async def reach(self, state: DeploymentState, *, epoch: int) -> None:
        async with asyncio.timeout(5):
            while (
                self.deployment.record.state is not state
                or self.deployment.record.epoch.number != epoch
            ):
                await asyncio.sleep(0.005)

    async def loading(self) -> None:
        async with asyncio.timeout(5):
            while not self.num_loading:
                await asyncio.sleep(0.005)


REQUEST = SequenceRequest(prompt_tokens=(1, 2), sampling=SamplingParams())


async def ask(cluster: Cluster, request: SequenceRequest = REQUEST) -> None:
    async for _ in cluster.deployment.generate(request):
        continue


def test_a_lost_node_fails_requests_at_once_and_the_next_epoch_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        assert cluster.deployment.record.epoch.number == 1
        asking = asyncio.create_task(ask(cluster))
        await asyncio.sleep(0.01)
        load = cluster.deployment.load
        assert load is not None
        assert load.num_running == 1
        cluster.may_load.clear()
        cluster.deployment.node_left(B)
        with pytest.raises(EngineError, match=f"node {B} was lost"):
            await asyncio.wait_for(asking, 1)
        await cluster.loading()
        assert cluster.membership.called("stage.stop") == [B]
        with pytest.raises(EngineError, match="cannot answer now"):
            await ask(cluster)
        cluster.may_load.set()
        await cluster.reach(DeploymentState.READY, epoch=2)
        await cluster.deployment.close()

    asyncio.run(run())


def test_removed_while_it_loads_nothing_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.may_load.clear()
        starting = asyncio.create_task(cluster.deployment.start())
        await cluster.loading()
        await cluster.deployment.remove()
        with pytest.raises(EngineError, match="removed while"):
            await starting
        assert cluster.num_loading == 0
        assert cluster.membership.called("stage.stop") == [B]
        cluster.may_load.set()
        await asyncio.sleep(0.05)
        assert cluster.said[-1].state is DeploymentState.REMOVED

    asyncio.run(run())


def test_cancelled_while_it_loads_it_can_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.may_load.clear()
        starting = asyncio.create_task(cluster.deployment.start())
        await cluster.loading()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await cluster.deployment.remove()
        assert cluster.num_loading == 0
        assert cluster.said[-1].state is DeploymentState.REMOVED

    asyncio.run(run())


def test_a_first_try_that_fails_is_raised_and_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.failures = [PotluckError("it does not fit")]
        with pytest.raises(PotluckError, match="does not fit"):
            await cluster.deployment.start()
        await asyncio.sleep(0.05)
        assert cluster.deployment.record.state is DeploymentState.LOADING
        assert cluster.num_loading == 0

    asyncio.run(run())


def test_what_is_lost_while_others_still_load_ends_the_try(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.may_load.clear()
        starting = asyncio.create_task(cluster.deployment.start())
        await cluster.loading()
        epoch = cluster.deployment.record.epoch
        lost = StageLost(
            deployment=cluster.deployment.record.deployment,
            epoch=epoch,
            index=0,
            node_id=B,
            message="killed",
        )
        cluster.deployment.stage_lost(lost)
        with pytest.raises(EngineError, match="killed"):
            await asyncio.wait_for(starting, 1)
        assert cluster.num_loading == 0

    asyncio.run(run())


@pytest.mark.parametrize("failure", [PotluckError("no room"), RuntimeError("a defect")])
def test_a_later_try_that_fails_is_repeated_without_a_new_epoch(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        cluster.failures = [failure]
        cluster.deployment.node_left(B)
        await cluster.reach(DeploymentState.READY, epoch=2)
        reasons = [each.reason for each in cluster.said]
        assert any(str(failure) in reason for reason in reasons)
        await cluster.deployment.close()

    monkeypatch.setattr(module, "_PAUSE_SECONDS", (0.0, 0.01))
    asyncio.run(run())


def test_a_node_that_joins_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        cluster.failures = [PotluckError("no room")]
        cluster.deployment.node_left(B)
        await asyncio.sleep(0.05)
        assert cluster.deployment.record.state is DeploymentState.DEGRADED
        cluster.deployment.node_joined()
        await cluster.reach(DeploymentState.READY, epoch=2)
        await cluster.deployment.close()

    monkeypatch.setattr(module, "_PAUSE_SECONDS", (0.0, 60.0))
    asyncio.run(run())


def test_a_node_that_joins_a_deployment_that_serves_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        num_said = len(cluster.said)
        cluster.deployment.node_joined()
        cluster.deployment.node_left(A)  # no stage there
        await asyncio.sleep(0.05)
        assert len(cluster.said) == num_said
        assert cluster.deployment.record.epoch.number == 1
        await cluster.deployment.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "request_",
    [
        SequenceRequest(prompt_tokens=(), sampling=SamplingParams()),
        SequenceRequest(prompt_tokens=(100,), sampling=SamplingParams()),
        SequenceRequest(prompt_tokens=(1,), sampling=SamplingParams(), max_new_tokens=0),
        SequenceRequest(prompt_tokens=(1,), sampling=SamplingParams(top_p=7.0)),
        SequenceRequest(prompt_tokens=(1,), sampling=SamplingParams(logit_bias=((100, 1.0),))),
    ],
)
def test_what_no_stage_could_compute_is_refused(
    monkeypatch: pytest.MonkeyPatch, request_: SequenceRequest
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        with pytest.raises(ParameterError):
            await ask(cluster, request_)
        load = cluster.deployment.load
        assert load is not None
        assert load.num_running == load.num_waiting == 0
        await cluster.deployment.close()

    asyncio.run(run())


def some_units_are_out(monkeypatch: pytest.MonkeyPatch, outages: list[tuple[str, ...]]) -> None:
    """At the end of each epoch the next of ``outages``, and then none."""

    async def units_out(*_: object) -> tuple[str, ...]:
        return outages.pop(0) if outages else ()

    monkeypatch.setattr(module, "units_out", units_out)


def test_a_first_try_that_lost_a_unit_is_followed_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.failures = [EngineError("no room on the first"), EngineError("nor on the second")]
        await cluster.deployment.start()
        assert cluster.deployment.record.state is DeploymentState.READY
        assert cluster.deployment.record.reason == ""
        said = [each.reason for each in cluster.said]
        assert "no room on the first; gpu 0 is out" in said
        assert "being placed; gpu 0 is out; gpu 1 is out" in said
        assert {each.state for each in cluster.said} == {
            DeploymentState.LOADING,
            DeploymentState.READY,
        }
        await cluster.deployment.close()

    some_units_are_out(monkeypatch, [("gpu 0 is out",), ("gpu 1 is out",)])
    asyncio.run(run())


def test_a_first_try_is_not_repeated_when_no_unit_was_lost_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.failures = [EngineError("no room on the gpu"), EngineError("no room at all")]
        with pytest.raises(EngineError, match="no room at all; gpu 0 is out"):
            await cluster.deployment.start()
        await asyncio.sleep(0.05)
        assert cluster.deployment.record.state is DeploymentState.LOADING

    some_units_are_out(monkeypatch, [("gpu 0 is out",)])
    asyncio.run(run())


def test_a_plan_without_a_lost_unit_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        for epoch in (2, 3, 4):
            cluster.deployment.node_left(B)
            await cluster.reach(DeploymentState.READY, epoch=epoch)
        assert any("gpu 2 is out" in each.reason for each in cluster.said)
        await cluster.deployment.close()

    monkeypatch.setattr(module, "_PAUSE_SECONDS", (60.0,))
    some_units_are_out(monkeypatch, [(f"gpu {number} is out",) for number in range(3)])
    asyncio.run(run())


def test_what_goes_on_is_told_at_once_and_how_far_it_is_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def load(*arguments: object) -> list[object]:
        on_progress = cast(Callable[[str, int, int], None], arguments[3])
        for done in range(5):
            on_progress("loading", done, 4)
        on_progress("warming up", 4, 4)
        on_progress("warming up", 4, 4)
        return [object()]

    async def run() -> list[tuple[str, int]]:
        cluster = Cluster(monkeypatch)
        monkeypatch.setattr(module, "load_stages", load)
        await cluster.deployment.start()
        await cluster.deployment.close()
        return [(each.reason, each.done_bytes) for each in cluster.said]

    told = asyncio.run(run())
    # "loading" was said with the plan, a moment before.
    assert told[:4] == [("being placed", 0), ("loading", 0), ("warming up", 4), ("", 4)]
