"""A deployment's life, with nodes, stages and edges that are played by the test."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.cluster.calls import A, B, PlayedMembership, a_plan, a_record, changed, stage_on
from support.scheduling.played_pipeline import PlayedPipeline
from support.scheduling.updates import tokens_of
from support.virtual_time.run import reach, run_in_virtual_time

from potluck.cluster.coordinator import attempt, epoch_end, machine, published_record
from potluck.cluster.coordinator.attempt import DeploymentDependencies
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.coordinator.excluded_units import StageError, StageStalledError
from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.wire.calls import StageEnds, StageLost
from potluck.cluster.wire.worker_messages import Peer, Progress
from potluck.engines.backends import cost_of
from potluck.errors import (
    DefectError,
    EdgeError,
    EngineError,
    InsufficientMemoryError,
    MovedError,
    ParameterError,
    PotluckError,
    RefusedRequestError,
)
from potluck.placement.planned import PlannedModel
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Objective, Quantization
from potluck.types.cluster import NodeId, NodeUnitId, UnitId
from potluck.types.content import Transfer
from potluck.types.deployment import (
    DeploymentRecord,
    DeploymentState,
    LoadingStage,
    ModelFingerprint,
    PlanRecord,
    TransferRecord,
)
from potluck.types.groups import LayoutStage
from potluck.types.program import Shard
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams


def a_planned_stage(node_id: NodeId) -> SimpleNamespace:
    size = SimpleNamespace(
        context_tokens=64,
        num_blocks=16,
        quantization=Quantization.NONE,
        arithmetic=Arithmetic.EXACT,
        is_mapped=False,
    )
    plan = SimpleNamespace(shard=Shard.whole(4), size=size, memory=a_plan())
    unit_id = UnitId("cpu/native")
    return SimpleNamespace(node_id=node_id, unit_id=unit_id, unit=(node_id, unit_id), plan=plan)


class Cluster:
    """What ``Deployment`` asks of others. Planning meets ``failures``, one after the other."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        recovery_wait_seconds: float = 60.0,
        layout: tuple[LayoutStage, ...] = (),
        objective: Objective = Objective.LATENCY,
    ) -> None:
        self.membership = PlayedMembership(others={B})
        self.published_records: list[DeploymentRecord] = []
        self.progress: list[DeploymentRecord] = []
        self.records: list[DeploymentRecord] = []
        self.publish_failures: list[Exception] = []
        self.failures: list[Exception] = []
        self.claimed_failures = False  # they are met when stages are loaded
        self.connect_failures: list[Exception] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.num_loading = 0
        self.node_id = B
        self.left_out: list[dict[NodeUnitId, str]] = []
        self.from_scratch: list[bool] = []
        monkeypatch.setattr(attempt, "plan_model", self._plan)
        monkeypatch.setattr(attempt, "load_stages", self._load)
        monkeypatch.setattr(attempt, "connect_stages", self._connect)
        plan = PlanRecord(stages=(stage_on(B),))
        monkeypatch.setattr(attempt, "plan_record", lambda _: plan)
        monkeypatch.setattr(attempt, "RemotePipeline", self.open_pipeline)
        profile = SimpleNamespace(
            config=SimpleNamespace(
                hidden_size=8, vocab_size=100, num_layers=4, no_cuts=frozenset(), has_logits=True
            )
        )
        self.deployment = Deployment(
            changed(
                a_record(state=DeploymentState.LOADING),
                recovery_wait_seconds=recovery_wait_seconds,
                layout=layout,
                objective=objective,
            ),
            cast(Any, profile),
            ModelFingerprint(digest=""),
            DeploymentDependencies(
                membership=cast(Any, self.membership),
                endpoint=cast(Any, None),
                step_seconds=1.0,
                cost_of=cost_of,
            ),
            publish=self._publish,
            on_record=self.records.append,
            clock=asyncio.get_running_loop().time,
        )

    def _publish(self, record: DeploymentRecord, is_progress: bool) -> None:
        if self.publish_failures:
            raise self.publish_failures.pop()
        self.published_records.append(record)
        if is_progress:
            self.progress.append(record)

    async def _plan(
        self,
        membership: object,
        record: DeploymentRecord,
        *_: object,
        may_quantize: bool,
        left_out: Mapping[NodeUnitId, str],
        leaving: Collection[NodeId],
        from_scratch: bool,
        weights: object,
    ) -> PlannedModel:
        self.left_out.append(dict(left_out))
        self.from_scratch.append(from_scratch)
        await asyncio.sleep(0)
        if self.failures and not self.claimed_failures:
            raise self.failures.pop(0)
        return self._planned(record.status.plan.arithmetic or Arithmetic.AVX512_BF16)

    def _planned(self, arithmetic: Arithmetic) -> PlannedModel:
        return PlannedModel(
            quantization=Quantization.NONE,
            arithmetic=arithmetic,
            arithmetic_note="",
            stages=cast(Any, (a_planned_stage(self.node_id),)),
            rejections=(),
        )

    async def _load(self, *_: object) -> list[object]:
        self.num_loading += 1
        try:
            await self.may_load.wait()
        finally:
            self.num_loading -= 1
        if self.failures and self.claimed_failures:
            raise self.failures.pop(0)
        return [Peer.at(B, EdgeAddress(host="", port=1))]

    async def _connect(self, *_: object, **__: object) -> tuple[object, object]:
        if self.connect_failures:
            raise self.connect_failures.pop(0)
        return SimpleNamespace(close=_ignore), SimpleNamespace(close=_ignore)

    def open_pipeline(self, *arguments: Any, **_: object) -> PlayedPipeline:
        self.pipeline = PlayedPipeline(*arguments[2:4])
        return self.pipeline

    async def reach(self, state: DeploymentState, *, epoch: int) -> None:
        deployment = self.deployment
        await reach(
            lambda: (
                (deployment.record.status.state, deployment.record.epoch.number) == (state, epoch)
            ),
            what=f"it is {state.value} in epoch {epoch}",
        )

    async def loading(self) -> None:
        await reach(lambda: self.num_loading, what="stages are loaded")

    def plan_on(self, node_id: NodeId, monkeypatch: pytest.MonkeyPatch) -> PlannedModel:
        """Let plans from now on have one stage on a node, and return such a plan."""
        self.node_id = node_id
        plan = PlanRecord(stages=(stage_on(node_id),))
        monkeypatch.setattr(attempt, "plan_record", lambda _: plan)
        return self._planned(Arithmetic.EXACT)


def _ignore() -> None:
    return


REQUEST = SequenceRequest(prompt_tokens=(1, 2), sampling=SamplingParams())


async def ask(cluster: Cluster, request: SequenceRequest = REQUEST) -> None:
    async for _ in tokens_of(partial(cluster.deployment.start_sequence, request)):
        continue


def test_sequences_go_on_after_a_lost_node_and_new_ones_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        assert cluster.deployment.record.epoch.number == 1
        tokens: list[int] = []

        async def read() -> None:
            async for token in tokens_of(partial(cluster.deployment.start_sequence, REQUEST)):
                tokens.append(token.token)

        asking = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        load = cluster.deployment.load
        assert load is not None
        assert load.num_running == 1
        cluster.pipeline.answer()
        cluster.pipeline.answer()
        await asyncio.sleep(0.01)
        cluster.may_load.clear()
        cluster.deployment.node_left(B)
        await cluster.loading()
        assert cluster.membership.called("stage.stop") == []
        assert cluster.deployment.load is None
        cluster.pipeline.answer()  # too late
        waiting = asyncio.create_task(
            ask(cluster, dataclasses.replace(REQUEST, prompt_tokens=(9,)))
        )
        await asyncio.sleep(0.01)
        assert tokens == [2, 3]
        cluster.may_load.set()
        await cluster.reach(DeploymentState.READY, epoch=2)
        (step,) = cluster.pipeline.steps
        assert [part.tokens for part in step.slices] == [(1, 2, 2, 3), (9,)]
        assert [each.output_tokens for each in step.opened] == [(2, 3), ()]
        cluster.pipeline.answer()
        await asyncio.sleep(0.01)
        assert tokens == [2, 3, 4]
        await cluster.deployment.close()
        assert await errors_of([asking, waiting]) == [MovedError, MovedError]

    run_in_virtual_time(run())


def test_a_request_that_waits_too_long_for_stages_is_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch, recovery_wait_seconds=0.2)
        await cluster.deployment.start()
        asking = asyncio.create_task(ask(cluster))
        await asyncio.sleep(0.01)
        cluster.failures = [PotluckError("3 GiB are missing")] * 100
        cluster.deployment.node_left(B)
        async with asyncio.timeout(2):
            with pytest.raises(EngineError, match="3 GiB are missing"):
                await asking
            with pytest.raises(EngineError, match="3 GiB are missing"):
                await ask(cluster)
        await cluster.deployment.close()

    monkeypatch.setattr(machine, "PAUSE_SECONDS", (0.0, 60.0))
    run_in_virtual_time(run())


def test_a_model_that_does_not_fit_any_more_refuses_at_once_after_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        cluster = Cluster(monkeypatch, recovery_wait_seconds=60.0)
        await cluster.deployment.start()
        cluster.failures = [
            InsufficientMemoryError(300, 100, "200 bytes are missing", hint="add a node")
        ] * 1000
        cluster.membership.others.discard(B)
        cluster.deployment.node_left(B)
        lost_at = loop.time()
        with pytest.raises(EngineError) as raised:
            await ask(cluster)
        assert loop.time() - lost_at == pytest.approx(60.0, abs=1.0)
        assert raised.value.message == (
            f"the model demo cannot answer: without node {B}, 200 bytes are missing"
        )
        assert raised.value.hint == "add a node"
        assert cluster.deployment.record.status.ready_in_seconds is None
        refused_at = loop.time()
        with pytest.raises(EngineError, match="200 bytes are missing"):
            await ask(cluster)
        assert loop.time() - refused_at < 1.0
        await cluster.deployment.close()

    run_in_virtual_time(run())


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
        assert cluster.membership.called("stage.stop") == [A, B]
        cluster.may_load.set()
        await asyncio.sleep(0.05)
        assert cluster.published_records[-1].status.state is DeploymentState.REMOVED

    run_in_virtual_time(run())


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
        assert cluster.published_records[-1].status.state is DeploymentState.REMOVED

    run_in_virtual_time(run())


def test_a_first_try_that_fails_is_raised_and_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.failures = [PotluckError("it does not fit")]
        with pytest.raises(PotluckError, match="does not fit"):
            await cluster.deployment.start()
        await asyncio.sleep(0.05)
        assert cluster.deployment.record.status.state is DeploymentState.LOADING
        assert cluster.num_loading == 0

    run_in_virtual_time(run())


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
        cluster.failures = [InsufficientMemoryError(300, 0, "there is no unit left", hint="")]
        cluster.deployment.stage_lost(lost)
        with pytest.raises(EngineError, match=f"stage 0 on node {B}: killed") as raised:
            await asyncio.wait_for(starting, 1)
        assert "no unit left" not in raised.value.message
        assert cluster.num_loading == 0

    run_in_virtual_time(run())


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
        reasons = [each.status.reason for each in cluster.published_records]
        assert any(str(failure) in reason for reason in reasons)
        await cluster.deployment.close()

    monkeypatch.setattr(machine, "PAUSE_SECONDS", (0.0, 0.01))
    run_in_virtual_time(run())


def test_a_node_that_joins_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        cluster.failures = [PotluckError("no room"), PotluckError("no room")]
        cluster.deployment.node_left(B)
        await asyncio.sleep(0.05)
        assert cluster.deployment.record.status.state is DeploymentState.DEGRADED
        cluster.deployment.node_joined(B)
        await cluster.reach(DeploymentState.READY, epoch=2)
        await cluster.deployment.close()

    monkeypatch.setattr(machine, "PAUSE_SECONDS", (0.0, 60.0))
    run_in_virtual_time(run())


def test_a_node_that_joins_a_deployment_that_serves_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        num_published = len(cluster.published_records)
        cluster.deployment.node_joined(B)
        cluster.deployment.node_left(A)  # no stage there
        await asyncio.sleep(0.05)
        assert len(cluster.published_records) == num_published
        assert cluster.deployment.record.epoch.number == 1
        await cluster.deployment.close()

    run_in_virtual_time(run())


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

    run_in_virtual_time(run())


def some_units_are_out(monkeypatch: pytest.MonkeyPatch, outages: list[tuple[str, ...]]) -> None:
    """At the end of each epoch the next of ``outages``, and then none."""

    def lines(*_: object) -> tuple[str, ...]:
        return outages.pop(0) if outages else ()

    async def units_out(*_: object) -> tuple[str, ...]:
        return lines()

    monkeypatch.setattr(epoch_end, "units_out", units_out)
    monkeypatch.setattr(epoch_end, "outage_lines", lines)


def test_a_first_try_that_lost_a_unit_is_followed_by_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.failures = [EngineError("no room on the first"), EngineError("nor on the second")]
        await cluster.deployment.start()
        assert cluster.deployment.record.is_ready
        assert cluster.deployment.record.status.reason == ""
        reasons = [each.status.reason for each in cluster.published_records]
        assert "being placed; no room on the first; gpu 0 is out" in reasons
        assert "being placed; nor on the second; gpu 0 is out; gpu 1 is out" in reasons
        assert {each.status.state for each in cluster.published_records} == {
            DeploymentState.LOADING,
            DeploymentState.READY,
        }
        await cluster.deployment.close()

    some_units_are_out(monkeypatch, [("gpu 0 is out",), ("gpu 1 is out",)])
    run_in_virtual_time(run())


def test_a_first_try_is_not_repeated_when_no_unit_was_lost_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.failures = [EngineError("no room on the gpu"), EngineError("no room at all")]
        with pytest.raises(EngineError, match="no room at all; gpu 0 is out"):
            await cluster.deployment.start()
        await asyncio.sleep(0.05)
        assert cluster.deployment.record.status.state is DeploymentState.LOADING

    some_units_are_out(monkeypatch, [("gpu 0 is out",)])
    run_in_virtual_time(run())


def test_a_plan_without_a_lost_unit_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        for epoch in (2, 3, 4):
            cluster.deployment.node_left(B)
            await cluster.reach(DeploymentState.READY, epoch=epoch)
        assert any("gpu 2 is out" in each.status.reason for each in cluster.published_records)
        await cluster.deployment.close()

    monkeypatch.setattr(machine, "PAUSE_SECONDS", (60.0,))
    some_units_are_out(monkeypatch, [(f"gpu {number} is out",) for number in range(3)])
    run_in_virtual_time(run())


def test_what_goes_on_is_told_at_once_and_how_far_it_is_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def load(*arguments: object) -> list[object]:
        on_progress = cast(Callable[[str, int, int], None], arguments[3])
        for done in range(5):
            on_progress("loading", done, 4)
        on_progress("warming up", 4, 4)
        on_progress("warming up", 4, 4)
        return [Peer.at(B, EdgeAddress(host="", port=1))]

    async def run() -> list[tuple[str, int]]:
        cluster = Cluster(monkeypatch)
        monkeypatch.setattr(attempt, "load_stages", load)
        await cluster.deployment.start()
        await cluster.deployment.close()
        return [(each.status.reason, each.status.done_bytes) for each in cluster.published_records]

    updates = run_in_virtual_time(run())
    # "loading" was said with the plan, a moment before.
    assert updates[:4] == [("being placed", 0), ("loading", 0), ("warming up", 4), ("", 4)]


def test_only_progress_may_reach_the_others_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many bytes are loaded, and which stages; not the state, nor what is going on."""

    async def load(*arguments: Any) -> list[object]:
        record, on_progress, on_loaded = arguments[1], arguments[3], arguments[4]
        on_progress("loading", 1, 4)
        await asyncio.sleep(1)
        on_progress("loading", 2, 4)
        return loaded(record, on_loaded)

    async def run() -> tuple[list[tuple[str, int]], list[DeploymentState]]:
        cluster = Cluster(monkeypatch)
        monkeypatch.setattr(attempt, "load_stages", load)
        await cluster.deployment.start()
        await cluster.deployment.close()
        rest = [each for each in cluster.published_records if each not in cluster.progress]
        progress = [(each.status.reason, each.status.done_bytes) for each in cluster.progress]
        return progress, [each.status.state for each in rest]

    progress, states = run_in_virtual_time(run())
    assert progress == [("loading", 2), ("loading", 2)]
    assert states[0] is DeploymentState.LOADING
    assert states[-1] is DeploymentState.READY


def loaded(
    record: DeploymentRecord, on_loaded: Callable[[int, SimpleNamespace], None]
) -> list[object]:
    """Say that the only stage is loaded; return its address, as ``load_stages`` does."""
    (stage,) = record.stages
    on_loaded(0, SimpleNamespace(memory=stage.memory, read_bytes=4, seconds=0.1, kept_blocks=""))
    return [Peer.at(B, EdgeAddress(host="", port=1))]


def test_how_far_each_stage_is_is_told_until_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def load(*arguments: Any) -> list[object]:
        record, on_progress, on_loaded, on_stage = arguments[1], *arguments[3:6]
        on_stage(0, Progress(done_bytes=1, total_bytes=4, is_fetching=True))
        on_progress("fetching", 1, 4)
        on_stage(0, Progress(done_bytes=4, total_bytes=4, is_warming_up=True))
        on_progress("warming up", 4, 4)
        return loaded(record, on_loaded)

    async def run() -> list[LoadingStage | None]:
        cluster = Cluster(monkeypatch)
        monkeypatch.setattr(attempt, "load_stages", load)
        await cluster.deployment.start()
        await cluster.deployment.close()
        return [stage.progress for each in cluster.published_records for stage in each.stages]

    progress = run_in_virtual_time(run())
    assert [each for each in progress if each is not None] == [
        LoadingStage(doing="fetching", done_bytes=1, total_bytes=4),
        LoadingStage(doing="warming up", done_bytes=4, total_bytes=4),
    ]
    assert progress[-1] is None


def test_transfers_are_told_until_their_stage_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last report before that counts fewer bytes than came."""
    halfway = Transfer(done_bytes=2, total_bytes=4, by_source={A: 2})

    async def load(*arguments: Any) -> list[object]:
        record, on_progress, on_loaded, on_stage = arguments[1], *arguments[3:6]
        on_stage(0, Progress(done_bytes=1, total_bytes=4, transfer=halfway))
        on_progress("fetching", 1, 4)
        return loaded(record, on_loaded)

    async def run() -> list[tuple[TransferRecord, ...]]:
        cluster = Cluster(monkeypatch)
        monkeypatch.setattr(attempt, "load_stages", load)
        await cluster.deployment.start()
        await cluster.deployment.close()
        return [each.status.files.transfers for each in cluster.published_records]

    transfers = run_in_virtual_time(run())
    assert (TransferRecord(node_id=B, transfer=halfway),) in transfers
    assert transfers[-1] == ()


async def computed(cluster: Cluster, *requests: SequenceRequest) -> list[asyncio.Task[None]]:
    """The requests, asked for and in a step of the present epoch."""
    asking = [asyncio.create_task(ask(cluster, each)) for each in requests]
    await asyncio.sleep(0.02)
    load = cluster.deployment.load
    assert load is not None
    assert load.num_running >= 1
    return asking


async def errors_of(asking: list[asyncio.Task[None]]) -> list[type[BaseException] | None]:
    async with asyncio.timeout(5):
        ends = await asyncio.gather(*asking, return_exceptions=True)
    return [None if each is None else type(each) for each in ends]


DEFECT = DefectError("a step could not be sent: OverflowError: it does not fit")


def test_a_request_that_ends_two_epochs_by_a_defect_is_refused_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guilty = dataclasses.replace(REQUEST, request_id="cmpl-guilty")

    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        asking = await computed(cluster, guilty)
        for epoch in (2, 3):
            cluster.pipeline.on_lost(DEFECT)
            await cluster.reach(DeploymentState.READY, epoch=epoch)
        assert await errors_of(asking) == [RefusedRequestError]
        with pytest.raises(RefusedRequestError, match="has twice crashed demo"):
            await ask(cluster, dataclasses.replace(REQUEST, request_id="cmpl-again"))
        assert cluster.deployment.record.epoch.number == 3
        (other,) = await computed(cluster, dataclasses.replace(REQUEST, prompt_tokens=(9,)))
        other.cancel()
        await cluster.deployment.close()

    monkeypatch.setattr(machine, "PAUSE_SECONDS", (0.0,))
    run_in_virtual_time(run())
    (line,) = [each.message for each in caplog.records if "is refused from now on" in each.message]
    assert line.startswith("demo: request cmpl-guilty is refused")
    assert "it does not fit" in line


def test_a_crash_that_a_node_has_seen_counts_and_a_lost_node_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        asking = await computed(cluster, REQUEST)
        ends: list[tuple[str, ...]] = [
            (),
            (),
            ("stage 0: killed by SIGSEGV",),
            (),  # alone, and still innocent of this one
            ("stage 0: killed by SIGSEGV",),
        ]
        for epoch, crashes in enumerate(ends, 2):
            assert not asking[0].done()
            cluster.membership.crashes = crashes
            cluster.deployment.node_left(B)
            await cluster.reach(DeploymentState.READY, epoch=epoch)
        assert await errors_of(asking) == [RefusedRequestError]
        await cluster.deployment.close()

    monkeypatch.setattr(machine, "PAUSE_SECONDS", (0.0,))
    run_in_virtual_time(run())


def test_only_who_was_in_a_step_is_a_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        waiting = dataclasses.replace(REQUEST, prompt_tokens=(3,))
        guilty, other = await computed(cluster, REQUEST, waiting)  # one step at a time
        for epoch in (2, 3):
            assert [len(step.slices) for step in cluster.pipeline.steps] == [1]
            cluster.pipeline.on_lost(DEFECT)
            await cluster.reach(DeploymentState.READY, epoch=epoch)
        assert await errors_of([guilty]) == [RefusedRequestError]
        with pytest.raises(RefusedRequestError):
            await ask(cluster)
        (step,) = cluster.pipeline.steps
        assert [part.tokens for part in step.slices] == [waiting.prompt_tokens]
        assert not other.done()
        other.cancel()
        await cluster.deployment.close()

    monkeypatch.setattr(machine, "PAUSE_SECONDS", (0.0,))
    run_in_virtual_time(run())


@pytest.mark.parametrize("place", ["outages", "close", "publish"])
def test_whatever_goes_wrong_at_an_end_the_next_epoch_begins(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        failures: list[Exception] = [RuntimeError("nobody expected this")]

        def fail(*_: object, **__: object) -> None:
            if failures:
                raise failures.pop()

        def fail_at(*_: object) -> tuple[str, ...]:
            fail()
            return ()

        async def fail_soon(*_: object) -> Mapping[NodeId, StageEnds]:
            fail()
            return {}

        if place == "outages":
            monkeypatch.setattr(epoch_end, "outage_lines", fail_at)
        elif place == "close":
            monkeypatch.setattr(epoch_end.EpochEnds, "close", fail_soon)
        else:
            cluster.publish_failures = failures
        cluster.deployment.node_left(B)
        await cluster.reach(DeploymentState.READY, epoch=2)
        assert not failures
        await cluster.deployment.close()

    monkeypatch.setattr(machine, "PAUSE_SECONDS", (0.0, 0.01))
    run_in_virtual_time(run())


def test_a_unit_that_stalls_is_left_out_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a first try: every plan is made with fewer units, and it ends."""

    async def run() -> None:
        cluster = Cluster(monkeypatch)
        unit = (B, UnitId("cpu/native"))
        cluster.failures = [StageStalledError(0, *unit, "it stood still")]
        await cluster.deployment.start()
        assert cluster.left_out == [{}, {unit: f"stage 0 on node {B}: it stood still"}]
        assert "it stood still; cpu/native on node" in " ".join(
            each.status.reason for each in cluster.published_records
        )
        monkeypatch.setattr("potluck.types.unit.PAUSES_SECONDS", (0.0,))
        cluster.failures = [StageStalledError(0, *unit, "again")]
        cluster.deployment.node_left(B)
        await cluster.reach(DeploymentState.READY, epoch=2)
        assert cluster.left_out[-1] == {}
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_a_unit_that_cannot_load_is_left_out_at_once_of_a_first_deployment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        unit = (B, UnitId("cpu/native"))
        cluster.failures = [StageError(0, *unit, "its disk is full")]
        await cluster.deployment.start()
        assert cluster.left_out == [{}, {unit: f"stage 0 on node {B}: its disk is full"}]
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_without_any_other_plan_the_first_failure_is_what_the_user_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.failures = [
            StageError(0, B, UnitId("cpu/native"), "its disk is full", hint="free some"),
            InsufficientMemoryError(200, 100, "100 bytes are missing", hint="add a node"),
        ]
        with pytest.raises(EngineError) as raised:
            await cluster.deployment.start()
        assert raised.value.message == (
            f"stage 0 on node {B}: its disk is full; cpu/native on node {B} is temporarily"
            " excluded; without it, 100 bytes are missing"
        )
        assert raised.value.hint == "free some"

    run_in_virtual_time(run())


def test_a_layout_is_left_only_after_it_has_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a first deployment would end well with another plan than the user's: what the
    other workers hold would be kept.
    """
    layout = (LayoutStage(node_id=B, unit_id=UnitId("cpu/native"), num_layers=4),)

    async def run() -> None:
        cluster = Cluster(monkeypatch, layout=layout)
        cluster.failures = [
            StageStalledError(0, B, UnitId("cpu/native"), "its worker was stopped"),
            ParameterError("layout", f"cpu/native on node {B} cannot be used", hint="potluck ps"),
        ]
        with pytest.raises(EngineError) as raised:
            await cluster.deployment.start()
        assert raised.value.message == (
            f"stage 0 on node {B}: its worker was stopped; cpu/native on node {B} is temporarily"
            " excluded"
        )
        assert cluster.from_scratch == [True, True]
        served = Cluster(monkeypatch, layout=layout)
        await served.deployment.start()
        served.deployment.node_left(B)
        await served.reach(DeploymentState.READY, epoch=2)
        assert served.from_scratch == [True, False]
        await served.deployment.close()

    run_in_virtual_time(run())


def test_weights_are_distributed_by_memory_again_until_it_has_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Around the few stages that were loaded, few nodes would get all of the rest."""

    async def run() -> None:
        cluster = Cluster(monkeypatch, objective=Objective.MEMORY)
        cluster.failures = [StageError(0, B, UnitId("cpu/native"), f"node {B} was lost")]
        await cluster.deployment.start()
        assert cluster.from_scratch == [True, True]
        cluster.deployment.node_left(B)
        await cluster.reach(DeploymentState.READY, epoch=2)
        assert cluster.from_scratch == [True, True, False]
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_a_unit_that_cannot_load_twice_is_left_out_while_others_suffice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        unit = (B, UnitId("cpu/native"))
        await cluster.deployment.start()
        cluster.left_out.clear()
        cluster.failures = [StageError(0, *unit, "its disk is full")] * 2
        cluster.claimed_failures = True
        cluster.deployment.node_left(B)
        await cluster.reach(DeploymentState.READY, epoch=4)
        assert [list(each) for each in cluster.left_out] == [[], [], [unit]]
        # Where nothing suffices without it, it is better than nothing.
        cluster.left_out.clear()
        cluster.failures = [PotluckError("it does not fit")]
        cluster.claimed_failures = False
        cluster.deployment.node_left(B)
        await cluster.reach(DeploymentState.READY, epoch=5)
        assert [list(each) for each in cluster.left_out] == [[unit], []]
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_nodes_that_cannot_connect_are_news_for_the_next_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A first deployment goes on, since its next plan will avoid the two as neighbours."""

    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.connect_failures = [EdgeError(B, "it did not connect within 30 s")]
        cluster.membership.unreachable = {A: (B,)}
        await cluster.deployment.start()
        assert sorted(cluster.membership.called("link.check")) == [A, B]
        assert f"node {A} cannot connect to node {B}" in " ".join(
            each.status.reason for each in cluster.published_records
        )
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_nodes_that_can_connect_after_all_do_not_explain_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.connect_failures = [EdgeError(B, "it did not connect within 30 s")]
        with pytest.raises(EdgeError, match="did not connect"):
            await cluster.deployment.start()

    run_in_virtual_time(run())


def test_a_worker_that_stalls_is_told_of_by_either_of_two_ways(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.may_load.clear()
        starting = asyncio.create_task(cluster.deployment.start())
        await cluster.loading()
        lost = StageLost(
            deployment=cluster.deployment.record.deployment,
            epoch=cluster.deployment.record.epoch,
            index=0,
            node_id=B,
            message="it made no progress",
            has_stalled=True,
        )
        cluster.may_load.set()
        cluster.deployment.stage_lost(lost)
        await asyncio.wait_for(starting, 5)
        assert list(cluster.left_out[-1]) == [(B, UnitId("cpu/native"))]
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_a_lost_epoch_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[PlayedPipeline]] = []
    monkeypatch.setattr(machine, "PAUSE_SECONDS", (0.0,))

    async def run() -> None:
        cluster = Cluster(monkeypatch)

        def make(*arguments: Any, **options: object) -> PlayedPipeline:
            pipeline = cluster.open_pipeline(*arguments, **options)
            made.append(weakref.ref(pipeline))
            return pipeline

        monkeypatch.setattr(attempt, "RemotePipeline", make)
        await cluster.deployment.start()
        asking = await computed(cluster, REQUEST)
        num_tasks = 0
        for epoch in range(2, 22):
            cluster.deployment.node_left(B)
            await cluster.reach(DeploymentState.READY, epoch=epoch)
            cluster.published_records.clear()
            cluster.left_out.clear()
            if epoch == 3:
                num_tasks = len(asyncio.all_tasks())
        gc.collect()
        assert len(made) == 21
        assert sum(each() is not None for each in made) == 1
        await reach(
            lambda: len(asyncio.all_tasks()) <= num_tasks, within=10, what="an epoch's tasks end"
        )
        await cluster.deployment.close()
        assert await errors_of(asking) == [MovedError]

    run_in_virtual_time(run())


def test_a_move_that_is_refused_does_not_disturb_a_node_that_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        better = cluster.plan_on(A, monkeypatch)
        cluster.may_load.clear()
        leaving = asyncio.create_task(cluster.deployment.continue_without(B))
        await cluster.loading()
        cluster.deployment.begin_move(better, "moving")
        cluster.may_load.set()
        await asyncio.wait_for(leaving, 1)
        await cluster.reach(DeploymentState.READY, epoch=2)
        assert [stage.node_id for stage in cluster.deployment.record.stages] == [A]
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_a_node_that_has_returned_waits_again_when_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        for leaving, other in ((B, A), (A, B)):
            cluster.plan_on(other, monkeypatch)
            await cluster.deployment.continue_without(leaving)
            cluster.deployment.node_left(leaving)
            cluster.deployment.node_joined(leaving)
        await cluster.reach(DeploymentState.READY, epoch=3)
        cluster.plan_on(A, monkeypatch)
        cluster.may_load.clear()
        again = asyncio.create_task(cluster.deployment.continue_without(B))
        await cluster.loading()
        await asyncio.sleep(1)
        assert not again.done()
        cluster.may_load.set()
        await asyncio.wait_for(again, 1)
        assert [stage.node_id for stage in cluster.deployment.record.stages] == [A]
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_a_node_that_joins_is_asked_for_the_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = Cluster(monkeypatch)
        await cluster.deployment.start()
        assert cluster.deployment.record.voters == (A, B)
        newcomer = NodeId("c" * 16)
        cluster.membership.others.add(newcomer)
        cluster.deployment.node_joined(B)
        assert cluster.published_records[-1].voters == (A, B, newcomer)
        cluster.membership.others.discard(newcomer)
        cluster.deployment.name_successor(B)
        assert cluster.published_records[-1].voters == (A, B, newcomer), "it may only be cut off"
        assert cluster.published_records[-1].status.successor == B
        await cluster.deployment.close()

    run_in_virtual_time(run())


def test_voters_that_left_count_no_longer_while_most_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that is cut off sees the others leave one by one, and keeps to the old count."""
    monkeypatch.setattr(published_record, "SETTLED_SECONDS", 0.05)
    guests = {NodeId(f"{number:016x}") for number in range(3)}

    async def run() -> None:
        cluster = Cluster(monkeypatch)
        cluster.membership.others |= guests
        await cluster.deployment.start()
        assert len(cluster.deployment.record.voters) == 5
        for guest in sorted(guests)[:2]:
            cluster.membership.others.discard(guest)
            cluster.deployment.node_left(guest)
        assert len(cluster.deployment.record.voters) == 5
        await asyncio.sleep(0.1)
        assert cluster.published_records[-1].voters == (sorted(guests)[2], A, B)
        for other in (*guests, B):
            cluster.membership.others.discard(other)
        cluster.deployment.node_left(sorted(guests)[2])
        await asyncio.sleep(0.1)
        assert len(cluster.deployment.record.voters) == 3
        await cluster.deployment.close()

    run_in_virtual_time(run())
