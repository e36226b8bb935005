"""What is told of deployments, from nothing but their records."""

from __future__ import annotations

from support.cluster.calls import A, B, a_record, changed, stage_on

from potluck.cluster.agent.deployment_history import UNDEPLOYED, DeploymentHistory
from potluck.types.cluster_events import EventContent, EventKind
from potluck.types.deployment import DeploymentRecord, DeploymentState

LOADING, READY = DeploymentState.LOADING, DeploymentState.READY
DEGRADED, REMOVED = DeploymentState.DEGRADED, DeploymentState.REMOVED
SERVING = a_record(1, stages=(stage_on(A),))


def last_events(*records: DeploymentRecord) -> list[EventContent]:
    """What the last of the records says after those before it."""
    history = DeploymentHistory(lambda node: f"host-{node[-1]}")
    *before, last = records
    for record in before:
        history.record_changed(record)
    return list(history.record_changed(last))


def test_a_deployment_is_told_from_its_beginning_to_its_end() -> None:
    history = DeploymentHistory(lambda node: node)
    kinds = [
        [each.kind for each in history.record_changed(record)]
        for record in (
            a_record(0, state=LOADING),
            changed(a_record(0, state=LOADING), reason="fetching", done_bytes=5),
            SERVING,
            changed(SERVING, rebalance_note="a note"),
            changed(SERVING, state=REMOVED, reason=UNDEPLOYED, stages=()),
        )
    ]
    assert kinds == [[EventKind.DEPLOYING], [], [EventKind.READY], [], [EventKind.UNDEPLOYED]]


def test_one_that_serves_already_when_it_is_first_heard_of_is_no_news() -> None:
    assert last_events(SERVING) == []
    assert last_events(changed(SERVING, state=REMOVED)) == []


def test_a_loss_is_told_once_with_its_reason_and_its_end_with_the_pause_and_the_moves() -> None:
    lost = changed(SERVING, state=DEGRADED, reason="node b was lost")
    placed = changed(SERVING, state=LOADING, reason="being placed; node b was lost")
    again = changed(a_record(2, stages=(stage_on(B),)), num_recoveries=1, recovery_seconds=2.25)
    (degraded,) = last_events(SERVING, lost)
    assert degraded.kind is EventKind.DEGRADED
    assert degraded.message == "demo is not serving: node b was lost."
    assert last_events(SERVING, lost, placed) == []
    assert last_events(SERVING, lost, placed, changed(lost, reason="again")) == []
    (recovered,) = last_events(SERVING, lost, placed, again)
    assert recovered.kind is EventKind.RECOVERED
    assert recovered.details == {
        "paused_seconds": 2.25,
        "moved": [{"stage": 0, "from": A, "to": B}],
    }
    assert "after a pause of 2.2 s; 1 stage changed, now on host-" in recovered.message


def test_reasons_name_nodes_as_people_do() -> None:
    lost = changed(SERVING, state=DEGRADED, reason=f"lost the connection to node {B} (closed)")
    (degraded,) = last_events(SERVING, lost)
    assert degraded.message == f"demo is not serving: lost the connection to host-{B[-1]} (closed)."


def test_a_move_is_told_with_its_gain() -> None:
    moving = changed(SERVING, state=LOADING, reason="connecting; it moves")
    moved = changed(a_record(2, stages=(stage_on(B),)), num_moves=1, last_gain=0.25)
    assert last_events(SERVING, moving) == []
    (rebalanced,) = last_events(SERVING, moving, moved)
    assert rebalanced.kind is EventKind.REBALANCED
    assert rebalanced.details == {"moved": [{"stage": 0, "from": A, "to": B}], "gain": 0.25}
    assert "25% faster" in rebalanced.message


def test_a_plan_without_a_node_that_leaves_has_no_gain() -> None:
    (rebalanced,) = last_events(SERVING, a_record(2, stages=(stage_on(B),)))
    assert (rebalanced.kind, rebalanced.details["gain"]) == (EventKind.REBALANCED, None)
    assert last_events(SERVING, a_record(2, stages=(stage_on(A),))) == []


def test_a_deployment_that_never_served_has_failed_unless_it_was_undeployed() -> None:
    loading = a_record(0, state=LOADING)
    (failed,) = last_events(loading, changed(loading, state=REMOVED, reason="it does not fit."))
    assert failed.kind is EventKind.FAILED
    assert failed.message == "demo could not be deployed: it does not fit."
    (given_up,) = last_events(loading, changed(loading, state=REMOVED, reason=UNDEPLOYED))
    assert given_up.kind is EventKind.UNDEPLOYED
    (damaged,) = last_events(SERVING, changed(SERVING, state=REMOVED, reason="a file is damaged"))
    assert damaged.kind is EventKind.UNDEPLOYED
    assert damaged.message == "demo was undeployed: a file is damaged."
