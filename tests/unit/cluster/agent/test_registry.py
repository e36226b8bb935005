"""What counts as the latest word on a deployment."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from support.cluster.calls import a_record, changed

from potluck.cluster.agent.records import MAX_REMOVED, Registry
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.deployment import DeploymentRecord, DeploymentState

A, B = NodeId("a" * 16), NodeId("b" * 16)


def record(
    number: int = 1,
    coordinator: NodeId = A,
    revision: int = 0,
    *,
    deployment: str = "d",
    state: DeploymentState = DeploymentState.READY,
) -> DeploymentRecord:
    made = a_record(number, coordinator, state=state)
    return changed(made, deployment=DeploymentId(deployment), revision=revision)


def test_the_higher_epoch_counts_then_the_later_revision() -> None:
    in_order = [record(1, A, 5), record(1, B, 0), record(1, B, 1), record(2, A, 0)]
    for earlier, later in pairwise(in_order):
        registry = Registry().put(earlier)
        assert registry.put(later).find("demo") == later
        after = registry.put(later)
        assert after.put(earlier) is after


def test_a_removal_is_final_whatever_its_epoch() -> None:
    removed = record(1, A, 0, state=DeploymentState.REMOVED)
    registry = Registry().put(record(7, B, 3)).put(removed)
    assert registry.live() == ()
    assert registry.put(record(9, B, 0)) is registry


def test_only_so_many_removals_are_remembered() -> None:
    registry = Registry().put(record(deployment="live"))
    for number in range(MAX_REMOVED + 10):
        gone = record(deployment=f"{number}", state=DeploymentState.REMOVED)
        registry = registry.put(gone)
    assert len(registry.records) == MAX_REMOVED + 1
    assert DeploymentId("9") not in registry.records
    assert DeploymentId("10") in registry.records
    assert [each.deployment for each in registry.live()] == ["live"]


def test_names_are_free_again_after_a_removal() -> None:
    registry = Registry().put(record())
    assert registry.free_model_id("demo") == "demo-2"
    gone = record().removed("undeployed")
    assert registry.put(gone).free_model_id("demo") == "demo"


def test_a_coordinator_that_went_on_alone_is_heard_where_nobody_else_did() -> None:
    with_quorum = record(1, A, 5)
    alone = msgspec.structs.replace(record(2, A, 0), has_quorum=False)
    registry = Registry().put(with_quorum)
    assert registry.put(alone).find("demo") == alone
    others = Registry().put(record(2, B, 0))
    assert others.put(alone) is others
    assert registry.put(alone).put(record(2, B, 0)).find("demo") == record(2, B, 0)
