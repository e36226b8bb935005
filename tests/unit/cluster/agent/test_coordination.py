"""Who takes over what, and what nobody brings back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from support.cluster.calls import A, B, C, PlayedMembership, a_record, changed, late, stage_on
from support.cluster.edges import credentials
from support.cluster.hosted_stages import stage_host
from support.machines import hardware
from support.processes.waiting import until
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.agent import coordination as module
from potluck.cluster.agent import records, takeover
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.takeover import Takeovers
from potluck.cluster.agent.units import NodeUnits
from potluck.cluster.background import Background
from potluck.cluster.network.edges.listener import EdgeEndpoint
from potluck.cluster.wire.calls import encode, pack_record, unpack_record
from potluck.engines.backends import BACKENDS, cost_of
from potluck.errors import CallError, ModelNotFoundError
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.deployment import (
    DeploymentRecord,
    DeploymentState,
    DraftRecord,
    ModelFingerprint,
)


class FakeDeployment:
    """Remembers what was done with it."""

    def __init__(self, record: DeploymentRecord) -> None:
        self.record = record
        self.done: list[str] = []

    def resume(self) -> None:
        self.done.append("resume")

    async def close(self, reason: object = None) -> None:
        self.done.append("close")

    def node_left(self, node: str) -> None:
        self.done.append(f"left {node}")


class Node:
    """An agent's coordination among played nodes. ``is_readable``: it has the models' files."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
        self.membership = PlayedMembership(node_id=cast(Any, own * 16), others={A, B, C})
        self.membership.others.discard(self.membership.node_id)
        self.background = Background()
        self.is_readable = True
        self.found = ModelFingerprint(digest="")
        self.problem: Exception = ModelNotFoundError("no such file")

        units = NodeUnits(hardware.report, backends=BACKENDS)
        self.coordination = Coordination(
            cast(Any, self.membership),
            EdgeEndpoint(credentials=credentials(A), listen_host="127.0.0.1"),
            stage_host(tmp_path, units),
            cast(Any, None),
            step_seconds=1.0,
            cost_of=cost_of,
            spawn=self.background.spawn,
        )
        monkeypatch.setattr(self.coordination.planner, "read", self.read)
        monkeypatch.setattr(takeover, "_SETTLE_SECONDS", 0.02)
        monkeypatch.setattr(takeover, "NAMESAKE_SECONDS", 0.0)
        monkeypatch.setattr(module, "Deployment", lambda record, *_, **__: FakeDeployment(record))
        self.takeovers = Takeovers(
            cast(Any, self.membership),
            self.coordination,
            spawn=self.background.spawn,
            clock=asyncio.get_running_loop().time,
        )
        self.background.spawn(self.takeovers.run())

    async def read(self, _: str, record: DeploymentRecord | None = None) -> tuple[object, object]:
        if not self.is_readable:
            raise self.problem
        return SimpleNamespace(fingerprint=self.found, weights=None), SimpleNamespace()

    def loses(self, node: Any) -> None:
        self.membership.others.discard(node)
        self.coordination.left(node)

    @property
    def resumed(self) -> list[FakeDeployment]:
        return [cast(Any, each) for each in self.coordination.coordinated.values()]

    async def end(self) -> None:
        await self.background.close()


MakeNode = Callable[[str], Node]


@pytest.fixture
def make_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeNode:
    return lambda own: Node(tmp_path, monkeypatch, own)


def test_an_orphan_is_taken_over(make_node: MakeNode) -> None:
    async def run() -> None:
        node = make_node("a")
        node.coordination.records.learn(a_record(3, C))
        await asyncio.sleep(0.1)
        assert node.resumed == []
        node.loses(C)
        assert node.resumed == []
        await until(lambda: [each.done for each in node.resumed] == [["resume"]])
        await node.end()

    run_in_virtual_time(run())


def test_a_coordinator_that_comes_back_in_time_keeps_its_deployment(make_node: MakeNode) -> None:
    async def run() -> None:
        node = make_node("a")
        node.coordination.records.learn(a_record(3, C))
        node.loses(C)
        node.membership.others.add(C)
        await asyncio.sleep(0.1)
        assert node.resumed == []

    run_in_virtual_time(run())


def test_a_candidate_gives_up_when_the_coordinator_is_back(make_node: MakeNode) -> None:
    async def run() -> None:
        node = make_node("a")
        node.coordination.records.learn(a_record(3, C))
        node.loses(C)
        await until(lambda: bool(node.resumed))
        (candidate,) = node.resumed
        node.membership.others.add(C)
        node.takeovers.joined(C)
        node.coordination.joined(C)
        await until(lambda: candidate.done == ["resume", "close"])
        assert node.resumed == []
        await node.end()

    run_in_virtual_time(run())


@pytest.mark.parametrize("problem", [ModelNotFoundError("no such file"), KeyError("a defect")])
def test_one_that_cannot_take_over_tries_again(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    async def run() -> None:
        node = make_node("a")
        node.is_readable = False
        node.problem = problem
        node.coordination.records.learn(a_record(3, C))
        node.loses(C)
        await asyncio.sleep(0.1)
        assert node.resumed == []
        node.is_readable = True
        await until(lambda: len(node.resumed) == 1)

    monkeypatch.setattr(takeover, "_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(takeover, "_REST_SECONDS", 0.02)
    monkeypatch.setattr(takeover, "_POLL_SECONDS", 0.02)
    run_in_virtual_time(run())


def test_one_with_other_weights_does_not_take_over(
    make_node: MakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        node = make_node("a")
        deployed = ModelFingerprint(digest="d", weights="w", text="t")
        record = changed(a_record(3, C), fingerprint=deployed)
        node.found = ModelFingerprint(digest="d", weights="other", text="t")
        node.coordination.records.learn(record)
        node.loses(C)
        refused = "differ from those that were deployed: different weights"
        await until(lambda: refused in caplog.text)
        assert node.resumed == []

        other = msgspec.structs.replace(record, deployment=DeploymentId("other"))
        node.found = ModelFingerprint(digest="d", weights="w", text="another")
        node.coordination.records.learn(other)
        # It computes; it need not answer clients.
        await until(lambda: len(node.resumed) == 1)
        await node.end()

    run_in_virtual_time(run())


def test_an_agent_that_was_started_anew_takes_up_what_it_coordinated(make_node: MakeNode) -> None:
    async def run() -> None:
        node = make_node("a")
        node.coordination.records.learn(a_record(3, A))
        await until(lambda: len(node.resumed) == 1)

    run_in_virtual_time(run())


def test_one_that_may_be_a_copy_of_another_takes_nothing_up_at_once(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        node = make_node("a")
        monkeypatch.setattr(takeover, "NAMESAKE_SECONDS", 0.4)
        monkeypatch.setattr(takeover, "_POLL_SECONDS", 0.02)
        node.coordination.records.learn(a_record(3, A))
        await asyncio.sleep(0.2)
        assert not node.resumed
        await until(lambda: len(node.resumed) == 1)

    run_in_virtual_time(run())


def test_an_agent_that_was_started_anew_goes_on_from_its_latest_epoch(make_node: MakeNode) -> None:
    """The first that it hears of may be the record of an earlier one."""

    async def run() -> None:
        node = make_node("a")
        node.coordination.records.learn(a_record(3, A))
        await until(lambda: bool(node.resumed))
        (first,) = node.resumed
        node.coordination.records.learn(a_record(4, A))
        await until(lambda: "close" in first.done and node.resumed not in ([], [first]))
        (second,) = node.resumed
        assert second.record.epoch.number == 4

    run_in_virtual_time(run())


def test_a_higher_epoch_ends_what_is_coordinated_here_and_a_lower_one_does_not(
    make_node: MakeNode,
) -> None:
    async def run() -> None:
        node = make_node("a")
        mine = FakeDeployment(a_record(3, A))
        node.coordination.coordinated[mine.record.deployment] = cast(Any, mine)
        node.coordination.records.learn(mine.record)
        node.coordination.records.learn(a_record(2, B))
        await asyncio.sleep(0.01)
        assert mine.done == []
        node.coordination.records.learn(a_record(3, B))
        await until(lambda: mine.done == ["close"])
        assert node.resumed == []

    run_in_virtual_time(run())


def test_a_removed_deployment_is_not_revived_and_whoever_tries_is_told(make_node: MakeNode) -> None:
    async def run() -> None:
        node = make_node("a")
        node.coordination.records.learn(a_record(3, C, state=DeploymentState.REMOVED))
        node.coordination.records.learn(a_record(9, B))
        await asyncio.sleep(0.01)
        assert node.coordination.records.live() == ()
        (put_call,) = [call for call in node.membership.calls if call[1] == "deployment.put"]
        assert put_call[0] == B
        assert unpack_record(put_call[2]).status.state is DeploymentState.REMOVED

    run_in_virtual_time(run())


def test_progress_is_sent_as_often_as_leaves_room(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    publishers: list[Callable[[DeploymentRecord, bool], None]] = []

    def deployment(record: DeploymentRecord, *_: object, publish: Any, **__: object) -> Any:
        publishers.append(publish)
        return FakeDeployment(record)

    async def run() -> None:
        node = make_node("a")
        monkeypatch.setattr(module, "Deployment", deployment)
        node.membership.others.discard(C)
        node.coordination.records.learn(a_record(3, C))
        assert await node.takeovers.take_over(a_record(3, C))
        (publish,) = publishers
        first = a_record(4, A, stages=(stage_on(B),) * 14)
        publish(first, False)
        num_updates = 500
        for done_bytes in range(1, num_updates + 1):
            await asyncio.sleep(0.001)
            record = changed(first, revision=done_bytes, done_bytes=done_bytes)
            publish(record, True)
            assert node.coordination.records.live() == (record,)
        last = msgspec.structs.replace(first, revision=num_updates + 1)
        publish(last, False)
        await asyncio.sleep(0.01)
        sent = [call[2] for call in node.membership.calls if call[1] == "deployment.put"]
        assert unpack_record(sent[0]) == first
        assert unpack_record(sent[-1]) == last
        in_between = sum(map(len, sent[1:-1]))
        assert 0 < in_between <= 0.5 * records._PROGRESS_BYTES_PER_SECOND
        await node.end()

    run_in_virtual_time(run())


def test_records_are_sent_compressed() -> None:
    record = a_record(stages=(stage_on(B),) * 14)
    payload = pack_record(record)
    assert len(payload) < len(encode(record)) / 3
    assert unpack_record(payload) == record
    for wrong in (b"", encode(record), payload[:-20], payload[:20] + payload[40:]):
        with pytest.raises(CallError):
            unpack_record(wrong)


def test_what_nobody_coordinates_can_be_undeployed(make_node: MakeNode) -> None:
    async def run() -> None:
        node = make_node("a")
        node.is_readable = False
        node.coordination.records.learn(a_record(3, C))
        node.loses(C)
        await node.coordination.undeploy("demo")
        await asyncio.sleep(0.01)
        assert node.coordination.records.live() == ()
        assert node.membership.called("deployment.put") == [B]
        await node.end()

    run_in_virtual_time(run())


def test_undeploying_what_nobody_coordinates_removes_its_own_draft_model(
    make_node: MakeNode,
) -> None:
    async def run() -> None:
        node = make_node("a")
        node.is_readable = False
        drafting = msgspec.structs.replace(
            a_record(3, C), deployment=DeploymentId("s"), model_id="small"
        )
        small = DraftRecord(deployment=drafting.deployment, context_tokens=64, is_own=True)
        node.coordination.records.learn(a_record(3, C).with_status(small=small))
        node.coordination.records.learn(drafting)
        node.loses(C)
        await node.coordination.undeploy("demo")
        assert node.coordination.records.live() == ()
        await node.end()

    run_in_virtual_time(run())


@pytest.mark.parametrize(
    ("coordinator", "others", "tells"),
    [(A, {B, C}, True), (B, {B, C}, False), (C, {B, C}, True), ("d" * 16, {B, C}, True)],
)
def test_a_node_that_joins_is_told_by_the_coordinator_or_in_its_stead(
    make_node: MakeNode,
    coordinator: Any,
    others: set[Any],
    tells: bool,
) -> None:
    async def run() -> None:
        node = make_node("a")
        node.coordination.is_draining = True  # it takes nothing over
        node.membership.others = others
        record = msgspec.structs.replace(a_record(3, C), epoch=a_record(3, coordinator).epoch)
        node.coordination.records.learn(record)
        node.takeovers.joined(C)
        node.coordination.joined(C)
        await asyncio.sleep(0.01)
        assert node.membership.called("deployment.put") == ([C] if tells else [])
        await node.end()

    run_in_virtual_time(run())


def test_a_node_that_is_still_starting_is_told_again(make_node: MakeNode) -> None:
    def put(node: NodeId, payload: bytes) -> bytes:
        received.append(unpack_record(payload))
        return b""

    async def run() -> None:
        node = make_node("a")
        node.coordination.is_draining = True  # it takes nothing over
        node.membership.answers = {"deployment.put": late(3, put)}
        node.coordination.records.learn(a_record(3, A))
        node.coordination.joined(C)
        await asyncio.sleep(0.01)
        later = a_record(3, A).with_status(reason="changed meanwhile")
        node.coordination.records.learn(msgspec.structs.replace(later, revision=1))
        await asyncio.sleep(60)
        assert [each.status.reason for each in received] == ["changed meanwhile"]
        await node.end()

    received: list[DeploymentRecord] = []
    run_in_virtual_time(run())


@pytest.mark.parametrize("is_superseded", [False, True])
def test_an_overloaded_node_is_told_of_the_latest_record(
    make_node: MakeNode, is_superseded: bool
) -> None:
    def put(node: NodeId, payload: bytes) -> bytes:
        record = unpack_record(payload)
        calls.append(record.revision)
        if len(calls) < 4:
            raise CallError("it did not answer")
        return b""

    async def run() -> None:
        node = make_node("a")
        node.coordination.is_draining = True  # it takes nothing over
        node.membership.others = {C}
        node.membership.answers = {"deployment.put": put}
        node.coordination.records.publish(a_record(3, A))
        await asyncio.sleep(6)
        assert calls == [0, 0]
        if is_superseded:
            later = msgspec.structs.replace(a_record(3, A), revision=1)
            node.coordination.records.publish(later)
        await asyncio.sleep(60)
        assert calls == ([0, 0, 1, 1] if is_superseded else [0, 0, 0, 0])
        await node.end()

    calls: list[int] = []
    run_in_virtual_time(run())
